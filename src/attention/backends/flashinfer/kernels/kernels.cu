#include "attention/backends/flashinfer/kernels/kernels.h"

#include "attention/backends/flashinfer/kernels/sm80_decode_dispatch.cuh"
#include "attention/backends/flashinfer/kernels/sm80_extend_dispatch.cuh"

namespace warpweave::cuda {
namespace {

DecodeVariant decode_variant_for(const KernelShape& shape, int rows, bool multi_row) {
  const DecodeNeed need = {shape.head_dim, rows, multi_row, shape.head_pairs};
  const bool bf16 = shape.element == ElementType::bf16;
  switch (shape.kv) {
    case KvStorage::same16: return (bf16 ? decode_bf16 : decode_f16)(need);
    case KvStorage::e4m3: return (bf16 ? decode_bf16_e4m3 : decode_f16_e4m3)(need);
    case KvStorage::e5m2: return (bf16 ? decode_bf16_e5m2 : decode_f16_e5m2)(need);
    case KvStorage::e2m1: return (bf16 ? decode_bf16_e2m1 : decode_f16_e2m1)(need);
  }
  return {};
}

ExtendVariant extend_variant_for(const KernelShape& shape, int tile_rows) {
  const bool bf16 = shape.element == ElementType::bf16;
  switch (shape.kv) {
    case KvStorage::same16: return (bf16 ? extend_bf16 : extend_f16)(shape.head_dim, tile_rows);
    case KvStorage::e4m3: return (bf16 ? extend_bf16_e4m3 : extend_f16_e4m3)(shape.head_dim, tile_rows);
    case KvStorage::e5m2: return (bf16 ? extend_bf16_e5m2 : extend_f16_e5m2)(shape.head_dim, tile_rows);
    case KvStorage::e2m1: return (bf16 ? extend_bf16_e2m1 : extend_f16_e2m1)(shape.head_dim, tile_rows);
  }
  return nullptr;
}

}  // namespace

DecodeLayout sm80_decode_layout(const KernelShape& shape, int rows, bool multi_row) {
  return decode_variant_for(shape, rows, multi_row).layout;
}

cudaError_t sm80_decode(const KernelShape& shape, const AttentionParams& p, const DecodeLaunch& launch,
                        cudaStream_t stream) {
  const DecodeVariant variant = decode_variant_for(shape, launch.rows, launch.multi_row);
  if (variant.launch == nullptr) return cudaErrorInvalidValue;
  return variant.launch(p, launch.work, launch.num_workers, stream);
}

ExtendLayout sm80_extend_layout(const KernelShape&, const AttentionParams& p, int max_q_len) {
  return {max_q_len * p.group <= 64 ? 64 : 128, p.group};
}

cudaError_t sm80_extend(const KernelShape& shape, const AttentionParams& p, const ExtendLaunch& launch,
                        cudaStream_t stream) {
  const ExtendVariant variant = extend_variant_for(shape, launch.layout.tile_rows);
  if (variant == nullptr) return cudaErrorInvalidValue;
  return variant(p, launch.work, launch.max_items, stream);
}

}  // namespace warpweave::cuda
