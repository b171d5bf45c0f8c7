#include "spec/length_planner.h"

#include <algorithm>
#include <bit>

#include "spec/adaptive_length.h"
#include "spec/batch_length.h"

namespace warpweave {
namespace {

constexpr double kOwnWeight = 1.0 / 16, kCommonWeight = 1.0 / 64;  // of an outcome in the running means
constexpr double kSmallUs = 20;                                    // by which also a mean near 0 may grow

}  // namespace

double LengthPlanner::tokens_of(double right, int length) {
  double all = 1, next = right;
  for (int k = 0; k < length; ++k, next *= right) all += next;
  return all;
}

void LengthPlanner::learn(LengthState& state, int guesses, int accepted, int tellers) {
  const auto count = [&](double right) {
    state.right += kOwnWeight * (right - state.right);
    right_ += kCommonWeight / tellers * (right - right_);
  };
  for (int i = 0; i < accepted; ++i) count(1);
  if (accepted < guesses) count(0);
}

std::unique_ptr<LengthPlanner> make_length_planner(const AdaptiveOptions& options) {
  if (options.whole_batch) return std::make_unique<BatchLength>(options);
  return std::make_unique<AdaptiveLength>(options);
}

void RunningCost::add(double x) {
  constexpr int kTrusted = 8;      // samples, then an outlier counts as one of bounded size
  if (count >= kTrusted) x = std::clamp(x, value / 2, 1.5 * value + kSmallUs);
  ++count;
  value += (x - value) / std::min(count, 16);
}

// Steps are slow for many reasons and fast for none, so the mean follows fast ones soon: cold caches and other programs
// must not make guesses look cheap.
void RunningCost::add_cautiously(double x) {
  ++count;
  if (count == 1 || x < value) {
    value = count == 1 ? x : value + (x - value) / 2;
  } else {
    value += (std::min(x, 1.5 * value + kSmallUs) - value) / 16;
  }
}

int cost_bucket(int requests) {
  return std::min<int>(std::bit_width(static_cast<unsigned>(std::max(requests, 1) - 1)), kCostBuckets - 1);
}

}  // namespace warpweave
