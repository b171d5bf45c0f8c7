// Short requests on Hopper: drafts and trees to verify, a few new tokens on a long prefix. Split-KV by a device-made
// plan (split_work.h), so that few requests fill the GPU.
//
// A CTA has a unit's rows, 64 a multiplying warpgroup: (query token, q head of the kv head's group), the head fastest,
// so that K and V are read once for all of a kv head's q heads. It streams KV tiles of 64 or 128 tokens through a ring
// (short_tile_tokens); one warpgroup copies, by TMA where pages hold large boxes, else 16 bytes at a time. wgmma takes
// S = Q K^T and O = P V, P stays in registers; S of the next tile is multiplied before O of this one. Runs every mask:
// causal, bidirectional, window, draft trees; keys past the visible range are not read, unused rows of the last page
// may hold anything. Pieces are merged by a kernel behind this one (sm90_short_combine.cuh), in their order: results do
// not depend on timing.
#pragma once

#include "attention/backends/fa3/kernels/sm90_short_combine.cuh"
#include "attention/backends/fa3/kernels/sm90_short_consumer.cuh"
#include "attention/backends/fa3/kernels/sm90_short_producer.cuh"
#include "attention/cuda/pool_map.h"
#include "attention/cuda/split_combine_launch.cuh"
#include "device/cuda/kernel_launch.h"
#include "device/cuda/shared_memory_limit.h"

namespace warpweave::cuda {

template <class C>
WW_DEVICE void sm90_short_produce(const AttentionParams& p, const Sm90ShortMaps& maps, const SplitWork& work,
                                  const Sm90ShortShared<C>& shared, int box_tokens) {
  if constexpr (C::kBoxes) {
    if (threadIdx.x >= 32) return;
    Sm90ShortBoxProducer<C> producer(p, maps, shared, box_tokens);
    walk_segments<C>(p, work, producer);
  } else {
    Sm90ShortGatherProducer<C> producer(p, shared);
    walk_segments<C>(p, work, producer);
    ptx::cp_async_wait<0>();
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kCtasPerSm)
    sm90_short(const __grid_constant__ AttentionParams p, const __grid_constant__ Sm90ShortMaps maps,
               const __grid_constant__ SplitWork work, int box_tokens) {
  extern __shared__ __align__(1024) char short_smem[];
  const Sm90ShortShared<C> shared(short_smem);
  if (threadIdx.x == 0) {
    if (shared.q % 1024 != 0) __trap();  // the swizzle and the descriptors count on it
    shared.init_barriers();
  }
  ptx::launch_dependents();
  if (!work.plan_is_older) ptx::grid_dependency_wait();  // else each warpgroup waits before it needs to
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (warpgroup == 0) {
    ptx::setmaxnreg_decrease<C::kProducerRegisters>();
    sm90_short_produce<C>(p, maps, work, shared, box_tokens);
  } else {
    ptx::setmaxnreg_increase<C::kConsumerRegisters>();
    Sm90ShortConsumer<C>(p, work, shared, warpgroup - 1).run();
  }
}

template <class C>
cudaError_t launch_sm90_short(const AttentionParams& p, const SplitWork& work, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  if (const cudaError_t error = limit.raise(sm90_short<C>, C::kSmemBytes); error != cudaSuccess) return error;
  Sm90ShortMaps maps{};
  const int box_tokens = box_tokens_of(p.page_size, C::kTokens);
  if constexpr (C::kBoxes) {
    cudaError_t error = make_pool_map(&maps.k, p.k, p, C::kDim, box_tokens);
    if (error == cudaSuccess) error = make_pool_map(&maps.v, p.v, p, C::kDim, box_tokens);
    if (error != cudaSuccess) return error;
  }
  const LaunchShape shape = {.grid = static_cast<unsigned>(work.num_workers), .block = C::kThreads,
                             .shared_bytes = C::kSmemBytes, .stream = stream};
  const cudaError_t error = launch_kernel(shape, true, sm90_short<C>, p, maps, work, box_tokens);
  return error == cudaSuccess ? launch_combine<ShortRows<C>>(p, work, {4 * work.num_workers / C::kCtasPerSm}, stream)
                              : error;
}

template <class Element, int kDim, int kConsumers>
Sm90ShortKernel sm90_short_variant(bool boxes) {
  return boxes ? launch_sm90_short<Sm90ShortConfig<Element, kDim, kConsumers, true>>
               : launch_sm90_short<Sm90ShortConfig<Element, kDim, kConsumers, false>>;
}

// Head dim 256 leaves no room for two CTAs on an SM: tiles of 128 rows alone.
template <class Element>
Sm90ShortKernel sm90_short_variant_of(int head_dim, int tile_rows, bool boxes) {
  const bool tall = tile_rows == 128;
  switch (head_dim) {
    case 64: return tall ? sm90_short_variant<Element, 64, 2>(boxes) : sm90_short_variant<Element, 64, 1>(boxes);
    case 128: return tall ? sm90_short_variant<Element, 128, 2>(boxes) : sm90_short_variant<Element, 128, 1>(boxes);
    case 256: return tall ? sm90_short_variant<Element, 256, 2>(boxes) : nullptr;
    default: return nullptr;
  }
}

}  // namespace warpweave::cuda
