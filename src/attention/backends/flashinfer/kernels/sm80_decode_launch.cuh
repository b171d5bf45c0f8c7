// How the decode kernel (sm80_decode.cuh) is launched.
#pragma once

#include "attention/backends/flashinfer/kernels/sm80_decode.cuh"
#include "device/cuda/kernel_launch.h"
#include "device/cuda/shared_memory_limit.h"

namespace warpweave::cuda {

template <class C>
using FixedSplitsOf = DecodeConfig<typename C::Element, C::kStorage, C::kDim, C::kColumnTiles, true, true>;

template <class C>
cudaError_t launch_sm80_decode(const AttentionParams& p, const DecodeWorkspace& w, int num_workers,
                               cudaStream_t stream) {
  if constexpr (!C::kFixedSplits) {
    if (w.pieces != nullptr) return launch_sm80_decode<FixedSplitsOf<C>>(p, w, num_workers, stream);
  }
  static SharedMemoryLimit limit;
  if (const cudaError_t error = limit.raise(sm80_decode<C>, C::kSmemBytes); error != cudaSuccess) {
    return error;
  }
  const int lockstep = C::kFixedSplits ? 1 : lockstep_heads(p.num_kv_heads / C::kHeads, num_workers);
  const LaunchShape shape = {.grid = static_cast<unsigned>(num_workers),
                             .block = C::kThreads,
                             .shared_bytes = C::kSmemBytes,
                             .stream = stream};
  return launch_kernel(shape, w.plan_is_older || w.q_ready != nullptr, sm80_decode<C>, p, w, lockstep);
}

}  // namespace warpweave::cuda
