#include "linear/cpu/cpu_linear_attn.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdlib>

#include "linear/cpu/head_task.h"

namespace warpweave {
namespace {

constexpr LinearAttnKernelCaps kCaps = {.name = "cpu",
                                        .gdn = true,
                                        .kda = true,
                                        .decode = true,
                                        .extend = true,
                                        .verify_chain = true,
                                        .verify_tree = true,
                                        .bf16_state = true,
                                        .checkpoints = true,
                                        .deterministic = true};

// Decayed states and products of decays reach denormal numbers, which some CPUs compute a hundred times slower.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // flush to zero, read as zero
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  FlushDenormals() {}
#endif
};

class CpuLinearAttn : public LinearAttnKernelBase {
 public:
  CpuLinearAttn(ThreadTeam& team, const LinearCpuKernels& kernels) : team_(team), kernels_(kernels) {}

  const LinearAttnKernelCaps& caps() const override { return kCaps; }

  size_t workspace_bytes(const LinearAttnShape& shape, const LinearAttnLimits& limits) const override {
    return team_.size() * LinearHeadScratch::floats(shape, limits.conv_width, has_tiles()) * sizeof(float);
  }

  void decode(const LinearAttnCall& call) override { run(call, &LinearHeadTask::decode); }
  void extend(const LinearAttnCall& call) override { run(call, &LinearHeadTask::advance); }
  void target_verify(const LinearAttnCall& call) override {
    assert(call.batch->max_q_tokens <= kLinearAttnMaxVerifyNodes);
    run(call, &LinearHeadTask::verify);
  }
  void commit(const LinearAttnCall& call) override { run(call, &LinearHeadTask::commit); }

 private:
  using TaskFn = void (LinearHeadTask::*)(int request, int k_head);

  void run(const LinearAttnCall& call, TaskFn task) {
    const int conv_width = call.conv != nullptr ? call.conv->width : 0;
    const size_t share = LinearHeadScratch::floats(call.shape, conv_width, has_tiles());
    assert(call.workspace_bytes >= share * sizeof(float) * team_.size());
    const int64_t tasks = int64_t{call.batch->num_requests} * call.shape.k_heads;
    std::atomic<int64_t> next = 0;
    const auto work = [&](int member, int) {
      const FlushDenormals flush;
      float* const memory = static_cast<float*>(call.workspace) + member * share;
      const LinearHeadScratch scratch(call.shape, conv_width, has_tiles(), memory);
      LinearHeadTask head(call, kernels_, scratch);
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
        (head.*task)(static_cast<int>(i / call.shape.k_heads), static_cast<int>(i % call.shape.k_heads));
      }
    };
    tasks <= 1 ? work(0, 1) : team_.run(work);
  }

  bool has_tiles() const { return kernels_.tiles != nullptr; }

  ThreadTeam& team_;
  const LinearCpuKernels& kernels_;
};

}  // namespace

const LinearCpuKernels& cpu_linear_kernels(CpuTier tier) {
#if defined(__x86_64__)
  static const LinearCpuKernels amx = [] {
    LinearCpuKernels kernels = kLinearAttnAvx512;
    kernels.tiles = &kLinearAttnAmxTiles;
    return kernels;
  }();
  if (tier >= CpuTier::amx_bf16) return amx;
  if (tier >= CpuTier::avx512) return kLinearAttnAvx512;
  if (tier == CpuTier::avx2) return kLinearAttnAvx2;
#endif
  return kLinearAttnScalar;
}

// AMX's tiles lose: prompts of 2,048 tokens took 136 ms with them on a Xeon (one thread, GDN, f32, 2026-11-30) and 127
// without, of KDA with 16-bit states 181 and 154. What was reckoned (tile_gemm.h) does not hold there.
CpuTier cpu_linear_tier() {
  const char* const asked = std::getenv("WARPWEAVE_CPU_TIER");
  if (asked != nullptr && asked == cpu_tier_name(CpuTier::amx_bf16)) return cpu_info().tier;
  return std::min(cpu_info().tier, CpuTier::avx512_bf16);
}

std::unique_ptr<LinearAttnKernelBase> make_cpu_linear_attn(ThreadTeam& team, CpuTier tier) {
  return make_cpu_linear_attn(team, cpu_linear_kernels(tier));
}
std::unique_ptr<LinearAttnKernelBase> make_cpu_linear_attn(ThreadTeam& team, const LinearCpuKernels& kernels) {
  return std::make_unique<CpuLinearAttn>(team, kernels);
}

std::vector<LinearAttnBackend> cpu_linear_attn_backends(ThreadTeam& team) {
  const auto create = [&team] { return make_cpu_linear_attn(team); };
  return {{"cpu", &kCaps, create}};
}

}  // namespace warpweave
