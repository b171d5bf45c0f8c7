// The characters cut into classes that no set of a list can tell apart: the alphabet of an automaton over those sets.
#pragma once

#include <optional>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/limits.h"

namespace warpweave::grammar {

struct CharPartition {
  std::vector<CharSet> atoms;                  // disjoint, together all characters; by their first character
  std::vector<std::vector<int>> atoms_of_set;  // by set: the atoms whose union it is
};

// The coarsest partition; nothing when it takes more than `budget`.
std::optional<CharPartition> partition_chars(const std::vector<CharSet>& sets, WorkBudget* budget);

}  // namespace warpweave::grammar
