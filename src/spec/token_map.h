// The tokens that a draft model may guess (--speculative-token-map): the output head of a draft over a few thousand
// frequent tokens reads a fraction of what one over a large vocabulary does (FR-Spec, Zhao et al. 2025).
//
// A file holds a JSON list of token ids, or what torch.save() writes of a list or a tensor of whole numbers: a zip
// archive, stored. Pickles are not run: of their instructions those that a list of numbers needs are read, all others
// refused.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "warpweave/status.h"

namespace warpweave {

// The ids in ascending order. Errors (invalid_argument): no such list, none in it, an id twice or outside of [0,
// vocab_size).
Result<std::vector<int32_t>> parse_token_map(std::string_view bytes, int vocab_size);

}  // namespace warpweave
