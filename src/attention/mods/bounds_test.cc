// Block decisions against brute force over every cell, on masks people write and on random ones.
#include <gtest/gtest.h>

#include <random>

#include "attention/mods/bounds.h"
#include "attention/mods/evaluate.h"
#include "attention/mods/parse.h"

namespace warpweave::mods {
namespace {

Coverage brute_force(const Expression& mask, const Box& box) {
  bool any = false, all = true;
  for (int q = box.q_idx.first; q <= box.q_idx.last; ++q) {
    for (int kv = box.kv_idx.first; kv <= box.kv_idx.last; ++kv) {
      for (int h = box.head.first; h <= box.head.last; ++h) {
        const Cell cell = {.q_idx = q, .kv_idx = kv, .head = h, .q_len = box.q_len.first,
                           .kv_len = box.kv_len.first, .num_heads = box.num_heads.first};
        (evaluate(mask, cell).integer ? any : all) = evaluate(mask, cell).integer != 0;
      }
    }
  }
  return all ? Coverage::full : any ? Coverage::partial : Coverage::empty;
}

Box random_box(std::mt19937& random) {
  const auto span = [&random](int from, int to, int longest) {
    const int first = std::uniform_int_distribution(from, to)(random);
    return Span{first, first + std::uniform_int_distribution(0, longest)(random)};
  };
  Box box;
  box.q_idx = span(0, 90, 9);
  box.kv_idx = span(0, 90, 9);
  box.head = span(0, 2, 1);
  const int length = 100 + static_cast<int>(random() % 20);
  box.q_len = box.kv_len = {length, length};
  box.num_heads = {4, 4};
  return box;
}

// Comparisons of affine expressions: every block must be decided.
TEST(Bounds, ExactForAffineComparisons) {
  std::mt19937 random(1);
  for (const char* text :
       {"causal", "q_idx - kv_idx < 17", "kv_idx < 40", "2 * q_idx - 3 * kv_idx + 5 > 0",
        "q_idx + kv_idx - 2 * q_idx <= 0", "-(kv_idx - q_idx) * 2 >= 8 - q_idx", "kv_idx >= kv_len - 30",
        "q_idx / 16 == kv_idx / 16", "document(20, 50)", "q_idx < 1000 && kv_idx >= 10"}) {
    const auto mask = parse_mask_modifier(text);
    ASSERT_TRUE(mask.ok()) << text;
    MaskBounds bounds(*mask);
    for (int i = 0; i < 2000; ++i) {
      const Box box = random_box(random);
      const Coverage got = bounds.classify(box), want = brute_force(*mask, box);
      // An equality of two step functions of different variables is decided unless both vary.
      ASSERT_EQ(got, want) << text << " q " << box.q_idx.first << ".." << box.q_idx.last << " kv "
                           << box.kv_idx.first << ".." << box.kv_idx.last;
    }
  }
}

// Conjunctions of affine comparisons: what people write is decided on aligned blocks.
TEST(Bounds, DecidesTheBlocksOfCommonMasks) {
  for (const char* text : {"causal", "window(100)", "chunked(128)", "prefix_lm(70)", "causal && document(64, 200)"}) {
    const auto mask = parse_mask_modifier(text);
    MaskBounds bounds(*mask);
    for (int q = 0; q < 512; q += 16) {
      for (int kv = 0; kv < 512; kv += 16) {
        Box box;
        box.q_idx = {q, q + 15};
        box.kv_idx = {kv, kv + 15};
        ASSERT_EQ(bounds.classify(box), brute_force(*mask, box)) << text << " " << q << " " << kv;
      }
    }
  }
}

class RandomText {
 public:
  explicit RandomText(uint32_t seed) : random_(seed) {}
  std::string condition(int depth) {
    switch (depth <= 0 ? 0 : pick(7)) {
      case 0: return number(depth - 1) + one_of({" < ", " <= ", " > ", " >= ", " == ", " != "}) + number(depth - 1);
      case 1: return "(" + condition(depth - 1) + " && " + condition(depth - 1) + ")";
      case 2: return "(" + condition(depth - 1) + " || " + condition(depth - 1) + ")";
      case 3: return "!(" + condition(depth - 1) + ")";
      case 4: return "(" + condition(depth - 1) + " ? " + condition(depth - 1) + " : " + condition(depth - 1) + ")";
      case 5: return one_of({"causal", "window(13)", "chunked(9)", "prefix_lm(40)", "document(7, 31, 60)"});
      default: return real(depth - 1) + one_of({" < ", " <= ", " == ", " != "}) + real(depth - 1);
    }
  }

