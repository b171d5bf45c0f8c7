// Linear attention on the host: extend, decode and target verify of one layer, in the shape of Qwen3-Next (16 k heads,
// 32 v heads, dims 128, f32 state) unless told otherwise. GFLOP/s of the chunk form count its GEMMs; GB/s of decode
// count the state read and written.
//   linear_attention_bench [--threads N] [--repeats N] [--k-heads N] [--v-heads N] [--kda] [--bf16-state] [--tier NAME]
// bench/linear_attention_torch.py times the same with transformers' torch code.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "linear/cpu/cpu_linear_attn.h"
#include "ops/aligned_buffer.h"

namespace warpweave {
namespace {

constexpr int kDim = 128;

struct Options {
  int threads = available_cpus(), repeats = 5, k_heads = 16, v_heads = 32;
  bool kda = false, bf16_state = false;
  CpuTier tier = cpu_linear_tier();
};

class Layer {
 public:
  Layer(const Options& options, int requests, int tokens)
      : shape_{options.kda ? LinearAttnKind::kda : LinearAttnKind::gdn, options.k_heads, options.v_heads, kDim, kDim},
        team_(options.threads), kernel_(make_cpu_linear_attn(team_, options.tier)) {
    const int64_t rows = int64_t{requests} * tokens;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& x, int64_t count) {
      x.resize(count);
      for (float& value : x) value = normal(random);
    };
    fill(q_, rows * shape_.k_heads * kDim);
    fill(k_, rows * shape_.k_heads * kDim);
    fill(v_, rows * shape_.v_heads * kDim);
    fill(g_, rows * shape_.v_heads * shape_.decay_dim());
    for (float& g : g_) g = -0.1f * std::abs(g);
    beta_.assign(rows * shape_.v_heads, 0.5f);
    out_.resize(v_.size());
    const DType dtype = options.bf16_state ? DType::bf16 : DType::f32;
    const int64_t head = int64_t{kDim} * kDim;
    state_ = AlignedBuffer::allocate(requests * shape_.v_heads * head * (options.bf16_state ? 2 : 4));
    for (int r = 0; r < requests; ++r) slots_.push_back(r), indptr_.push_back(r * tokens);
    indptr_.push_back(static_cast<int32_t>(rows));
    batch_ = {.num_requests = requests, .num_tokens = rows, .max_q_tokens = tokens,
              .q_indptr = tokens == 1 ? nullptr : indptr_.data(), .slots = slots_.data()};
    call_.shape = shape_;
    call_.batch = &batch_;
    const auto view = [](const std::vector<float>& x, int heads, int dim) {
      return LinearAttnRows{x.data(), DType::f32, int64_t{heads} * dim, dim};
    };
    call_.q = view(q_, shape_.k_heads, kDim);
    call_.k = view(k_, shape_.k_heads, kDim);
    call_.v = view(v_, shape_.v_heads, kDim);
    call_.g = view(g_, shape_.v_heads, shape_.decay_dim());
    call_.beta = view(beta_, shape_.v_heads, 1);
    call_.l2norm = true;
    call_.scale = 0.088388f;
    call_.state = {state_.data(), dtype, shape_.v_heads * head, head};
    call_.out = out_.data();
    call_.out_token_stride = shape_.v_heads * kDim;
    call_.workspace_bytes = kernel_->workspace_bytes(shape_, {requests, rows, 0});
    workspace_ = AlignedBuffer::allocate(call_.workspace_bytes);
    call_.workspace = workspace_.data();
  }

  template <typename Body>
  double best_ms(int repeats, Body body) {
    body();
    double best = 1e30;
    for (int i = 0; i < repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      body();
      best = std::min(best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
    }
    return best;
  }

  LinearAttnKernelBase& kernel() { return *kernel_; }
  const LinearAttnCall& call() const { return call_; }

 private:
  LinearAttnShape shape_;
  ThreadTeam team_;
  std::unique_ptr<LinearAttnKernelBase> kernel_;
  std::vector<float> q_, k_, v_, g_, beta_, out_;
  AlignedBuffer state_, workspace_;
  std::vector<int32_t> slots_, indptr_;
  LinearAttnBatch batch_;
  LinearAttnCall call_;
};

void run(const Options& o) {
  std::printf("%s, %s, %d threads, %s, %d k heads, %d v heads, dims %d, %s state, best of %d\n",
              cpu_info().model_name.c_str(), std::string(cpu_tier_name(o.tier)).c_str(), o.threads, o.kda ? "KDA" : "GDN",
              o.k_heads, o.v_heads, kDim, o.bf16_state ? "bf16" : "f32", o.repeats);
  for (auto [requests, tokens] : {std::pair{1, 4}, {1, 8}, {1, 16}, {1, 32}, {1, 64}, {1, 512}, {1, 2048}, {8, 256}}) {
    Layer layer(o, requests, tokens);
    const double ms = layer.best_ms(o.repeats, [&] { layer.kernel().extend(layer.call()); });
    const double flops = 8.0 * requests * tokens * o.v_heads * kDim * kDim;
    std::printf("extend %d x %-5d %9.3f ms  %9.0f tokens/s  %6.1f GFLOP/s\n", requests, tokens, ms,
                requests * tokens / ms * 1e3, flops / ms / 1e6);
  }
  for (int batch : {1, 8, 64}) {
    Layer layer(o, batch, 1);
    const double ms = layer.best_ms(o.repeats * 4, [&] { layer.kernel().decode(layer.call()); });
    const double bytes = 2.0 * batch * o.v_heads * kDim * kDim * (o.bf16_state ? 2 : 4);
    std::printf("decode batch %-4d %8.3f ms  %6.1f GB/s\n", batch, ms, bytes / ms / 1e6);
  }
  for (int nodes : {4, 16, 64}) {
    Layer layer(o, 8, nodes);
    const double ms = layer.best_ms(o.repeats, [&] { layer.kernel().target_verify(layer.call()); });
    std::printf("verify 8 x %-3d nodes %7.3f ms\n", nodes, ms);
  }
}

}  // namespace
}  // namespace warpweave

int main(int argc, char** argv) {
  using namespace warpweave;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const auto number = [&] { return i + 1 < argc ? std::stoi(argv[++i]) : 0; };
    if (flag == "--threads") options.threads = number();
    else if (flag == "--repeats") options.repeats = number();
    else if (flag == "--k-heads") options.k_heads = number();
    else if (flag == "--v-heads") options.v_heads = number();
    else if (flag == "--kda") options.kda = true;
    else if (flag == "--bf16-state") options.bf16_state = true;
    else if (flag == "--tier" && i + 1 < argc) {
      const std::string name = argv[++i];
      for (CpuTier tier : kCpuLinearTiers) {
        if (cpu_tier_name(tier) == name && tier <= cpu_info().tier) options.tier = tier;
      }
    } else {
      std::fprintf(stderr, "unknown flag %s\n", flag.c_str());
      return 1;
    }
  }
  run(options);
}
