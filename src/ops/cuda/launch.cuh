// Programmatic dependent launch: a kernel may begin while the one before it ends, so that launch
// latency and first loads of weights hide there.
//
// A kernel launched with launch_dependent() calls start_successor() first of all (the successor itself
// waits for this kernel's end, so several kernels may stand ready), and wait_for_predecessor() before
// it touches anything another kernel writes or still reads. Every block of it waits, or ends without
// having touched such memory. Before sm_90 all three are plain launches and nothing.
//
// Three kinds of memory are read before the wait, and kernels between who writes them and who reads them so early call
// start_successor() only behind their own wait, so that whatever starts later finds them written:
//   a step's arrays (positions, slots), which a plain launch writes: embedding, the kernel after it
//   the rows that early experts multiply (experts.h): the router's GEMM, which settles (gemm.h)
//   the plan of experts, where plan_settled (experts.h) says so: spread_rows(), code_rows() to places, the experts' GEMMs
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "device/cuda/compute_capability.h"
#include "device/cuda/kernel_launch.h"
#include "device/cuda/ptx.h"

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
