// Where a token of a request stands in the paged pools.
#pragma once

#include <cstdint>

#include "attention/cuda/attention_params.h"
#include "device/cuda/ptx.h"

namespace warpweave::cuda {

// Of the request's pages. Sizes that are no power of two are divided by.
WW_DEVICE int page_index(const AttentionParams& p, int token) {
  return p.page_shift >= 0 ? token >> p.page_shift : token / p.page_size;
}

WW_DEVICE int page_at(const AttentionParams& p, int request, int index) {
  return __ldg(p.page_table + static_cast<int64_t>(request) * p.page_table_stride + index);
}

// `in_page`: the token's place there.
WW_DEVICE int page_of_token(const AttentionParams& p, int request, int token, int& in_page) {
  const int index = page_index(p, token);
  in_page = token - index * p.page_size;
  return page_at(p, request, index);
}

}  // namespace warpweave::cuda
