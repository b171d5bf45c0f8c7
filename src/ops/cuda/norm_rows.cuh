// How RMS norms sum a row: what elementwise.cu and expert_bulk.cu share.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/cluster.cuh"
#include "ops/cuda/types.cuh"

namespace warpweave::gpu {

// How a row is summed, whatever the kernel: as by kNormThreads threads, or 128 of narrow rows, each with packs of 4 elements
// that many packs apart, warp by warp. So a row's bits never depend on how many rows there are.
constexpr int kNormThreads = 512, kNarrowThreads = 128;
enum class Added : uint8_t { nothing, partials, experts };  // to a row, before its norm

// Each of a row's kCluster CTAs has neighbouring warps of the kSummed threads, a thread kShare of them a CTA apart. kPacks
// packs of each stay in registers; kRest: the row has more, which are read twice.
template <int kSummed, int kShareOf, int kClusterOf, int kPacksOf, Added kAddedOf, bool kRestOf = false>
struct NormShape {
  static constexpr int kShare = kShareOf, kCluster = kClusterOf, kPacks = kPacksOf;
  static constexpr Added kAdded = kAddedOf;
  static constexpr bool kAdds = kAdded != Added::nothing, kRest = kRestOf;
  static constexpr int kThreads = kSummed / kShare / kCluster, kWarps = kThreads / 32, kSums = kSummed / 32;
  static constexpr int kStep = 4 * kSummed;
  static constexpr bool kWeightsFirst = kPacks * kShare <= 4 || kCluster > 1;  // where registers are left
  // More registers where packs are many; experts' sums wait for memory, so that up to 4 packs leave room for another CTA.
  static constexpr int kPacksOfTwo = kAdded == Added::experts ? 4 : 2;
  static constexpr int kBlocksOfSm = kThreads < 256 || kRest || (kPacks > kPacksOfTwo && kAdds) ? 1 : kShare > 1 ? 4 : 2;
  static_assert(!kAdds || kShare == 1);

  static __device__ __forceinline__ int column(int pack, int share) {
    const int rank = kCluster > 1 ? blockIdx.x % kCluster : 0;
    return pack * kStep + ((rank * kShare + share) * kThreads + static_cast<int>(threadIdx.x)) * 4;
  }
};

// Calls visit(pack, share) for all that a thread has in registers.
template <class S, typename Visit>
__device__ __forceinline__ void for_packs(const Visit& visit) {
#pragma unroll
  for (int pack = 0; pack < S::kPacks; ++pack) {
#pragma unroll
    for (int share = 0; share < S::kShare; ++share) visit(pack, share);
  }
}

// Calls visit(pack, share, column) for what is in registers of a row of `cols` columns.
template <class S, typename Visit>
__device__ __forceinline__ void for_columns(int cols, const Visit& visit) {
  for_packs<S>([&](int pack, int share) {
    if (S::column(pack, share) < cols) visit(pack, share, S::column(pack, share));
  });
}

// Adds an expert's result of a row, times its weight, to what is in registers.
template <class S, typename T>
__device__ __forceinline__ void add_expert(const T* result, float weight, int cols, float (&kept)[S::kPacks][S::kShare][4]) {
  for_columns<S>(cols, [&](int pack, int share, int i) {
    float value[4];
    load_f32(result + i, value);
#pragma unroll
    for (int c = 0; c < 4; ++c) kept[pack][share][c] += weight * value[c];
  });
}

// The row's sum of the threads' sums, for every thread of its CTAs. Calls meanwhile() before it waits.
template <class S, typename Meanwhile>
__device__ __forceinline__ float sum_row(const float (&sum)[S::kShare], float (&sums)[S::kSums], uint64_t& arrived,
                                         const Meanwhile& meanwhile) {
  const int lane = threadIdx.x % 32, rank = S::kCluster > 1 ? blockIdx.x % S::kCluster : 0;
#pragma unroll
  for (int share = 0; share < S::kShare; ++share) {
    const float of_warp = warp_sum(sum[share]);
    float* const place = &sums[(rank * S::kShare + share) * S::kWarps + threadIdx.x / 32];
    if constexpr (S::kCluster > 1) {
      if (lane < S::kCluster) cluster::send(place, &arrived, lane, of_warp);
    } else if (lane == 0) {
      *place = of_warp;
    }
  }
  meanwhile();
  if constexpr (S::kCluster > 1) {
    cluster::wait(&arrived);
  } else {
    __syncthreads();
  }
  float total = 0;
#pragma unroll
  for (int i = 0; i < S::kSums; i += 4) {
    float some[4];
    load_f32(&sums[i], some);
#pragma unroll
    for (float v : some) total += v;
  }
  return total;
}

}  // namespace warpweave::gpu
