// How the decode kernel (sm80_decode.cuh) is launched.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/backends/flashinfer/kernels/sm80_decode.cuh"
#include "device/cuda/shared_memory_limit.h"

namespace warpweave::cuda {

// `early`: before the kernel before it has ended.
template <class... Params, class... Args>
cudaError_t launch_decode_kernel(void (*kernel)(Params...), dim3 grid, dim3 threads, int smem_bytes, bool early,
                                 cudaStream_t stream, const Args&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = threads;
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  cudaLaunchAttribute programmatic{};
  programmatic.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  programmatic.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &programmatic;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

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
  const int abreast = C::kFixedSplits ? 1 : heads_abreast(p.num_kv_heads / C::kHeads, num_workers);
  return launch_decode_kernel(sm80_decode<C>, num_workers, C::kThreads, C::kSmemBytes,
                              w.plan_is_older || w.q_ready != nullptr, stream, p, w, abreast);
}

}  // namespace warpweave::cuda
