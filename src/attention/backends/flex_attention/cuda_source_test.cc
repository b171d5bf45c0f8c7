// The generated text is plain C but for three words, so the machine's own compiler runs it: values
// against the evaluator, coverage against the cells of the box. Skips where there is no compiler.
#include "attention/backends/flex_attention/cuda_source.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "attention/mods/evaluate.h"
#include "attention/mods/parse.h"
#include "base/testing/temporary_folder.h"

namespace warpweave::flex_attention {
namespace {

constexpr const char* kPrelude = R"(
#include <math.h>
#include <string.h>
typedef unsigned u32;
#define INLINE static inline
#define DK 64
static float AS_F32(u32 bits) { float x; memcpy(&x, &bits, 4); return x; }
)";

// As the generated text has them.
struct ModCell {
  int q_idx, request, head, q_len, kv_len, num_heads;
};
struct ModBox {
  int q_low, q_high, kv_low, kv_high, head_low, head_high, request, q_len, kv_len, num_heads;
};

class Compiled {
 public:
  explicit Compiled(const mods::Modifiers& modifiers) {
    const TemporaryFolder folder;
    const std::string file = folder / "mods";
    std::string text = kPrelude + cuda_source(modifiers).text;
    if (!modifiers.score.empty()) {
      text += "float run_score(const ModCell* c, int kv, float s) { return score_mod(*c, kv, s); }\n";
    }
    if (!modifiers.mask.empty()) {
      text += "int run_mask(const ModCell* c, int kv) { return mask_mod(*c, kv); }\n"
              "int run_coverage(const ModBox* box) { return mask_coverage(*box); }\n";
    }
    std::ofstream(file + ".c") << text;
    built_ = std::system(("cc -O1 -shared -fPIC -o " + file + ".so " + file + ".c -lm").c_str()) == 0;
    if (built_) library_ = dlopen((file + ".so").c_str(), RTLD_NOW);
  }
  ~Compiled() {
    if (library_ != nullptr) dlclose(library_);
  }
  bool ok() const { return library_ != nullptr; }
  template <typename F>
  F* find(const char* name) const { return reinterpret_cast<F*>(dlsym(library_, name)); }

