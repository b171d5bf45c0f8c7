// Who takes items finds them prepared, in order, whatever the threads do; nobody runs too far ahead.
#include "conformance/ahead_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

namespace warpweave::conformance {
namespace {

using namespace std::chrono_literals;

TEST(AheadQueue, ItemsAreThereWhenTheyAreWantedAndNotMuchEarlier) {
  constexpr int kItems = 40, kAhead = 5;
  std::vector<int> made(kItems);
  std::atomic<int> taken = 0, too_early = 0;
  AheadQueue queue(4, {.items = kItems, .ahead = kAhead, .first = {}, .prepare = [&](int64_t item) {
                         if (item > taken + kAhead) ++too_early;
                         if (item % 7 == 0) std::this_thread::sleep_for(2ms);
                         made[item] = static_cast<int>(item) + 1;
                       },
                       .meanwhile = {}});
  for (int item = 0; item < kItems; ++item) {
    taken = item;  // before it is asked for, when the queue may go on
    queue.wait_for(item);
    EXPECT_EQ(made[item], item + 1);
  }
  EXPECT_EQ(too_early, 0);
}

TEST(AheadQueue, OtherWorkIsDoneWhileItemsWaitToBeTaken) {
  std::atomic<int> prepared = 0, others = 0;
  std::vector<std::function<void()>> meanwhile(9, [&] { ++others; });
  AheadQueue queue(2, {.items = 6, .ahead = 1, .first = {}, .prepare = [&](int64_t) { ++prepared; }, .meanwhile = meanwhile});
  for (int i = 0; i < 2000 && (others < 9 || prepared < 2); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(others, 9);
  EXPECT_EQ(prepared, 2) << "the one wanted and one ahead";
  for (int64_t item = 1; item < 6; ++item) queue.wait_for(item);
  EXPECT_EQ(prepared, 6);
}

TEST(AheadQueue, SomeAreBegunBeforeAllOthers) {
  std::vector<int64_t> order;
  AheadQueue queue(1, {.items = 6,
                       .ahead = 1,
                       .first = {4, 2},
                       .prepare = [&](int64_t item) { order.push_back(item); },  // one thread
                       .meanwhile = {}});
  for (int64_t item = 0; item < 6; ++item) queue.wait_for(item);
  EXPECT_EQ(order, (std::vector<int64_t>{4, 2, 0, 1, 3, 5}));
}

TEST(AheadQueue, AFailureIsThatOfItsItem) {
  AheadQueue queue(2, {.items = 3, .ahead = 3, .first = {}, .prepare = [](int64_t item) {
                         if (item == 1) throw std::runtime_error("no memory for item 1");
                       },
                       .meanwhile = {}});
  queue.wait_for(0);
  EXPECT_THROW(queue.wait_for(1), std::runtime_error);
  queue.wait_for(2);
}

TEST(AheadQueue, WhatIsNotTakenIsLeft) {
  std::atomic<int> prepared = 0;
  {
    AheadQueue queue(3, {.items = 1000, .ahead = 2, .first = {}, .prepare = [&](int64_t) { ++prepared; }, .meanwhile = {}});
    queue.wait_for(0);
  }
  EXPECT_LE(prepared, 3);
}

}  // namespace
}  // namespace warpweave::conformance
