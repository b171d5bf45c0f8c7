// How kernels see one layer's K or V pages. The memory belongs to KvCache (kv_cache.h).
#pragma once

#include <cstdint>

#include "warpweave/tensor.h"

namespace warpweave {

// Element (page, offset, head, i) is at
// data + (page*page_stride + offset*token_stride + head*head_stride + i) * element_bytes.
// Strides are in elements. Pages are read only through a page table.
struct KvPoolView {
  const void* data = nullptr;
  DType dtype = DType::bf16;
  int64_t page_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

}  // namespace warpweave
