#include "capi/gpu_merge.h"

namespace warpweave::capi {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(32 * kWarps) merge_states_kernel(GpuMerge merge) {
  const int lane = threadIdx.x % 32;
  const int64_t task = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (task >= merge.rows * merge.heads) return;
  const int64_t row = task / merge.heads;
  const int head = static_cast<int>(task % merge.heads);
  const float* const lses = merge.lses + row * merge.states * merge.heads + head;
  const float* const outs = merge.outs + (row * merge.states * merge.heads + head) * merge.dim;
  float top = lses[0];
  for (int s = 1; s < merge.states; ++s) top = fmaxf(top, lses[int64_t{s} * merge.heads]);
  float sum = 0;
  if (!isinf(top)) {
    for (int s = 0; s < merge.states; ++s) sum += expf(lses[int64_t{s} * merge.heads] - top);
  }
  const float lse = isinf(top) ? top : top + logf(sum);
  for (int i = lane; i < merge.dim; i += 32) {
    float value = 0;
    for (int s = 0; s < merge.states; ++s) {
      const float part = lses[int64_t{s} * merge.heads];
      // A part that saw nothing counts for nothing, whatever its values are.
      if (part != -INFINITY) value += expf(part - lse) * outs[int64_t{s} * merge.heads * merge.dim + i];
    }
    merge.out[task * merge.dim + i] = value;
  }
  if (merge.lse != nullptr && lane == 0) merge.lse[task] = lse;
}

}  // namespace

cudaError_t launch_merge_states(const GpuMerge& merge, cudaStream_t stream) {
  const int64_t tasks = merge.rows * merge.heads;
  merge_states_kernel<<<static_cast<unsigned>((tasks + kWarps - 1) / kWarps), 32 * kWarps, 0, stream>>>(merge);
  return cudaGetLastError();
}

}  // namespace warpweave::capi
