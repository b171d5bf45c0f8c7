// Picks the instantiation for one element type and KV storage; each pair is a file of its own.
#pragma once

#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/backends/flashinfer/kernels/sm80_decode.cuh"

namespace warpweave::cuda {

struct DecodeVariant {
  DecodeLayout layout;
  cudaError_t (*launch)(const AttentionParams&, const DecodeWorkspace&, int, cudaStream_t) = nullptr;
};

template <class Element, KvStorage kStorage, int kDim, int kColumnTiles, bool kMultiRow>
DecodeVariant decode_variant() {
  using C = DecodeConfig<Element, kStorage, kDim, kColumnTiles, kMultiRow>;
  return {{C::kRows, C::kCtasPerSm}, launch_sm80_decode<C>};
}

template <class Element, KvStorage kStorage, int kDim>
DecodeVariant decode_variant_of_rows(int rows, bool multi_row) {
  if (!multi_row) {
    if (rows <= 8) return decode_variant<Element, kStorage, kDim, 1, false>();
    if (rows <= 16) return decode_variant<Element, kStorage, kDim, 2, false>();
  } else {
    if (rows <= 16) return decode_variant<Element, kStorage, kDim, 2, true>();
  }
  // 32 rows do not fit the registers with d 256, nor beside widened values with d 128.
  if constexpr (kDim == 64 || (kDim == 128 && kStorage == KvStorage::same16)) {
    if (rows <= 32) return decode_variant<Element, kStorage, kDim, 4, true>();
  }
  return {};
}

template <class Element, KvStorage kStorage>
DecodeVariant decode_variant_of(int head_dim, int rows, bool multi_row) {
  switch (head_dim) {
    case 64: return decode_variant_of_rows<Element, kStorage, 64>(rows, multi_row);
    case 128: return decode_variant_of_rows<Element, kStorage, 128>(rows, multi_row);
    case 256: return decode_variant_of_rows<Element, kStorage, 256>(rows, multi_row);
    default: return {};
  }
}

DecodeVariant decode_bf16(int head_dim, int rows, bool multi_row);
DecodeVariant decode_bf16_e4m3(int head_dim, int rows, bool multi_row);
DecodeVariant decode_bf16_e5m2(int head_dim, int rows, bool multi_row);
DecodeVariant decode_bf16_e2m1(int head_dim, int rows, bool multi_row);
DecodeVariant decode_f16(int head_dim, int rows, bool multi_row);
DecodeVariant decode_f16_e4m3(int head_dim, int rows, bool multi_row);
DecodeVariant decode_f16_e5m2(int head_dim, int rows, bool multi_row);
DecodeVariant decode_f16_e2m1(int head_dim, int rows, bool multi_row);

}  // namespace warpweave::cuda