 private:
  int pick(int n) { return static_cast<int>(random_() % n); }
  std::string one_of(std::vector<std::string> texts) { return texts[pick(static_cast<int>(texts.size()))]; }
  std::string number(int depth) {
    if (depth <= 0 || pick(4) == 0) {
      return one_of({"q_idx", "kv_idx", "h", "kv_len", "(q_idx - kv_idx)", std::to_string(pick(60) - 20), "1000000"});
    }
    const std::string a = number(depth - 1), b = number(depth - 1);
    switch (pick(8)) {
      case 0: return "(" + a + " + " + b + ")";
      case 1: return "(" + a + " - " + b + ")";
      case 2: return "(" + a + " * " + b + ")";
      case 3: return "(" + a + " / (" + b + " + h))";
      case 4: return "(" + a + " % " + std::to_string(1 + pick(20)) + ")";
      case 5: return one_of({"abs(", "-("}) + a + ")";
      case 6: return one_of({"min(", "max("}) + a + ", " + b + ")";
      default: return "(" + condition(depth - 1) + " ? " + a + " : " + b + ")";
    }
  }
  std::string real(int depth) {
    if (depth <= 0) return one_of({"q_idx * 0.5", "kv_idx / 7.0", "3.25", "0.1 * (q_idx - kv_idx)", "alibi_slope(h)"});
    const std::string a = real(depth - 1), b = real(depth - 1);
    switch (pick(6)) {
      case 0: return one_of({"exp(", "log(", "tanh(", "sqrt(", "abs(", "-("}) + a + ")";
      case 1: return "(" + a + " / " + b + ")";
      case 2: return one_of({"min(", "max("}) + a + ", " + b + ")";
      case 3: return "(" + a + " * " + b + ")";
      default: return "(" + a + one_of({" + ", " - "}) + b + ")";
    }
  }
  std::mt19937 random_;
};

TEST(Bounds, NeverSkipsAVisibleCell) {
  std::mt19937 random(7);
  int decided = 0, parsed = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    const std::string text = RandomText(seed).condition(1 + seed % 4);
    const auto mask = parse_mask_modifier(text);
    if (!mask.ok()) continue;  // a constant divisor of zero, or too long
    ++parsed;
    MaskBounds bounds(*mask);
    for (int i = 0; i < 5; ++i) {
      const Box box = random_box(random);
      const Coverage got = bounds.classify(box);
      if (got == Coverage::partial) continue;
      ++decided;
      ASSERT_EQ(got, brute_force(*mask, box))
          << text << " q " << box.q_idx.first << ".." << box.q_idx.last << " kv "
          << box.kv_idx.first << ".." << box.kv_idx.last << " h " << box.head.first;
    }
  }
  EXPECT_GT(parsed, 3000);
  EXPECT_GT(decided, 5000);
}

TEST(Bounds, ProvesThatAMaskIsCausal) {
  for (const char* text : {"causal", "window(5)", "chunked(100)", "causal && document(5)", "kv_idx < q_idx",
                           "q_idx - kv_idx >= 3 || kv_idx == q_idx", "kv_idx < 4 && causal", "false"}) {
    EXPECT_TRUE(never_sees_future(*parse_mask_modifier(text))) << text;
  }
  for (const char* text : {"true", "prefix_lm(10)", "document(5)", "kv_idx <= q_idx + 1", "!causal",
                           "abs(q_idx - kv_idx) < 5", "kv_idx < kv_len"}) {
    EXPECT_FALSE(never_sees_future(*parse_mask_modifier(text))) << text;
  }
}

}  // namespace
}  // namespace warpweave::mods
