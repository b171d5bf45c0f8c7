#include "kv/latent_token.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstring>

#include "base/float16.h"
#include "kv/kv_codec.h"

namespace warpweave {
namespace {

// The values of codes, which bf16 holds exactly.
using BfloatTable = std::array<uint16_t, 256>;
const BfloatTable& e4m3_table() {
  static const BfloatTable table = [] {
    BfloatTable out;
    for (int code = 0; code < 256; ++code) out[code] = f32_to_bf16(kE4m3Table.values[code]);
    return out;
  }();
  return table;
}

float largest_of(const float* values, int count) {
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = std::fmax(largest, std::fabs(values[i]));
  return largest;
}

void pack_fp8(const float* values, std::byte* to) {
  auto* const codes = reinterpret_cast<uint8_t*>(to);
  for (int block = 0; block < kPackedLatentDim / kDsMlaScaleDim; ++block) {
    const float* const from = values + block * kDsMlaScaleDim;
    const float scale = ds_mla_scale(largest_of(from, kDsMlaScaleDim)), inverse = 1 / scale;
    std::memcpy(to + kDsMlaScaleAt + block * sizeof scale, &scale, sizeof scale);
    for (int i = 0; i < kDsMlaScaleDim; ++i) codes[block * kDsMlaScaleDim + i] = f32_to_e4m3(from[i] * inverse);
  }
}

KvPoolView fp4_view(const std::byte* token) {
  return {.data = token,
          .format = KvFormat::fp4_e2m1,
          .block_scales = reinterpret_cast<const uint8_t*>(token + kFp4MlaScaleAt)};
}

void unpack_fp8(const std::byte* from, int count, uint16_t* out) {
  const BfloatTable& table = e4m3_table();
  const auto* const codes = reinterpret_cast<const uint8_t*>(from);
  for (int begin = 0; begin < count; begin += kDsMlaScaleDim) {
    float scale;
    std::memcpy(&scale, from + kDsMlaScaleAt + begin / kDsMlaScaleDim * sizeof scale, sizeof scale);
    const int end = std::min(count, begin + kDsMlaScaleDim);
    if (scale == 1) {
      for (int i = begin; i < end; ++i) out[i] = table[codes[i]];
      continue;
    }
    for (int i = begin; i < end; ++i) out[i] = f32_to_bf16(kE4m3Table.values[codes[i]] * scale);
  }
}

void unpack_fp4(const std::byte* from, int count, uint16_t* out) {
  float values[kPackedLatentDim];
  kv_decode_run(fp4_view(from), 0, 0, count, values);
  for (int i = 0; i < count; ++i) out[i] = f32_to_bf16(values[i]);
}

}  // namespace

void pack_latent_token(KvFormat format, const float* values, std::byte* to) {
  const bool fp8 = format == KvFormat::fp8_ds_mla;
  assert(fp8 || format == KvFormat::fp4_mla);
  if (fp8) {
    pack_fp8(values, to);
  } else {
    kv_encode_run(fp4_view(to), 0, 0, kPackedLatentDim, values);
  }
  uint16_t rope[kPackedRopeDim];
  for (int i = 0; i < kPackedRopeDim; ++i) rope[i] = f32_to_bf16(values[kPackedLatentDim + i]);
  std::memcpy(to + (fp8 ? kDsMlaRopeAt : kFp4MlaRopeAt), rope, sizeof rope);
}

void unpack_latent_token(KvFormat format, const std::byte* from, int count, uint16_t* bf16) {
  const bool fp8 = format == KvFormat::fp8_ds_mla;
  assert((fp8 || format == KvFormat::fp4_mla) && count <= kPackedTokenDim && count % kFp4BlockElements == 0);
  const int latent = std::min(count, kPackedLatentDim);
  (fp8 ? unpack_fp8 : unpack_fp4)(from, latent, bf16);
  if (count > latent) {
    std::memcpy(bf16 + latent, from + (fp8 ? kDsMlaRopeAt : kFp4MlaRopeAt), (count - latent) * sizeof *bf16);
  }
}

}  // namespace warpweave
