// A token of latent attention (MLA, DeepSeek-V2, 2405.04434) in the packed formats of the pool: the latent in codes
// with scales of its own, the rotated part in bf16. Both are of 512 + 64 values, and whole tokens only are written.
//
//   fp8_ds_mla  656 bytes: 512 e4m3 codes, 4 f32 scales (of 128 values each), 64 bf16
//   fp4_mla     416 bytes: 256 bytes of two e2m1 codes (the even one low), 32 e4m3 scales (of 16 values each), 64 bf16
//
// A value is its code times its scale. Scales of fp8_ds_mla are powers of two from 2^-32 to 2^7, the smallest under
// which 448 is no less than the largest value; those of fp4_mla are as of fp4_e2m1 with a head scale of 1 (kv_codec.h).
// So every value is exact in bf16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float8.h"
#include "kv/kv_format.h"

namespace warpweave {

inline constexpr int kPackedLatentDim = 512;
inline constexpr int kPackedRopeDim = 64;
inline constexpr int kPackedTokenDim = kPackedLatentDim + kPackedRopeDim;
inline constexpr int kDsMlaScaleDim = 128;
inline constexpr int kDsMlaScaleAt = kPackedLatentDim;                 // in bytes, as all places
inline constexpr int kDsMlaRopeAt = kDsMlaScaleAt + kPackedLatentDim / kDsMlaScaleDim * 4;
inline constexpr int kFp4MlaScaleAt = kPackedLatentDim / 2;
inline constexpr int kFp4MlaRopeAt = kFp4MlaScaleAt + kPackedLatentDim / kFp4BlockElements;
static_assert(kDsMlaRopeAt + 2 * kPackedRopeDim == kDsMlaTokenBytes &&
              kFp4MlaRopeAt + 2 * kPackedRopeDim == kFp4MlaTokenBytes);

// Of fp8_ds_mla, for values up to `largest`; also on a GPU.
[[gnu::always_inline]] inline constexpr float ds_mla_scale(float largest) {
  constexpr int kMinExponent = -32, kMaxExponent = 7;
  const uint32_t bits = __builtin_bit_cast(uint32_t, largest) & 0x7fffffffu;
  // 448 is 1.75 * 2^8.
  const int exponent = static_cast<int>(bits >> 23) - 127 - 8 + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0);
  const int clamped = exponent < kMinExponent ? kMinExponent : exponent > kMaxExponent ? kMaxExponent : exponent;
  return __builtin_bit_cast(float, static_cast<uint32_t>(clamped + 127) << 23);
}

// `values` [kPackedTokenDim], of a packed format.
void pack_latent_token(KvFormat format, const float* values, std::byte* to);
// The first `count` values, a multiple of 16, in bf16.
void unpack_latent_token(KvFormat format, const std::byte* from, int count, uint16_t* bf16);

}  // namespace warpweave
