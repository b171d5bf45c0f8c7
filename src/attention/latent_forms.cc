#include "attention/latent_forms.h"

#include <algorithm>
#include <cmath>

namespace warpweave {
namespace {

constexpr size_t kMostCrowds = 16;

using Pair = LatentFormTimes::Pair;

// Between which two of `values` a number lies, and how far from the first; beyond an end, at that end.
struct Place {
  size_t low = 0, high = 0;
  double share = 0;
};
Place place_in(const std::vector<int>& values, double value, double (*scale)(double)) {
  const auto above = std::lower_bound(values.begin(), values.end(), value);
  if (above == values.begin()) return {};
  if (above == values.end()) return {values.size() - 1, values.size() - 1, 0};
  const size_t high = above - values.begin();
  const double from = scale(values[high - 1]), to = scale(values[high]);
  return {high - 1, high, (scale(value) - from) / (to - from)};
}

double itself(double value) { return value; }
double logarithm(double value) { return std::log(value); }

Pair between_pairs(const Pair& from, const Pair& to, double share) {
  return {from.absorbed_us + share * (to.absorbed_us - from.absorbed_us),
          from.expanded_us + share * (to.expanded_us - from.expanded_us)};
}
Pair times(const Pair& pair, double factor) { return {pair.absorbed_us * factor, pair.expanded_us * factor}; }

// As times grow with new tokens, of which some meet each other: a line between their logarithms.
Pair between_powers(const Pair& from, const Pair& to, double share) {
  const auto between = [&](double a, double b) { return a * std::pow(b / a, share); };
  return {between(from.absorbed_us, to.absorbed_us), between(from.expanded_us, to.expanded_us)};
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

size_t index_of(const std::vector<int>& values, int value) {
  return std::lower_bound(values.begin(), values.end(), value) - values.begin();
}

}  // namespace

std::optional<LatentFormTimes> LatentFormTimes::of(std::span<const LatentFormPoint> points) {
  LatentFormTimes out;
  out.requests_ = values_of(points, &LatentFormPoint::requests);
  out.new_tokens_ = values_of(points, &LatentFormPoint::new_tokens);
  out.prefixes_ = values_of(points, &LatentFormPoint::prefix);
  const size_t crowds = out.requests_.size(), cells = out.new_tokens_.size() * out.prefixes_.size();
  if (crowds < 2 || crowds > kMostCrowds || out.requests_[0] != 1 || cells > points.size()) return std::nullopt;
  out.times_.resize(crowds * cells);
  for (const LatentFormPoint& point : points) {
    const size_t row = index_of(out.requests_, point.requests) * out.new_tokens_.size() +
                       index_of(out.new_tokens_, point.new_tokens);
    out.times_[row * out.prefixes_.size() + index_of(out.prefixes_, point.prefix)] = {point.absorbed_us,
                                                                                      point.expanded_us};
  }
  const auto measured = [](const Pair& pair) { return pair.absorbed_us > 0 && pair.expanded_us > 0; };
  if (!std::all_of(out.times_.begin(), out.times_.begin() + cells, measured)) return std::nullopt;
  for (size_t i = cells; i < out.times_.size(); ++i) {
    const double growth = static_cast<double>(out.requests_[i / cells]) / out.requests_[i / cells - 1];
    if (!measured(out.times_[i])) out.times_[i] = times(out.times_[i - cells], growth);
  }
  return out;
}

LatentFormTimes LatentFormTimes::between(const LatentFormTimes& low, const LatentFormTimes& high,
                                         const Shares& shares) {
  LatentFormTimes out = low;
  auto time = out.times_.begin();
  for (const int requests : low.requests_) {
    for (const int new_tokens : low.new_tokens_) {
      for (const int prefix : low.prefixes_) {
        const Pair to = high.estimate(requests, new_tokens, prefix);
        time->absorbed_us += shares.absorbed * (to.absorbed_us - time->absorbed_us);
        time->expanded_us += shares.expanded * (to.expanded_us - time->expanded_us);
        ++time;
      }
    }
  }
  return out;
}

LatentFormTimes LatentFormTimes::scaled(double factor) const {
  LatentFormTimes out = *this;
  for (Pair& pair : out.times_) pair = times(pair, factor);
  return out;
}

// By logarithms of the new tokens, and a line along prefixes, of which the shortest needs kernels that none needs not.
// Beyond the grid's ends times grow as the pairs of tokens do that meet.
Pair LatentFormTimes::of_crowd(size_t crowd, int new_tokens, int prefix) const {
  const Place row = place_in(new_tokens_, new_tokens, logarithm);
  Place column = place_in(prefixes_, prefix, itself);
  if (column.low == 0 && prefixes_[0] == 0 && prefix > 0) column.low = column.high;
  const auto along = [&](size_t r) {
    const Pair* const of_row = &times_[(crowd * new_tokens_.size() + r) * prefixes_.size()];
    return between_pairs(of_row[column.low], of_row[column.high], column.share);
  };
  const int inside_new = std::clamp(new_tokens, new_tokens_.front(), new_tokens_.back());
  const int inside_prefix = std::clamp(prefix, prefixes_.front(), prefixes_.back());
  const double growth = std::max(1.0, pairs_of(new_tokens, prefix) / pairs_of(inside_new, inside_prefix));
  return times(between_powers(along(row.low), along(row.high), row.share), growth);
}

Pair LatentFormTimes::estimate(double requests, int new_tokens, int prefix) const {
  const Place crowd = place_in(requests_, requests, itself);
  const Pair step = between_pairs(of_crowd(crowd.low, new_tokens, prefix), of_crowd(crowd.high, new_tokens, prefix),
                                  crowd.share);
  return times(step, std::max(1.0, requests / requests_.back()));
}

}  // namespace warpweave
