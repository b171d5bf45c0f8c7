// Prefix sums over one CTA of kPlanThreads threads.
#pragma once

namespace warpweave::cuda {

inline constexpr int kPlanThreads = 1024;

// Inclusive; `warp_sums` holds 32 values in shared memory. Every thread calls it.
__device__ inline long long block_inclusive_scan(long long value, long long* warp_sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int step = 1; step < 32; step *= 2) {
    const long long other = __shfl_up_sync(~0u, value, step);
    if (lane >= step) value += other;
  }
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    long long sum = warp_sums[lane];
    for (int step = 1; step < 32; step *= 2) {
      const long long other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    warp_sums[lane] = sum;
  }
  __syncthreads();
  if (warp > 0) value += warp_sums[warp - 1];
  __syncthreads();
  return value;
}

}  // namespace warpweave::cuda
