#include "kv/kv_codec.h"

#include <algorithm>
#include <bit>
#include <cassert>

#include "base/float16.h"
#include "base/float8.h"
#include "kv/latent_token.h"

namespace warpweave {
namespace {

// The pool is written through its view.
template <typename T>
T* elements(const KvPoolView& view, int64_t index) {
  return static_cast<T*>(const_cast<void*>(view.data)) + index;
}

float head_scale(const KvPoolView& view, int head) {
  return view.head_scales == nullptr ? 1.0f : view.head_scales[head];
}

void decode_fp4_block(const KvPoolView& view, float scale, int64_t index, float* out) {
  const float block_scale = e4m3_to_f32(view.block_scales[index / kFp4BlockElements]) * scale;
  const uint8_t* bytes = elements<const uint8_t>(view, index / 2);
  for (int i = 0; i < kFp4BlockElements / 2; ++i) {
    out[2 * i] = e2m1_to_f32(bytes[i]) * block_scale;
    out[2 * i + 1] = e2m1_to_f32(bytes[i] >> 4) * block_scale;
  }
}

void encode_fp4_block(const KvPoolView& view, float scale, int64_t index, const float* values) {
  uint32_t top = 0;  // as integers, magnitudes compare like floats, and NaN is above all
  for (int i = 0; i < kFp4BlockElements; ++i) {
    top = std::max(top, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
  }
  const float wanted = std::bit_cast<float>(top) * ((1.0f / kE2m1Max) * (1.0f / scale));
  const uint8_t code = std::max<uint8_t>(f32_to_e4m3(wanted), 1);
  const_cast<uint8_t*>(view.block_scales)[index / kFp4BlockElements] = code;
  const float inverse = 1.0f / (e4m3_to_f32(code) * scale);
  uint8_t* bytes = elements<uint8_t>(view, index / 2);
  for (int i = 0; i < kFp4BlockElements / 2; ++i) {
    const uint8_t low = f32_to_e2m1(values[2 * i] * inverse);
    bytes[i] = static_cast<uint8_t>(low | f32_to_e2m1(values[2 * i + 1] * inverse) << 4);
  }
}

}  // namespace

void kv_decode_run(const KvPoolView& view, int head, int64_t index, int count, float* out) {
  const float scale = head_scale(view, head);
  switch (view.format) {
    case KvFormat::f32: std::copy_n(elements<const float>(view, index), count, out); break;
    case KvFormat::bf16: {
      const uint16_t* bits = elements<const uint16_t>(view, index);
      for (int i = 0; i < count; ++i) out[i] = bf16_to_f32(bits[i]);
      break;
    }
    case KvFormat::f16: {
      const uint16_t* bits = elements<const uint16_t>(view, index);
      for (int i = 0; i < count; ++i) out[i] = f16_to_f32(bits[i]);
      break;
    }
    case KvFormat::fp8_e4m3:
    case KvFormat::fp8_e5m2: {
      const uint8_t* codes = elements<const uint8_t>(view, index);
      const float* table =
          (view.format == KvFormat::fp8_e4m3 ? kE4m3Table : kE5m2Table).values;
      for (int i = 0; i < count; ++i) out[i] = table[codes[i]] * scale;
      break;
    }
    case KvFormat::fp4_e2m1:
      assert(index % kFp4BlockElements == 0 && count % kFp4BlockElements == 0);
      for (int i = 0; i < count; i += kFp4BlockElements) {
        decode_fp4_block(view, scale, index + i, out + i);
      }
      break;
    case KvFormat::fp8_ds_mla:
    case KvFormat::fp4_mla: {
      uint16_t wide[kPackedTokenDim];
      unpack_latent_token(view.format, elements<const std::byte>(view, index), count, wide);
      for (int i = 0; i < count; ++i) out[i] = bf16_to_f32(wide[i]);
      break;
    }
  }
}

void kv_encode_run(const KvPoolView& view, int head, int64_t index, int count,
                   const float* values) {
  const float scale = head_scale(view, head);
  switch (view.format) {
    case KvFormat::f32: std::copy_n(values, count, elements<float>(view, index)); break;
    case KvFormat::bf16: {
      uint16_t* bits = elements<uint16_t>(view, index);
      for (int i = 0; i < count; ++i) bits[i] = f32_to_bf16(values[i]);
      break;
    }
    case KvFormat::f16: {
      uint16_t* bits = elements<uint16_t>(view, index);
      for (int i = 0; i < count; ++i) bits[i] = f32_to_f16(values[i]);
      break;
    }
    case KvFormat::fp8_e4m3:
    case KvFormat::fp8_e5m2: {
      uint8_t* codes = elements<uint8_t>(view, index);
      const float inverse = 1.0f / scale;
      const bool e4m3 = view.format == KvFormat::fp8_e4m3;
      for (int i = 0; i < count; ++i) {
        codes[i] = e4m3 ? f32_to_e4m3(values[i] * inverse) : f32_to_e5m2(values[i] * inverse);
      }
      break;
    }
    case KvFormat::fp4_e2m1:
      assert(index % kFp4BlockElements == 0 && count % kFp4BlockElements == 0);
      for (int i = 0; i < count; i += kFp4BlockElements) {
        encode_fp4_block(view, scale, index + i, values + i);
      }
      break;
    case KvFormat::fp8_ds_mla:
    case KvFormat::fp4_mla:
      assert(count == kPackedTokenDim);
      pack_latent_token(view.format, values, elements<std::byte>(view, index));
      break;
  }
}

}  // namespace warpweave
