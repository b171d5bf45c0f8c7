// Chains on their way through a step that verifies them: the GPU's kernels, run on the host.
#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "spec/cuda/chain_steps.cuh"

namespace warpweave::gpu {
namespace {

using host_cta::Order;

TEST(PlacedGuesses, AreFirstLevelsThenThoseOfEachPass) {
  constexpr int kRequests = 2, kLen = 4, kStride = 3;  // a request of padding among the passes
  const std::vector<int32_t> first_ids = {-2, 70};     // a choice, and a token that the host knew
  const std::vector<DraftChoice> choices = {{50, 0}, {51, 0}};
  const std::vector<DraftChoice> later = {{60, 0}, {61, 0}, {9, 0}, {62, 0}, {63, 0}, {9, 0}};
  std::vector<int32_t> ids(kRequests * kLen + kLen, -7), copy = ids;
  const PlaceGuessesCall call = {.requests = kRequests, .q_len = kLen, .first_ids = first_ids.data(),
                                 .choices = choices.data(), .later = later.data(), .later_stride = kStride,
                                 .ids = ids.data(), .copy = copy.data()};
  host_cta::run(kChainThreads, Order::random, [&] { place_guesses_kernel(call); });
  const std::vector<int32_t> expected = {-7, 51, 60, 62, -7, 70, 61, 63, -7, -7, -7, -7};
  EXPECT_EQ(ids, expected);
  EXPECT_EQ(copy, expected);
}

TEST(FollowedChains, CountAsFarAsGuessesAreWhatWasSampled) {
  constexpr int kRequests = 5, kLen = 3;
  const std::vector<int32_t> ids = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3};
  const std::vector<int32_t> sampled = {2, 3, 4,    // all are right
                                        2, 5, 3,    // the second is not, though what follows looks so
                                        6, 3, 4,    // none is
                                        -1, 3, 4,   // the row failed
                                        6, 6, 6};   // told that two rows count
  const std::vector<int32_t> accepted = {-1, -1, -1, -1, 2};
  std::vector<int32_t> next(kRequests * kLen, -7), last(kRequests, -7);
  const FollowChainsCall call = {.requests = kRequests, .q_len = kLen, .ids = ids.data(), .sampled = sampled.data(),
                                 .accepted = accepted.data(), .next_ids = next.data(), .last_rows = last.data()};
  host_cta::run(kChainThreads, Order::random, [&] { follow_chains_kernel(call); });
  EXPECT_EQ(next, (std::vector<int32_t>{2, 3, 4, 2, 5, 0, 6, 0, 0, 0, 0, 0, 2, 6, 0}));
  EXPECT_EQ(last, (std::vector<int32_t>{2, 4, 6, 9, 13}));
}

}  // namespace
}  // namespace warpweave::gpu
