// Prefill of flex_attention under different modifiers, in milliseconds and GFLOP/s of the visible
// cells; and intel_amx on the causal shapes beside it.
//   flex_attention_bench [--threads N] [--repeats N] [--tokens N]
// bench/flex_attention_torch.py times the same with torch.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "attention/mods/evaluate.h"
#include "attention/mods/parse.h"
#include "attention/registry.h"
#include "base/float16.h"
#include "base/threads.h"
#include "device/cpu/cpu_info.h"

namespace warpweave {
namespace {

constexpr int kQueryHeads = 32, kKvHeads = 8, kHeadDim = 128, kPageSize = 16;

struct Modified {
  const char *score, *mask;
};
constexpr Modified kModified[] = {
    {"", ""},       {"", "causal"},           {"", "window(1024)"}, {"", "chunked(1024)"},
    {"alibi", ""},  {"softcap(30)", ""},      {"", "true"},         {"", "causal && document(1000, 3000, 5000)"},
    {"", "causal && (q_idx - kv_idx) % 3 == 0"},
};

class Bench {
 public:
  explicit Bench(int tokens) : tokens_(tokens) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const int pages = (tokens + kPageSize - 1) / kPageSize;
    for (std::vector<uint16_t>* pool : {&k_, &v_}) {
      pool->resize(static_cast<size_t>(pages) * kPageSize * kKvHeads * kHeadDim);
      for (uint16_t& x : *pool) x = f32_to_bf16(normal(random));
    }
    q_.resize(static_cast<size_t>(tokens) * kQueryHeads * kHeadDim);
    for (float& x : q_) x = normal(random);
    out_.resize(q_.size());
    page_table_.resize(pages);
    std::iota(page_table_.begin(), page_table_.end(), 0);
    std::shuffle(page_table_.begin(), page_table_.end(), random);
    batch_.mode = ForwardMode::extend;
    batch_.num_reqs = 1;
    batch_.num_tokens = batch_.max_q_len = batch_.max_kv_len = tokens;
    batch_.page_size = kPageSize;
    batch_.q_indptr = q_indptr_ = {0, tokens};
    batch_.kv_lens = kv_lens_ = {tokens};
    batch_.page_table = page_table_;
    batch_.page_table_stride = pages;
  }

  double milliseconds(AttentionBackend& backend, int repeats) {
    AttentionCall call;
    call.num_q_heads = kQueryHeads;
    call.num_kv_heads = kKvHeads;
    call.head_dim = call.v_head_dim = kHeadDim;
    call.scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
    call.q = q_.data();
    call.q_token_stride = call.out_token_stride = kQueryHeads * kHeadDim;
    call.out = out_.data();
    call.k.data = k_.data();
    call.k.token_stride = kKvHeads * kHeadDim;
    call.k.page_stride = call.k.token_stride * kPageSize;
    call.k.head_stride = kHeadDim;
    call.v = call.k;
    call.v.data = v_.data();
    std::vector<double> times;
    for (int i = 0; i <= repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      if (!backend.init_forward_metadata(batch_).ok()) std::abort();
      if (!backend.forward_extend(batch_, call).ok()) std::abort();
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
      if (i > 0) times.push_back(took.count());
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }

  double visible_flops(const mods::Modifiers& modifiers) const {
    double cells = 0.5 * tokens_ * (tokens_ + 1.0);
    if (!modifiers.mask.empty()) {
      constexpr int kStep = 13;  // a sample of rows
      cells = 0;
      for (int q = kStep / 2; q < tokens_; q += kStep) {
        for (int kv = 0; kv < tokens_; ++kv) {
          cells += mods::evaluate(modifiers.mask, {.q_idx = q, .kv_idx = kv, .kv_len = tokens_}).integer;
        }
      }
      cells *= kStep;
    }
    return cells * kQueryHeads * kHeadDim * 4;
  }

 private:
  int tokens_;
  std::vector<uint16_t> k_, v_;
  std::vector<float> q_, out_;
  std::vector<int32_t> page_table_, q_indptr_, kv_lens_;
  ForwardBatch batch_;
};

int bench_main(int argc, char** argv) {
  int threads = available_cpus(), repeats = 3;
  std::vector<int> sizes = {2048, 8192};
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--threads") threads = std::stoi(value);
    if (flag == "--repeats") repeats = std::stoi(value);
    if (flag == "--tokens") sizes = {std::stoi(value)};
  }
  ThreadTeam team(threads, true);
  std::printf("%s, %d threads, bf16 KV, heads %d/%d d %d\n", cpu_info().model_name.c_str(), threads,
              kQueryHeads, kKvHeads, kHeadDim);
  for (int tokens : sizes) {
    Bench bench(tokens);
    const auto show = [&](const char* backend, const std::string& what, const mods::Modifiers& m, double ms) {
      std::printf("%-14s %5d  %-44s %9.2f ms  %7.1f GFLOP/s visible\n", backend, tokens, what.c_str(),
                  ms, bench.visible_flops(m) / ms / 1e6);
    };
    const auto plain = create_backend("intel_amx", {.team = &team});
    show("intel_amx", "causal", {}, bench.milliseconds(**plain, repeats));
    for (const Modified& modified : kModified) {
      const auto modifiers = mods::parse_modifiers({.score = modified.score, .mask = modified.mask, .parameters = {}});
      const auto backend = create_backend("flex_attention", {.team = &team, .modifiers = &*modifiers});
      std::string what = std::string("score: ") + modified.score + " mask: " + modified.mask;
      show("flex_attention", what, *modifiers, bench.milliseconds(**backend, repeats));
    }
  }
  return 0;
}

}  // namespace
}  // namespace warpweave

int main(int argc, char** argv) { return warpweave::bench_main(argc, argv); }
