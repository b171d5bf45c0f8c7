// Short requests on Hopper: drafts and trees to verify, a few new tokens on a long prefix. Split-KV by a device-made
// plan (split_work.h), so that few requests fill the GPU.
//
// A CTA has a unit's rows, 64 a multiplying warpgroup: (query token, q head of the kv head's group), the head fastest,
// so that K and V are read once for all of a kv head's q heads. It streams KV tiles of 64 or 128 tokens through a ring
// (short_tile_tokens); one warpgroup copies, by TMA where pages hold large boxes or a tile's tokens stand side by side,
// else 16 bytes at a time. wgmma takes S = Q K^T and O = P V, P stays in registers; S of the next tile is multiplied
// before O of this one. Its code is short, since in a served step it has to be fetched. Runs every mask:
// causal, bidirectional, window, draft trees; keys past the visible range are not read, unused rows of the last page
// may hold anything. Pieces are merged in their order by those who wrote them (sm90_short_merge.cuh): results do not
// depend on timing. So all CTAs have to run at once: as many are launched as the GPU holds.
#pragma once

#include "attention/backends/fa3/kernels/sm90_short_consumer.cuh"
#include "attention/backends/fa3/kernels/sm90_short_producer.cuh"

namespace warpweave::cuda {

template <class C>
WW_DEVICE void sm90_short_produce(const ShortCall& call, const Sm90ShortMaps& maps, const Sm90ShortShared<C>& shared) {
  const AttentionParams& p = call.p;
  if constexpr (C::kBoxes) {
    if (threadIdx.x >= 32) return;
    Sm90ShortBoxProducer<C> producer(p, maps, shared, call.launch.box_tokens);
    walk_segments<C>(call, producer);
  } else {
    Sm90ShortPlaceProducer<C> producer(p, maps, shared, p.page_stride == int64_t{p.page_size} * p.token_stride);
    walk_segments<C>(call, producer);
    ptx::cp_async_wait<0>();
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kCtasPerSm)
    sm90_short(const __grid_constant__ AttentionParams p, const __grid_constant__ Sm90ShortMaps maps,
               const __grid_constant__ SplitWork work, const __grid_constant__ ShortLaunch launch) {
  extern __shared__ __align__(1024) char short_smem[];
  const Sm90ShortShared<C> shared(short_smem);
  if (threadIdx.x == 0) {
    if (shared.q % 1024 != 0) __trap();  // the swizzle and the descriptors count on it
    shared.init_barriers();
  }
  ptx::launch_dependents();
  if (!work.plan_is_older) ptx::grid_dependency_wait();  // else each warpgroup waits before it needs to
  __syncthreads();
  if constexpr (C::kPaired) ptx::cluster_meet_aligned();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_decrease<C::kProducerRegisters>();
    sm90_short_produce<C>({p, work, launch}, maps, shared);
  } else {
    ptx::setmaxnreg_increase<C::kConsumerRegisters>();
    Sm90ShortConsumer<C>({p, work, launch}, shared, warpgroup - 1).run();
  }
  if constexpr (C::kPaired) {  // the other CTA may still copy to here, and tell here what it has read
    ptx::cluster_arrive_relaxed();
    ptx::cluster_wait();
  }
}

}  // namespace warpweave::cuda
