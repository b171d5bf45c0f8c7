// Programmatic dependent launch: a kernel may begin while the one before it ends, so that launch
// latency and first loads of weights hide there.
//
// A kernel launched with launch_dependent() calls start_successor() first of all (the successor itself
// waits for this kernel's end, so several kernels may stand ready), and wait_for_predecessor() before
// it touches anything another kernel writes or still reads. Every block of it waits, or ends without
// having touched such memory. Before sm_90 all three are plain launches and nothing.
//
// One kind of memory is read before the wait: a step's arrays (positions, slots), which a plain launch writes. The kernel
// after it, embedding, calls start_successor() only behind its wait, so that whatever starts later finds them written.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "attention/cuda/ptx.h"
#include "device/cuda/compute_capability.h"

namespace warpweave::gpu {

__device__ __forceinline__ void wait_for_predecessor() { ptx::grid_dependency_wait(); }
__device__ __forceinline__ void start_successor() { ptx::launch_dependents(); }

inline bool has_dependent_launch() {
  static const bool value = current_compute_capability() >= 90;
  return value;
}

inline int num_sms() {
  static const int value = [] {
    int sms = 1;
    read_multiprocessor_count(sms);
    return sms;
  }();
  return value;
}

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  unsigned cluster = 1;  // neighbouring blocks that form one
};

template <typename... Parameters, typename... Arguments>
void launch_dependent(const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = shape.cluster;
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  config.attrs = attributes;
  config.numAttrs = !has_dependent_launch() ? 0 : shape.cluster > 1 ? 2 : 1;
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace warpweave::gpu
