// Picks the instantiation for one element type and KV storage; each pair is a file of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/backends/flashinfer/kernels/sm80_extend.cuh"
#include "device/cuda/shared_memory_limit.h"

namespace warpweave::cuda {

template <class C>
cudaError_t launch_sm80_extend(const AttentionParams& p, const ExtendWorklist& work, int max_items,
                               cudaStream_t stream) {
  static SharedMemoryLimit limit;
  if (const cudaError_t error = limit.raise(sm80_extend<C>, C::kSmemBytes); error != cudaSuccess) {
    return error;
  }
  sm80_extend<C><<<dim3(p.num_kv_heads, max_items), C::kThreads, C::kSmemBytes, stream>>>(p, work);
  return cudaPeekAtLastError();
}

using ExtendVariant = cudaError_t (*)(const AttentionParams&, const ExtendWorklist&, int, cudaStream_t);

template <class Element, KvStorage kStorage, int kDim>
ExtendVariant extend_variant_of_rows(int tile_rows) {
  if (tile_rows == 64) return launch_sm80_extend<ExtendConfig<Element, kStorage, kDim, 4>>;
  if (tile_rows == 128) return launch_sm80_extend<ExtendConfig<Element, kStorage, kDim, 8>>;
  return nullptr;
}

template <class Element, KvStorage kStorage>
ExtendVariant extend_variant_of(int head_dim, int tile_rows) {
  switch (head_dim) {
    case 64: return extend_variant_of_rows<Element, kStorage, 64>(tile_rows);
    case 128: return extend_variant_of_rows<Element, kStorage, 128>(tile_rows);
    case 256: return extend_variant_of_rows<Element, kStorage, 256>(tile_rows);
    default: return nullptr;
  }
}

ExtendVariant extend_bf16(int head_dim, int tile_rows);
ExtendVariant extend_bf16_e4m3(int head_dim, int tile_rows);
ExtendVariant extend_bf16_e5m2(int head_dim, int tile_rows);
ExtendVariant extend_bf16_e2m1(int head_dim, int tile_rows);
ExtendVariant extend_f16(int head_dim, int tile_rows);
ExtendVariant extend_f16_e4m3(int head_dim, int tile_rows);
ExtendVariant extend_f16_e5m2(int head_dim, int tile_rows);
ExtendVariant extend_f16_e2m1(int head_dim, int tile_rows);

}  // namespace warpweave::cuda
