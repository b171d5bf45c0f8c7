// "Did you mean": the candidate nearest to what was typed. Pure.
#pragma once

#include <span>
#include <string_view>

namespace warpweave {

// Letters to insert, delete, replace or swap with a neighbour to get from a to b.
int edit_distance(std::string_view a, std::string_view b);

// The candidate that begins with `typed`, else the one at the smallest edit distance; empty when
// nothing is near (a third of the letters wrong).
std::string_view nearest_name(std::string_view typed, std::span<const std::string_view> candidates);

}  // namespace warpweave
