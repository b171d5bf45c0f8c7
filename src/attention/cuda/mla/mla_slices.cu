#include "attention/cuda/mla/mla_slices.h"

#include "attention/cuda/mla/mla_slices.cuh"

namespace warpweave::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    mla_slices(const __grid_constant__ MlaParams p, MlaSlices slices, int count) {
  mla_cut(p, slices, count, static_cast<int>(blockIdx.x * kThreads + threadIdx.x));
}

}  // namespace

cudaError_t launch_mla_slices(const MlaParams& p, int num_tokens, const MlaSlices& slices, cudaStream_t stream) {
  const int count = MlaSlices::count(num_tokens, p.num_requests, slices.slice_tokens);
  mla_slices<<<count / kThreads + 1, kThreads, 0, stream>>>(p, slices, count);
  return cudaPeekAtLastError();
}

}  // namespace warpweave::cuda
