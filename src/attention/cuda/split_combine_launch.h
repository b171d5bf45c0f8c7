// How kernels that merge pieces (split_combine.cuh) are launched.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/cuda/split_combine.cuh"

namespace warpweave::cuda {

// Launches it early: it waits for the kernel before it. `num_sms`: CTAs are some of each.
template <class... Params, class... Args>
cudaError_t launch_combine(void (*kernel)(Params...), int num_sms, cudaStream_t stream, const Args&... args) {
  constexpr int kCtasPerSm = 4;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(kCtasPerSm * num_sms);
  config.blockDim = kCombineThreads;
  config.stream = stream;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, args...);
}

}  // namespace warpweave::cuda
