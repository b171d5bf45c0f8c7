// Writes one head of one token to a pool, in any format (kv/kv_codec.h), with a tier's kernels.
#pragma once

#include <cstdint>
#include <span>

#include "kv/kv_pool_view.h"
#include "ops/kernels/elementwise_kernels.h"

namespace warpweave {

// The index of the first element of `slot` (page * page_size + offset) and head 0.
inline int64_t slot_index(const KvPoolView& to, int32_t slot, int page_size) {
  return slot / page_size * to.page_stride + slot % page_size * to.token_stride;
}

// `at` is the index of the head's first element.
void write_kv_head(const ElementwiseKernels& kernels, const KvPoolView& to, int head, int64_t at,
                   std::span<const float> values);

}  // namespace warpweave
