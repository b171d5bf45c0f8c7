// For tests: a CUDA kernel of one CTA on the host. Include this before the kernel's file: it gives that file's CUDA words a
// meaning. Every thread of the CTA is a fiber that runs until it has to wait for others, a warp as far ahead of the next
// one as barriers let it: a test sees one order at a time and may ask for several. Where a barrier is missing, some of
// them give a wrong result.
//
// What kernels may use: threadIdx.x, __shared__ (kept from run to run: nothing is cleared), __syncthreads(), warps'
// shuffles by all 32 threads, atomics. One CTA at a time, on one thread of the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>

namespace warpweave::host_cta {

enum class Order { ascending, descending, random };

// Runs `kernel` as every one of `threads` threads (a multiple of 32). Aborts where threads wait for each other for ever.
void run(int threads, Order order, const std::function<void()>& kernel);

// Of the thread that runs.
struct Index {
  unsigned x = 0;
};
const Index& thread_index();
void sync_threads();
// Every thread of a warp gives `bytes` of `value` and has back those of lane `lane - step`, or its own.
void shuffle_up(void* value, size_t bytes, unsigned step);

template <class T>
T shuffled_up(T value, unsigned step) {
  shuffle_up(&value, sizeof(value), step);
  return value;
}

}  // namespace warpweave::host_cta

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(threads)
#define threadIdx (::warpweave::host_cta::thread_index())
#define __syncthreads() ::warpweave::host_cta::sync_threads()
#define __shfl_up_sync(mask, value, step) ::warpweave::host_cta::shuffled_up(value, step)

namespace warpweave::cuda {

using std::max;
using std::min;

template <class T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at += value;
  return before;
}
template <class T>
void atomicMin(T* at, T value) { *at = std::min(*at, value); }
template <class T>
void atomicMax(T* at, T value) { *at = std::max(*at, value); }

}  // namespace warpweave::cuda
