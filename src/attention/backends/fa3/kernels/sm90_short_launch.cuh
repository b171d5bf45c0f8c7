// Launches of the Hopper kernel for short requests (sm90_short.cuh), and which instantiation takes what.
#pragma once

#include "attention/backends/fa3/kernels/sm90_short.cuh"
#include "attention/cuda/pool_map.h"
#include "device/cuda/kernel_launch.h"
#include "device/cuda/shared_memory_limit.h"

namespace warpweave::cuda {

// Of a pool seen as one page: more than any has.
inline constexpr int kPoolTokens = 1 << 28;

template <class C>
cudaError_t launch_sm90_short(const AttentionParams& p, const SplitWork& work, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  if (const cudaError_t error = limit.raise(sm90_short<C>, C::kSmemBytes); error != cudaSuccess) return error;
  Sm90ShortMaps maps{};
  constexpr int kOwnTokens = C::kPaired ? C::kTokens / 2 : C::kTokens;
  const ShortLaunch launch = {.box_tokens = C::kBoxes ? box_tokens_of(p.page_size, kOwnTokens) : kOwnTokens,
                              .group = Divisor(p.group),
                              .row_tiles = Divisor(work.units / p.num_kv_heads),
                              .lockstep = Divisor(work.lockstep)};
  AttentionParams pool = p;
  if (!C::kBoxes) pool.page_size = kPoolTokens;
  cudaError_t error = make_pool_map(&maps.k, p.k, pool, C::kDim, launch.box_tokens);
  if (error == cudaSuccess) error = make_pool_map(&maps.v, p.v, pool, C::kDim, launch.box_tokens);
  if (error != cudaSuccess) return error;
  const LaunchShape shape = {.grid = static_cast<unsigned>(work.num_workers), .block = C::kThreads,
                             .shared_bytes = C::kSmemBytes, .stream = stream, .cluster = C::kPaired ? 2u : 1u};
  return launch_kernel(shape, true, sm90_short<C>, p, maps, work, launch);
}

// Where each kv head's row tiles go in pairs, each KV tile is read from the L2 once for both.
template <class Element, int kDim, int kConsumers, bool kBoxes>
cudaError_t launch_sm90_short_tiles(const AttentionParams& p, const SplitWork& work, cudaStream_t stream) {
  if constexpr (kConsumers == 2) {
    const bool pairs = work.units / p.num_kv_heads % 2 == 0 && work.lockstep % 2 == 0 && work.num_workers % 2 == 0;
    if (pairs) return launch_sm90_short<Sm90ShortConfig<Element, kDim, kConsumers, kBoxes, true>>(p, work, stream);
  }
  return launch_sm90_short<Sm90ShortConfig<Element, kDim, kConsumers, kBoxes, false>>(p, work, stream);
}

template <class Element, int kDim, int kConsumers>
Sm90ShortKernel sm90_short_variant(bool boxes) {
  return boxes ? launch_sm90_short_tiles<Element, kDim, kConsumers, true>
               : launch_sm90_short_tiles<Element, kDim, kConsumers, false>;
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
