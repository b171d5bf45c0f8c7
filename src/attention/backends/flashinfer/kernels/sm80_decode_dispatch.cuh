// Picks the instantiation for one element type and KV storage; each pair is a file of its own.
#pragma once

#include "attention/backends/flashinfer/kernels/kernels.h"
#include "attention/backends/flashinfer/kernels/sm80_decode_launch.cuh"
#include "attention/backends/flashinfer/kernels/sm90_fp4_decode.cuh"

namespace warpweave::cuda {

struct DecodeNeed {
  int head_dim = 128;
  int rows = 0;             // of a kv head and request
  bool multi_row = false;   // of several query tokens
  bool head_pairs = false;  // KernelShape
};

struct DecodeVariant {
  DecodeLayout layout;
  cudaError_t (*launch)(const AttentionParams&, const DecodeWorkspace&, int, cudaStream_t) = nullptr;
};

template <class C>
DecodeVariant decode_variant_of_config() {
  return {{C::kRows, C::kCtasPerSm, C::kHeads}, launch_sm80_decode<C>};
}

template <class Element, KvStorage kStorage, int kDim, int kColumnTiles, bool kMultiRow>
DecodeVariant decode_variant() {
  return decode_variant_of_config<DecodeConfig<Element, kStorage, kDim, kColumnTiles, kMultiRow>>();
}

template <class Element, KvStorage kStorage, int kDim>
DecodeVariant decode_variant_of_rows(const DecodeNeed& need) {
  const int rows = need.rows;
  if constexpr (kStorage == KvStorage::e2m1 && kDim == 128) {
    if (need.head_pairs && !need.multi_row && rows <= 4) {
      using C = DecodeConfig<Element, kStorage, kDim, 1, false, false, kHeadPairsOfFour>;
      return {{C::kRows, C::kCtasPerSm, C::kHeads}, launch_fp4_pairs_of_four<C>};
    }
    if (need.head_pairs && !need.multi_row && rows <= 8) {
      return decode_variant_of_config<DecodeConfig<Element, kStorage, kDim, 1, false, false, kHeadPairs>>();
    }
  }
  if (!need.multi_row) {
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
DecodeVariant decode_variant_of(const DecodeNeed& need) {
  switch (need.head_dim) {
    case 64: return decode_variant_of_rows<Element, kStorage, 64>(need);
    case 128: return decode_variant_of_rows<Element, kStorage, 128>(need);
    case 256: return decode_variant_of_rows<Element, kStorage, 256>(need);
    default: return {};
  }
}

DecodeVariant decode_bf16(const DecodeNeed& need);
DecodeVariant decode_bf16_e4m3(const DecodeNeed& need);
DecodeVariant decode_bf16_e5m2(const DecodeNeed& need);
DecodeVariant decode_bf16_e2m1(const DecodeNeed& need);
DecodeVariant decode_f16(const DecodeNeed& need);
DecodeVariant decode_f16_e4m3(const DecodeNeed& need);
DecodeVariant decode_f16_e5m2(const DecodeNeed& need);
DecodeVariant decode_f16_e2m1(const DecodeNeed& need);

}  // namespace warpweave::cuda
