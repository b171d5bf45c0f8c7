// Launches that <<<>>> cannot say: of a kernel that may begin before the one before it in the stream has ended
// (programmatic dependent launch, sm_90 and later), or whose CTAs form clusters. Only for files of builds with GPU
// kernels. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace warpweave {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;  // neighbouring CTAs that form one
};

// `early`: before the kernel before it has ended, for which it then waits itself.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_kernel(const LaunchShape& shape, bool early, void (*kernel)(Parameters...),
                          Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  cudaLaunchAttribute attributes[2]{};
  if (early) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {shape.cluster, 1, 1};
  }
  config.attrs = attributes;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace warpweave
