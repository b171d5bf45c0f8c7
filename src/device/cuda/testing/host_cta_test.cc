#include "device/cuda/testing/host_cta.h"

#include <gtest/gtest.h>

#include <vector>

namespace warpweave::host_cta {
namespace {

constexpr Order kOrders[] = {Order::ascending, Order::descending, Order::random};

// What the orders are for: without the barrier some of them read too early.
TEST(HostCta, OrdersShowAMissingBarrier) {
  const auto rotated = [](Order order, bool barrier) {
    std::vector<int> from(64, -1), to(64);
    run(64, order, [&] {
      from[threadIdx.x] = static_cast<int>(threadIdx.x);
      if (barrier) __syncthreads();
      to[threadIdx.x] = from[(threadIdx.x + 1) % 64];
    });
    return to;
  };
  EXPECT_EQ(rotated(Order::ascending, true), rotated(Order::descending, true));
  EXPECT_EQ(rotated(Order::ascending, true), rotated(Order::random, true));
  EXPECT_NE(rotated(Order::ascending, false), rotated(Order::descending, false));
}

TEST(HostCta, WarpsExchangeWhatTheirLanesHave) {
  for (const Order order : kOrders) {
    run(96, order, [] {
      const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
      const int mine = 100 * warp + lane;
      EXPECT_EQ(__shfl_up_sync(~0u, mine, 3), lane < 3 ? mine : mine - 3);
      EXPECT_EQ(__shfl_xor_sync(~0u, mine, 5), 100 * warp + (lane ^ 5));
      EXPECT_EQ(__shfl_sync(~0u, 0.5 * mine, 31), 0.5 * (100 * warp + 31));
      EXPECT_EQ(__reduce_add_sync(~0u, mine), 32 * 100 * warp + 496);
      EXPECT_EQ(__ballot_sync(~0u, lane % 2 == 1), 0xaaaaaaaau);
    });
  }
}

// The second warp goes on, the first waits for it.
TEST(HostCta, ANamedBarrierHoldsWhoWaitsThere) {
  for (const Order order : kOrders) {
    std::vector<unsigned> from(kWarp), to(kWarp);
    run(2 * kWarp, order, [&] {
      const unsigned lane = threadIdx.x % kWarp;
      const bool first = threadIdx.x < kWarp;
      if (!first) from[lane] = lane + 1;
      come_to_barrier(3, 2 * kWarp, first);
      if (first) to[lane] = from[kWarp - 1 - lane];
    });
    for (unsigned lane = 0; lane < kWarp; ++lane) EXPECT_EQ(to[lane], kWarp - lane);
  }
}

TEST(HostCtaDeathTest, ANamedBarrierThatNobodyOpensIsNamed) {
  EXPECT_DEATH(run(kWarp, Order::ascending, [] { come_to_barrier(3, 2 * kWarp, true); }),
               "wait for others that do not come");
}

TEST(HostCtaDeathTest, ThreadsThatWaitForEverAreNamed) {
  EXPECT_DEATH(run(32, Order::ascending, [] {
    if (threadIdx.x == 0) __syncthreads();
    if (threadIdx.x != 0) __shfl_up_sync(~0u, 1, 1);
  }), "wait for others that do not come");
}

}  // namespace
}  // namespace warpweave::host_cta
