// How kernels see one layer's K or V pages. The memory belongs to KvCache (kv_cache.h).
#pragma once

#include <cstdint>

#include "kv/kv_format.h"

namespace warpweave {

// Element (page, offset, head, i) has index
//   page*page_stride + offset*token_stride + head*head_stride + i
// (64-bit: pools pass 2^31 elements) and stands at data + index * kv_format_bits / 8. Its value is
//   f32, bf16, f16        the stored one; both scale pointers are null
//   fp8_e4m3, fp8_e5m2    stored * head_scales[head]
//   fp4_e2m1              stored * block_scales[index / 16] * head_scales[head]
// but for fp8_ds_mla and fp4_mla, of one head, whose elements are the bytes of tokens (latent_token.h).
// head_scales is null where all are 1. Under fp4_e2m1 block_scales holds e4m3 codes and is never
// null; an even index is the low half of its byte; head dim and all strides are multiples of 16, so
// that blocks do not cross heads. A block scale or fp8 code that is NaN makes its values NaN.
// Pages are read only through a page table. K and V of a layer have the same format.
struct KvPoolView {
  const void* data = nullptr;
  KvFormat format = KvFormat::bf16;
  int64_t page_stride = 0;               // strides in elements
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  const uint8_t* block_scales = nullptr;
  const float* head_scales = nullptr;    // [num_kv_heads]; in host memory on the CPU, else the device's
};

}  // namespace warpweave
