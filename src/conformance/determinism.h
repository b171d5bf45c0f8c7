// Equal bits for a variant that claims Caps::deterministic: whatever else is in the batch, however
// the prompt was cut into chunks, in extend and in decode, with any number of threads and any page
// size it has, run after run.
#pragma once

#include <string>

#include "conformance/case.h"
#include "conformance/variant.h"

namespace warpweave::conformance {

// The first circumstance that changed a bit ("chunks of 7"), or empty.
std::string first_difference(const Case& c, KvFormat format, const Variant& variant, int page_size);

}  // namespace warpweave::conformance
