// How kernels see one layer's K or V pages. The memory belongs to KvCache (kv_cache.h).
#pragma once

#include <cstdint>

#include "kv/kv_format.h"

namespace warpweave {

// Element (page, offset, head, i) has index
//   page*page_stride + offset*token_stride + head*head_stride + i
// and stands at data + index * kv_format_bits / 8. Its value is the stored one times
// head_scales[head] (1 where null) and, under fp4_e2m1, times block_scales[index / 16], an e4m3
// byte; strides are then multiples of 16. Pages are read only through a page table.
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
