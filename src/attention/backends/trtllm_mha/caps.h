// What trtllm_mha can do here: decode with K and V as the rows of the matrix instructions and the q
// heads as their columns, on pages of 16 to 128 tokens. Prefill is another backend's.
#pragma once

#include "attention/base_caps.h"

namespace warpweave::trtllm_mha {

inline constexpr Caps kCaps = [] {
  Caps caps = kPagedCudaCaps;
  caps.name = "trtllm_mha";
  caps.summary = "swap-AB split-KV decode planned on the device, pages of 16 to 128 tokens";
  caps.phases = {AttentionPhase::decode};
  caps.page_sizes = IntChoice::of({16, 32, 64, 128});
  caps.non_causal = false;
  return caps;
}();

}  // namespace warpweave::trtllm_mha
