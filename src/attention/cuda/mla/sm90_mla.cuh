// Latent attention on Hopper: decode, verification of drafts and short extends (mla_params.h).
//
// A CTA has 64 rows (query token, head) and streams KV tiles of 64 tokens, which all of them share; a tile is key (576
// columns) and value (512) at once. O, 64 x 512 in float32, takes the registers of two warpgroups, half of the columns
// each. One of them, the leader, also multiplies S and finds P, which the other one gets through shared memory (the
// division of work is FlashAttention-3's for value dims of 512). It is done with a tile before it begins the next one:
// memory, not the tensor cores, is what the kernel waits for, and the tile makes room sooner. Where codes are widened
// on the way, S of the next tile is multiplied before O of this one, whose WGMMAs run while its softmax is computed. A
// third warpgroup copies, and where codes are widened, a fourth one, too.
//
// Shared memory holds Q and two KV tiles and no more. So a tile is released in parts (MlaPart), each as soon as its
// last WGMMA is done, and copied in the same order. Where a request has an even number of row tiles, two CTAs of a
// cluster take neighbouring ones over the same KV tiles, and each brings half of every tile into both (kPaired): TMA
// copies into both at once; what threads gather or widen they send to the other CTA through distributed shared memory.
//
// Pools: 16-bit numbers, by TMA where pages hold boxes of 16 tokens (paired: 8) or more, else gathered by threads; or
// codes, widened on the way (sm90_mla_code_producer.cuh). Unused rows of the last page may hold anything.
// Split-KV by a device-made plan; pieces are merged by a kernel behind this one (mla_combine.cuh) or, of 16-bit pools
// unless units of many rows are in many pieces, by the CTAs that have written them (MlaMerging).
#pragma once

#include <type_traits>

#include "attention/cuda/mla/mla_pool_map.h"
#include "attention/cuda/mla/sm90_mla_consumer.cuh"
#include "attention/cuda/mla/sm90_mla_code_producer.cuh"
#include "attention/cuda/mla/sm90_mla_producer.cuh"
#include "attention/cuda/pool_map.h"
#include "device/cuda/kernel_launch.h"
#include "device/cuda/shared_memory_limit.h"

namespace warpweave::cuda {

template <class C>
WW_DEVICE void sm90_mla_produce(const MlaParams& p, const CUtensorMap& map, const SplitWork& work,
                                const Sm90MlaShared<C>& shared, const Sm90MlaBoxes& boxes) {
  if constexpr (C::kFormat != MlaFormat::same16) {
    const int thread = static_cast<int>(threadIdx.x);  // of the first warpgroup or of the last one
    Sm90MlaCodeProducer<C>(p, shared, thread < 128 ? thread : thread - 256).run(work);
  } else if constexpr (C::kBoxes) {
    Sm90MlaBoxProducer<C>(p, map, shared, boxes).run(work);
  } else {
    Sm90MlaGatherProducer<C>(p, shared).run(work);
  }
}

// Where pairs have more units than there are CTAs, what leaves the L2 first is slower (docs/gpu-tuning.md).
inline Sm90MlaBoxes mla_boxes(const MlaParams& p, const SplitWork& work, bool paired) {
  return {box_tokens_of(p.page_size, paired ? 32 : 64), !paired || p.num_requests * work.units <= work.num_workers};
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    sm90_mla(const __grid_constant__ MlaParams p, const __grid_constant__ CUtensorMap map,
             const __grid_constant__ SplitWork work, Sm90MlaBoxes boxes) {
  extern __shared__ char unaligned[];
  const Sm90MlaShared<C> shared(unaligned + ((1024 - (ptx::smem_address(unaligned) & 1023)) & 1023));
  if (threadIdx.x == 0) {
    shared.init_barriers();
    if constexpr (C::kBoxes) ptx::tensor_map_prefetch(&map);
  }
  ptx::launch_dependents();
  if (!work.plan_is_older) ptx::grid_dependency_wait();  // else each warpgroup waits before it needs to
  __syncthreads();
  if constexpr (C::kPaired) ptx::cluster_meet_aligned();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == 0 || warpgroup == 3) {
    ptx::setmaxnreg_decrease<C::kProducerRegisters>();
    sm90_mla_produce<C>(p, map, work, shared, boxes);
  } else {
    if (warpgroup == 1) {
      ptx::setmaxnreg_increase<C::kLeaderRegisters>();
      Sm90MlaLeader<C>(p, work, shared).run();
    } else {
      ptx::setmaxnreg_increase<C::kFollowerRegisters>();
      Sm90MlaFollower<C>(p, work, shared).run();
    }
    if constexpr (C::kShares) sm90_mla_merge<C>(p, work, shared, warpgroup - 1);
  }
  if constexpr (C::kPaired) {  // the other CTA may still copy to here, and tell here what it has read
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
}

template <class C>
cudaError_t launch_sm90_mla(const MlaParams& p, const SplitWork& work, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  if (const cudaError_t error = limit.raise(sm90_mla<C>, C::kSmemBytes); error != cudaSuccess) {
    return error;
  }
  CUtensorMap map{};
  const Sm90MlaBoxes boxes = mla_boxes(p, work, C::kPaired);
  if constexpr (C::kBoxes) {
    if (const cudaError_t error = make_mla_pool_map(&map, p, boxes.tokens); error != cudaSuccess) return error;
  }
  const LaunchShape shape = {.grid = static_cast<unsigned>(work.num_workers), .block = C::kThreads,
                             .shared_bytes = C::kSmemBytes, .stream = stream, .cluster = C::kPaired ? 2u : 1u};
  return launch_kernel(shape, true, sm90_mla<C>, p, map, work, boxes);
}

}  // namespace warpweave::cuda
