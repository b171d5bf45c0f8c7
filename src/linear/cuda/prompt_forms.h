// Which heads of a batch of prompts are prepared and scanned in one launch where a call permits any form, and which in two. One launch
// takes whole rounds of a block a multiprocessor; what would leave its last round half empty may be faster in two.
#pragma once

#include "linear/cuda/linear_params.h"

namespace warpweave::linear {

// How many of the first v heads, a multiple of those that share a k head, for prompts that fused_takes().
int heads_in_one_launch(const LinearParams& p, int multiprocessors);

// The same call for v heads `first`, first + 1 .. first + count - 1.
LinearParams heads_of(const LinearParams& p, int first, int count);

}  // namespace warpweave::linear
