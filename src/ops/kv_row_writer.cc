#include "ops/kv_row_writer.h"

#include <cstring>

#include "kv/latent_token.h"

namespace warpweave {

void write_kv_head(const ElementwiseKernels& kernels, const KvPoolView& to, int head, int64_t at,
                   std::span<const float> values) {
  const float* const from = values.data();
  const auto dim = static_cast<int64_t>(values.size());
  void* const data = const_cast<void*>(to.data);  // the pool is written through its view
  const float scale = to.head_scales == nullptr ? 1.0f : to.head_scales[head];
  switch (to.format) {
    case KvFormat::f32: std::memcpy(static_cast<float*>(data) + at, from, dim * sizeof(float)); break;
    case KvFormat::bf16: kernels.f32_to_bf16(from, dim, static_cast<uint16_t*>(data) + at); break;
    case KvFormat::f16: kernels.f32_to_f16(from, dim, static_cast<uint16_t*>(data) + at); break;
    case KvFormat::fp8_e4m3: kernels.f32_to_e4m3(from, 1.0f / scale, dim, static_cast<uint8_t*>(data) + at); break;
    case KvFormat::fp8_e5m2: kernels.f32_to_e5m2(from, 1.0f / scale, dim, static_cast<uint8_t*>(data) + at); break;
    case KvFormat::fp4_e2m1:
      kernels.f32_to_fp4(from, scale, dim, static_cast<uint8_t*>(data) + at / 2,
                         const_cast<uint8_t*>(to.block_scales) + at / kFp4BlockElements);
      break;
    case KvFormat::fp8_ds_mla:
    case KvFormat::fp4_mla: pack_latent_token(to.format, from, static_cast<std::byte*>(data) + at); break;
  }
}

}  // namespace warpweave
