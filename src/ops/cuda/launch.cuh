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
#include "device/cuda/kernel_launch.h"

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

template <typename... Parameters, typename... Arguments>
void launch_dependent(const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  launch_kernel(shape, has_dependent_launch(), kernel, std::forward<Arguments>(arguments)...);
}

}  // namespace warpweave::gpu
