// Prefill on Hopper, after FlashAttention-3 (Shah et al. 2024): one warpgroup copies (TMA), two multiply
// (wgmma), persistent CTAs take tiles of kTileRows query tokens of one q head from the worklist, longest
// first, each its next one when it is done.
//
// The consumers overlap twice: within a warpgroup S of the next block is multiplied together with O of
// this one, also from one tile to the next; and the two warpgroups take turns (named barriers), so that
// one's softmax and writes overlap the other's WGMMAs. A warp that issues WGMMAs waits for the
// tensor cores until all but the last are under way, so a turn and the softmax follow each other: a block
// takes a warpgroup the sum of both, and the tensor cores idle for what that exceeds two turns.
// P stays in registers. KV blocks of kBlockTokens go from the last to the first, so that the masked ones
// come at the ends; those that every row sees whole run without masking code. Maxima are exchanged between
// lanes, and O is rescaled, only when a row's maximum has grown by more than kRescaleThreshold (log2
// units) since: P then reaches 2^threshold, which bf16 and float32 hold as exactly, and the sum uses the
// same maximum. Up to head dim 128 blocks that every row sees whole are computed with
// the maximum so far: only where a row's sum shows that it was too small is the block's S multiplied once more.
//
// A request's last tile, if of 64 tokens or fewer, is of two q heads of a kv head, a warpgroup each (kPairs).
//
// At head dim 64, where exponentials take as long as the WGMMAs, three warpgroups multiply, each in a third of
// the registers (Sm90TrioConsumer); on pages of a few tokens two, as the copying one needs registers there. At head
// dim 128 long requests in bf16 take three, too: the WGMMAs of two then cover the third one's softmax. S and P share
// registers there, so that O of a block is complete before S of the next is begun.
//
// Prompts of latent attention have K of 192 and V of 128 dims, and no turns (Sm90LatentConsumer).
//
// K and V come in boxes of as many tokens as a page allows, so that paged and contiguous pools are the
// same code. Pages of a few tokens are copied first (kCopies), or threads gather 16-byte pieces (kGather); for tall
// tiles pages of no multiple of 64 tokens are copied, too (sm90_copy_pages.cuh), as small boxes hold those up.
// Tokens past the table are zero-filled by TMA; unused rows of the last page may hold
// anything: K's are masked, V's are overwritten with zeros.
// bf16 or f16; causal or not, window, softcap, sinks, LSE. Softmax in log2 units.
#pragma once

#include <type_traits>

#include "attention/backends/fa3/kernels/sm90_copy_pages.cuh"
#include "attention/backends/fa3/kernels/sm90_gather_producer.cuh"
#include "attention/backends/fa3/kernels/sm90_latent_consumer.cuh"
#include "attention/backends/fa3/kernels/sm90_producer.cuh"
#include "attention/backends/fa3/kernels/sm90_trio_consumer.cuh"
#include "attention/backends/fa3/kernels/sm90_variants.h"
#include "attention/cuda/pool_map.h"
#include "device/cuda/kernel_launch.h"
#include "device/cuda/shared_memory_limit.h"

namespace warpweave::cuda {

template <class C>
using Sm90ConsumerOf = std::conditional_t<C::kTrio, Sm90TrioConsumer<C>,
                                          std::conditional_t<C::kLatent, Sm90LatentConsumer<C>, Sm90Consumer<C>>>;

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    sm90_extend(const __grid_constant__ AttentionParams p, const __grid_constant__ Sm90Maps maps,
                const __grid_constant__ ExtendWorklist work, int box_tokens) {
  extern __shared__ char unaligned[];
  ptx::launch_dependents();  // decode rows of the same batch fill the SMs that prompts leave free
  char* smem = unaligned + ((1024 - (ptx::smem_address(unaligned) & 1023)) & 1023);
  const Sm90Shared<C> shared(smem);
  if (threadIdx.x == 0) shared.init_barriers(box_tokens);
  if (work.q_ready != nullptr) {
    ptx::grid_dependency_wait();
    if (blockIdx.x == 0 && threadIdx.x == 0) ptx::store_release(work.q_ready, work.q_epoch);
  }
  if constexpr (C::kCopiesHere) Sm90Copies<C>(p, work).first_heads();
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::setmaxnreg_decrease<C::kProducerRegisters>();
    std::conditional_t<C::kGather, Sm90GatherProducer<C>, Sm90Producer<C>> producer(p, maps, shared, box_tokens);
    producer.run(work);
    if (work.beside_predecessor) ptx::grid_dependency_wait();  // its own end means both
  } else {
    ptx::setmaxnreg_increase<C::kConsumerRegisters>();
    Sm90ConsumerOf<C> consumer(p, shared);
    consumer.run();
  }
}

