// Prefill with e4m3 WGMMA on Hopper, for e4m3 K and V: twice the tensor throughput of bf16, at the cost of
// rounding Q and P to e4m3, too. After FlashAttention-3 (Shah et al. 2024), like sm90_extend.cuh, whose worklist
// this is. What differs:
//  - Q is rounded to e4m3 times a power of two a row, by the warpgroup that multiplies it (Caps: Fp8Mma);
//  - fp8 wgmma takes K-major operands only, so three of the four copying warps transpose V, in the order of
//    tokens in which a thread holds P;
//  - P is rounded to e4m3 times 2^kProbabilityLog2; the sum is that of the unrounded values;
//  - the WGMMAs of P with V are issued 32 tokens at a time between the exponentials: a warp that issues several waits
//    for the tensor cores. Turns of the warpgroups are not needed then;
//  - blocks of O are added in f32: the tensor cores' sums keep about 14 bits, in which long ones of small terms
//    would stop growing;
//  - the next tile's Q is copied and rounded, and its first S multiplied, before the last block's O is added and the
//    output is written.
//
// Batches with long requests take tiles of 192 rows, of which three warpgroups multiply 64 each (Sm90Fp8TrioConsumer):
// their waits cover each other, where two leave the tensor cores and the special function unit idle half of the time.
// Head scales of K go into the row's scale, those of V into the output. Softmax in log2 units.
#pragma once

#include <type_traits>

#include "attention/backends/fa3/kernels/sm90_fp8_producer.cuh"
#include "attention/backends/fa3/kernels/sm90_fp8_trio_consumer.cuh"
#include "attention/backends/fa3/kernels/sm90_variants.h"
#include "attention/cuda/pool_map.h"
#include "device/cuda/shared_memory_limit.h"

namespace warpweave::cuda {

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    sm90_fp8_extend(const __grid_constant__ AttentionParams p, const __grid_constant__ Sm90Maps maps,
                    const __grid_constant__ ExtendWorklist work, int box_tokens) {
  extern __shared__ char unaligned[];
  char* smem = unaligned + ((1024 - (ptx::smem_address(unaligned) & 1023)) & 1023);
  const Sm90Fp8Shared<C> shared(smem);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  if (threadIdx.x < 128) {
    ptx::setmaxnreg_decrease<C::kProducerRegisters>();
    Sm90Fp8Producer<C> producer(p, maps, shared, box_tokens);
    producer.run(work);
  } else {
    ptx::setmaxnreg_increase<C::kConsumerRegisters>();
    std::conditional_t<C::kTrio, Sm90Fp8TrioConsumer<C>, Sm90Fp8Consumer<C>> consumer(p, shared);
    consumer.run();
  }
}

template <class C>
cudaError_t launch_sm90_fp8_extend(const AttentionParams& p, const ExtendWorklist& work, int max_items,
                                   int num_sms, cudaStream_t stream) {
  static SharedMemoryLimit limit;
  if (const cudaError_t error = limit.raise(sm90_fp8_extend<C>, C::kSmemBytes); error != cudaSuccess) {
    return error;
  }
  Sm90Maps maps = {};
  const int box_tokens = box_tokens_of(p.page_size, C::kBlockTokens);
  cudaError_t error = make_byte_pool_map(&maps.k, p.k, p, C::kDim, box_tokens);
  if (error == cudaSuccess) error = make_byte_pool_map(&maps.v, p.v, p, C::kDim, box_tokens);
  if (error != cudaSuccess) return error;
  const int units = max_items * p.num_q_heads;
  const int ctas = units < num_sms ? units : num_sms;
  sm90_fp8_extend<C><<<ctas, C::kThreads, C::kSmemBytes, stream>>>(p, maps, work, box_tokens);
  return cudaPeekAtLastError();
}

template <class C>
Sm90Variant sm90_fp8_variant_of() {
  return {C::kTileRows, launch_sm90_fp8_extend<C>};
}

template <class Element, int kDim>
Sm90Variant sm90_fp8_variant(bool tall) {
  return tall ? sm90_fp8_variant_of<Sm90Fp8Config<Element, kDim, 3>>()
              : sm90_fp8_variant_of<Sm90Fp8Config<Element, kDim, 2>>();
}

}  // namespace warpweave::cuda
