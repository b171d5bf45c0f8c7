// What the kernels for few rows share: small_gemm.cu and small_gemm_fp8.cu.
#pragma once

#include "device/cuda/ptx.h"
#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {

constexpr int kUnitRows = 16;  // of weights, on the M side of one mma

// A warp's steps in order: its turns of the depth of one group of C::kOutUnits units after the other. A CTA has a range
// of `units`.
template <class C>
struct SmallGemmWalk {
  int unit, end_unit, k;

  __device__ SmallGemmWalk(int units)
      : unit(static_cast<int>(int64_t{units} * blockIdx.x / gridDim.x)),
        end_unit(static_cast<int>(int64_t{units} * (blockIdx.x + 1) / gridDim.x)), k(first_k()) {}
  static __device__ int first_k() { return static_cast<int>(threadIdx.x) / 32 * C::kStepDepth; }
  __device__ int rows() const { return min(C::kOutUnits, end_unit - unit) * kUnitRows; }
  __device__ void next_group() {
    unit += C::kOutUnits;
    k = first_k();
  }
  // On to the next group where this one's depth has ended; false: there is none.
  __device__ bool find(int depth) {
    while (k >= depth && unit < end_unit) next_group();
    return unit < end_unit;
  }
  __device__ void next_step() { k += C::kWarps * C::kStepDepth; }
};

// A warp's ring of C::kStages stages at `memory`. Loader has load_weights(args, stage) and load_inputs(args, stage), which
// bring the next step's, the second one cp.async group a stage.
template <class C, class Loader>
class SmallGemmRing {
 public:
  template <class Args>
  __device__ SmallGemmRing(const Args& a, ptx::u32 memory) : loader_(a, memory), memory_(memory) {}

  // Weights before the predecessor has ended, inputs after it.
  template <class Args>
  __device__ void fill(const Args& a) {
    for (int stage = 0; stage < C::kStages; ++stage) loader_.load_weights(a, stage);
    wait_for_predecessor();
    for (int stage = 0; stage < C::kStages; ++stage) loader_.load_inputs(a, stage);
  }
  // add(stage, k): of every step of a group, in order.
  template <class Args, class Add>
  __device__ __forceinline__ void each_step(const Args& a, SmallGemmWalk<C> at, const Add& add) {
    for (; at.k < a.depth; at.next_step()) {
      ptx::cp_async_wait<C::kStages - 1>();
      __syncwarp();
      add(memory_ + stage_ * C::kStageBytes, at.k);
      __syncwarp();
      loader_.load_weights(a, stage_);
      loader_.load_inputs(a, stage_);
      stage_ = stage_ + 1 == C::kStages ? 0 : stage_ + 1;
    }
  }

 private:
  Loader loader_;
  const ptx::u32 memory_;
  int stage_ = 0;
};

// A warp's sums of C::kUnits units and C::kTokenTiles tiles of 8 input rows, as mma.m16n8k16 leaves them in
// registers, to its part of `partial`, [warps][C::kRows][C::kPartialStride], where the CTA adds them up.
template <class C>
__device__ void share(const float (&sum)[C::kUnits][C::kTokenTiles][4], float* partial) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
  for (int u = 0; u < C::kUnits; ++u) {
#pragma unroll
    for (int t = 0; t < C::kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = u * kUnitRows + lane / 4 + i / 2 * 8, token = t * 8 + lane % 4 * 2 + i % 2;
        partial[(warp * C::kRows + row) * C::kPartialStride + token] = sum[u][t][i];
      }
    }
  }
}

}  // namespace warpweave::gpu