 private:
  bool built_ = false;
  void* library_ = nullptr;
};

#define SKIP_WITHOUT_COMPILER() \
  if (std::system("cc --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no C compiler here"

mods::Cell cell_of(const ModCell& c, int kv, double score) {
  return {.q_idx = c.q_idx, .kv_idx = kv, .request = c.request, .head = c.head, .q_len = c.q_len,
          .kv_len = c.kv_len, .num_heads = c.num_heads, .head_dim = 64, .score = score};
}

TEST(CudaSource, NothingForNoModifiers) {
  EXPECT_TRUE(cuda_source({}).text.empty());
  EXPECT_TRUE(cuda_source({}).defines.empty());
}

TEST(CudaSource, ScoresAreThoseOfTheEvaluator) {
  SKIP_WITHOUT_COMPILER();
  for (const char* text : {"score",
                           "q_idx * kv_idx - 100 * h",
                           "(q_idx - kv_idx) / 8",
                           "(q_idx - kv_idx) % 8",
                           "(kv_idx - q_idx) / -3",
                           "(q_idx - kv_idx) / (h - 1)",
                           "(kv_idx - q_idx) % (h - 1)",
                           "abs(q_idx - kv_idx) * 1000000000",
                           "-(kv_idx * kv_idx)",
                           "min(q_idx, kv_idx, 40) - max(h, kv_idx % 3)",
                           "int(kv_idx == q_idx) - int(kv_idx != h) * 2",
                           "alibi",
                           "softcap(3, alibi) + float(kv_idx) / float(q_idx + 1)",
                           "exp(score) / (1 + exp(score))",
                           "log(abs(score) + 0.001)",
                           "tanh(score * 3)",
                           "sqrt(score * score)",
                           "score < 0 ? -score : score * 2",
                           "(score > 0) == (kv_idx < q_idx) ? 1.5 : score",
                           "b + q_len * 2 - kv_len + num_heads * head_dim",
                           "score > 0 && !(h == 1) || q_idx >= 62 ? 1e-3 : 2147483647"}) {
    mods::Modifiers modifiers;
    modifiers.score = mods::parse_score_modifier(text).value();
    const Compiled compiled(modifiers);
    ASSERT_TRUE(compiled.ok()) << text;
    auto* run = compiled.find<float(const ModCell*, int, float)>("run_score");
    for (int q = 58; q < 64; ++q) {
      for (int kv = 50; kv < 70; ++kv) {
        const ModCell c = {q, 1, q % 4, 7, 90, 6};
        const float score = 0.37f * static_cast<float>(kv - 60) + 0.01f;
        const double want = mods::evaluate(modifiers.score, cell_of(c, kv, score)).real;
        ASSERT_NEAR(run(&c, kv, score), want, 2e-6 * std::max(1.0, std::fabs(want))) << text << " " << q << " " << kv;
      }
    }
  }
}

// Never wrong about a box, and not blind: these masks are decided wherever they can be.
TEST(CudaSource, CoverageHoldsForEveryCell) {
  SKIP_WITHOUT_COMPILER();
  struct Row { const char* mask; int least_decided; };  // of the 64 boxes
  for (const Row row :
       {Row{"causal", 56}, Row{"window(20)", 40}, Row{"chunked(16)", 56}, Row{"prefix_lm(24)", 56},
        Row{"causal && document(20, 40)", 40}, Row{"true", 64}, Row{"false", 64},
        Row{"kv_idx < 16 || q_idx - kv_idx < 5 && causal", 50}, Row{"causal && (q_idx - kv_idx) % 3 == 0", 20},
        Row{"causal && (h < 2 || q_idx - kv_idx < 30)", 20}, Row{"b == 3 ? causal : window(9)", 40},
        Row{"kv_idx >= kv_len - q_len", 56}, Row{"abs(q_idx - kv_idx) <= 8", 30}, Row{"q_idx * 1000000000 < kv_idx", 0},
        Row{"q_idx / 2.0 > kv_idx", 0}, Row{"min(q_idx, kv_idx) / (h - 2) != 3", 0}, Row{"!(kv_idx % 8 < 4)", 0}}) {
    mods::Modifiers modifiers;
    modifiers.mask = mods::parse_mask_modifier(row.mask).value();
    const Compiled compiled(modifiers);
    ASSERT_TRUE(compiled.ok()) << row.mask;
    auto* run = compiled.find<int(const ModCell*, int)>("run_mask");
    auto* coverage = compiled.find<int(const ModBox*)>("run_coverage");
    int decided = 0;
    for (int tile = 0; tile < 64; ++tile) {
      const ModBox box = {tile / 8 * 8, tile / 8 * 8 + 7, tile % 8 * 8, tile % 8 * 8 + 7, 1, 2, 3, 32, 64, 4};
      int shown = 0, cells = 0;
      for (int q = box.q_low; q <= box.q_high; ++q) {
        for (int kv = box.kv_low; kv <= box.kv_high; ++kv) {
          for (int head = box.head_low; head <= box.head_high; ++head) {
            const ModCell c = {q, 3, head, 32, 64, 4};
            const int value = run(&c, kv);
            ASSERT_EQ(value, mods::evaluate(modifiers.mask, cell_of(c, kv, 0)).integer) << row.mask;
            shown += value;
            ++cells;
          }
        }
      }
      const int said = coverage(&box);
      if (said == 0) {
        ASSERT_EQ(shown, 0) << row.mask;
      }
      if (said == 2) {
        ASSERT_EQ(shown, cells) << row.mask;
      }
      decided += said != 1;
    }
    EXPECT_GE(decided, row.least_decided) << row.mask;
  }
}

}  // namespace
}  // namespace warpweave::flex_attention
