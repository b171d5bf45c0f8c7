#include "attention/latent_forms.h"

#include <algorithm>
#include <cmath>

namespace warpweave {
namespace {

// Between which two of `values` a number lies, and how far from the first, by logarithms of one more than each.
struct Place {
  size_t low = 0, high = 0;
  double share = 0;
};
Place place_in(const std::vector<int>& values, int value) {
  const auto above = std::lower_bound(values.begin(), values.end(), value);
  if (above == values.begin()) return {};
  if (above == values.end()) return {values.size() - 1, values.size() - 1, 0};
  const size_t high = above - values.begin();
  const double from = std::log1p(values[high - 1]), to = std::log1p(values[high]);
  return {high - 1, high, (std::log1p(value) - from) / (to - from)};
}

double pairs_of(double new_tokens, double prefix) { return new_tokens * (prefix + 0.5 * new_tokens); }

// What the points have there, ascending, each value once.
std::vector<int> values_of(std::span<const LatentFormPoint> points, int LatentFormPoint::*field) {
  std::vector<int> values;
  for (const LatentFormPoint& point : points) values.push_back(point.*field);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

std::optional<LatentFormTimes> LatentFormTimes::of(std::span<const LatentFormPoint> points) {
  LatentFormTimes out;
  out.new_tokens_ = values_of(points, &LatentFormPoint::new_tokens);
  out.prefixes_ = values_of(points, &LatentFormPoint::prefix);
  const size_t cells = out.new_tokens_.size() * out.prefixes_.size();
  if (cells == 0 || cells > points.size()) return std::nullopt;
  out.times_.resize(cells);
  for (const LatentFormPoint& point : points) {
    const size_t row =
        std::lower_bound(out.new_tokens_.begin(), out.new_tokens_.end(), point.new_tokens) - out.new_tokens_.begin();
    const size_t column =
        std::lower_bound(out.prefixes_.begin(), out.prefixes_.end(), point.prefix) - out.prefixes_.begin();
    out.times_[row * out.prefixes_.size() + column] = {point.absorbed_us, point.expanded_us};
  }
  const bool whole = std::all_of(out.times_.begin(), out.times_.end(), [](const Pair& pair) {
    return pair.absorbed_us > 0 && pair.expanded_us > 0;
  });
  return whole ? std::optional(std::move(out)) : std::nullopt;
}

LatentFormTimes::Pair LatentFormTimes::estimate(int new_tokens, int prefix) const {
  const Place row = place_in(new_tokens_, new_tokens), column = place_in(prefixes_, prefix);
  const auto between = [&](double Pair::*time) {
    const auto at = [&](size_t r, size_t c) { return std::log(times_[r * prefixes_.size() + c].*time); };
    const auto along = [&](size_t r) {
      return at(r, column.low) + column.share * (at(r, column.high) - at(r, column.low));
    };
    return std::exp(along(row.low) + row.share * (along(row.high) - along(row.low)));
  };
  const int inside_new = std::clamp(new_tokens, new_tokens_.front(), new_tokens_.back());
  const int inside_prefix = std::clamp(prefix, prefixes_.front(), prefixes_.back());
  const double growth = std::max(1.0, pairs_of(new_tokens, prefix) / pairs_of(inside_new, inside_prefix));
  return {between(&Pair::absorbed_us) * growth, between(&Pair::expanded_us) * growth};
}

}  // namespace warpweave
