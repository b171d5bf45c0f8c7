// Plain attention in the precision of the KV pool: q and probabilities rounded to it, sums in f32,
// no blocks. Its distance from the reference is the unit in which backends' errors are judged.
#pragma once

#include "problem.h"

namespace warpweave::conformance {

Output naive_attention(const Problem& problem);

}  // namespace warpweave::conformance