template <class C>
cudaError_t launch_sm90_extend(const AttentionParams& p, const ExtendWorklist& work, int max_items,
                               int num_sms, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  if (const cudaError_t error = limit.raise(sm90_extend<C>, C::kSmemBytes); error != cudaSuccess) {
    return error;
  }
  Sm90Maps maps;
  AttentionParams pools = p;
  if (C::kCopies) {
    pools.k = work.copies.k;
    pools.v = work.copies.v;
    pools.page_size = kCopyBlockTokens;
    pools.token_stride = C::kDim;
    pools.page_stride = kCopyBlockTokens * C::kDim;
    pools.head_stride = work.copies.max_blocks * pools.page_stride;
  }
  const int box_tokens = box_tokens_of(pools.page_size, C::kBoxTokens);
  cudaError_t error = make_rows_map(&maps.q, {p.q, p.q_token_stride}, p, C::kDim, 64);
  if (error == cudaSuccess) error = make_pool_map(&maps.k, pools.k, pools, C::kDim, box_tokens);
  if (error == cudaSuccess) error = make_pool_map(&maps.v, pools.v, pools, C::kValueDim, box_tokens);
  if (error != cudaSuccess) return error;
  if constexpr (C::kCopies && !C::kCopiesHere) {
    error = launch_copy_pages<C::kDim>(p, work.copies, stream);
    if (error != cudaSuccess) return error;
  }
  const int units = max_items * p.num_q_heads;
  const int ctas = units < num_sms ? units : num_sms;
  const LaunchShape shape = {.grid = static_cast<unsigned>(ctas), .block = C::kThreads, .shared_bytes = C::kSmemBytes,
                             .stream = stream};
  return launch_kernel(shape, work.beside_predecessor || work.q_ready != nullptr, sm90_extend<C>, p, maps, work,
                       box_tokens);
}

template <class C>
Sm90Variant sm90_variant_of() {
  return {C::kTileRows, launch_sm90_extend<C>};
}

template <class Element, int kDim, int kConsumers, int kBlockTokens, int kKeyStages, int kValueStages>
Sm90Variant sm90_small_pages(Sm90Source source) {
  using Gather = Sm90Config<Element, kDim, kConsumers, kBlockTokens, kKeyStages, kValueStages, Sm90Source::gather>;
  using Copies = Sm90Config<Element, kDim, kConsumers, kBlockTokens, kKeyStages, kValueStages, Sm90Source::copies>;
  static_assert(Gather::kTileRows == Copies::kTileRows);  // a plan may be for either
  return source == Sm90Source::gather ? sm90_variant_of<Gather>() : sm90_variant_of<Copies>();
}

template <class Element, int kDim, int kConsumers, int kBlockTokens, int kKeyStages, int kValueStages>
Sm90Variant sm90_variant(Sm90Source source, bool pairs) {
  constexpr Sm90Source kBoxes = Sm90Source::boxes;
  if (source != kBoxes)
    return sm90_small_pages<Element, kDim, kConsumers, kBlockTokens, kKeyStages, kValueStages>(source);
  using Pairs = Sm90Config<Element, kDim, kConsumers, kBlockTokens, kKeyStages, kValueStages, kBoxes, true>;
  using Whole = Sm90Config<Element, kDim, kConsumers, kBlockTokens, kKeyStages, kValueStages, kBoxes>;
  static_assert(Pairs::kTileRows == Whole::kTileRows);
  return pairs ? sm90_variant_of<Pairs>() : sm90_variant_of<Whole>();
}

}  // namespace warpweave::cuda
