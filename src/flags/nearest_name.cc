#include "flags/nearest_name.h"

#include <algorithm>
#include <vector>

namespace warpweave {

int edit_distance(std::string_view a, std::string_view b) {
  const size_t width = b.size() + 1;
  std::vector<int> two_above(width), above(width), row(width);
  for (size_t j = 0; j < width; ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(two_above, above);
    std::swap(above, row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j < width; ++j) {
      const int replace = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_above[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::string_view nearest_name(std::string_view typed,
                              std::span<const std::string_view> candidates) {
  std::string_view best;
  int best_distance = std::max<int>(2, static_cast<int>(typed.size()) / 3) + 1;
  for (std::string_view candidate : candidates) {
    const bool begins = typed.size() >= 5 && candidate.starts_with(typed);
    const int distance = begins ? 0 : edit_distance(typed, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace warpweave
