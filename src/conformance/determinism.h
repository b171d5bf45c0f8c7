// Equal bits for a variant that claims Caps::deterministic: whatever else is in the batch, however
// the prompt was cut into chunks, in extend and in decode, with any number of threads and any page
// size it has, run after run; and, on CPUs, as a node of a draft tree.
#pragma once

#include <string>

#include "conformance/problem.h"
#include "conformance/variant.h"

namespace warpweave::conformance {

// A page size other than `page_size` that a backend has, or 0.
int other_page_size(const Caps& caps, int page_size);

// A case at the variant's page size and, if it has another, at that: of equal values.
struct BitProblems {
  const Problem& problem;
  const Problem* other_pages = nullptr;
};

// The first circumstance that changed a bit ("chunks of 7"), or empty.
std::string first_difference(const BitProblems& problems, const Variant& variant);

}  // namespace warpweave::conformance
