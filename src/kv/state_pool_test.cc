#include "kv/state_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "kv/state_cache.h"

namespace warpweave {
namespace {

using Use = StateSlotUse;

TEST(StatePool, HandsOutEverySlotOnceThenNone) {
  StatePool pool(4, 4);
  std::set<int32_t> slots;
  for (int i = 0; i < 4; ++i) slots.insert(pool.alloc(Use::request));
  EXPECT_EQ(slots, (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(pool.alloc(Use::request), kNoStateSlot);
  EXPECT_EQ(pool.num_requests(), 4);
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(StatePool, CheckpointsLeaveThePlacesOfRequests) {
  StatePool pool(5, 3);
  EXPECT_EQ(pool.max_checkpoints(), 2);
  EXPECT_NE(pool.alloc(Use::checkpoint), kNoStateSlot);
  const int32_t second = pool.alloc(Use::checkpoint);
  EXPECT_EQ(pool.alloc(Use::checkpoint), kNoStateSlot) << "three free slots are for requests";
  for (int i = 0; i < 3; ++i) EXPECT_NE(pool.alloc(Use::request), kNoStateSlot);
  EXPECT_TRUE(pool.unref(second));
  EXPECT_NE(pool.alloc(Use::request), kNoStateSlot) << "requests may take what checkpoints leave";
  EXPECT_EQ(pool.num_checkpoints(), 1);
  EXPECT_EQ(pool.num_requests(), 4);
}

TEST(StatePool, ACheckpointLivesAsLongAsItsReaders) {
  StatePool pool(2, 1);
  const int32_t slot = pool.alloc(Use::checkpoint);
  pool.ref(slot);
  EXPECT_FALSE(pool.unref(slot));
  EXPECT_EQ(pool.num_checkpoints(), 1);
  EXPECT_TRUE(pool.unref(slot));
  EXPECT_EQ(pool.num_checkpoints(), 0);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(StatePool, CheckpointsStayWithinTheBudget) {
  StatePool pool(4, 2);
  const int32_t request = pool.alloc(Use::request);
  const int32_t first = pool.alloc(Use::checkpoint), second = pool.alloc(Use::checkpoint);
  EXPECT_EQ(pool.use(first), Use::checkpoint);
  EXPECT_EQ(pool.use(second), Use::checkpoint);
  EXPECT_EQ(pool.alloc(Use::checkpoint), kNoStateSlot);
  EXPECT_EQ(pool.use(request), Use::request) << "a refusal changes nothing";
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_TRUE(pool.audit(std::vector<int32_t>{request}, std::vector<int32_t>{first, second}).ok());
}

TEST(StatePool, AuditNamesWhatIsWrong) {
  StatePool pool(3, 1);
  const int32_t request = pool.alloc(Use::request), checkpoint = pool.alloc(Use::checkpoint);
  const std::vector<int32_t> requests{request}, checkpoints{checkpoint}, none;
  EXPECT_TRUE(pool.audit(requests, checkpoints).ok());
  struct Row { std::vector<int32_t> requests, checkpoints; const char* says; };
  for (const Row& row : {Row{none, checkpoints, "has 1 references, but 0 holders"},          // a leak
                         Row{requests, {checkpoint, checkpoint}, "has 1 references, but 2"},  // held too often
                         Row{{request, request}, checkpoints, "belongs to two holders"},
                         Row{{request, checkpoint}, none, "another use"},
                         Row{{request}, {checkpoint, request}, "belongs to two holders"},
                         Row{{request, 2}, checkpoints, "held and on the free list"},
                         Row{{request, 3}, checkpoints, "is no slot"}}) {
    const Status status = pool.audit(row.requests, row.checkpoints);
    EXPECT_EQ(status.code(), StatusCode::internal);
    EXPECT_NE(status.message().find(row.says), std::string::npos) << status.message();
  }
}

TEST(StatePoolDeathTest, MisuseIsAProgrammerError) {
#ifdef NDEBUG
  GTEST_SKIP() << "built without asserts";
#endif
  StatePool pool(2, 1);
  const int32_t slot = pool.alloc(Use::request);
  EXPECT_DEATH(pool.ref(slot), "checkpoint") << "a request's slot has one holder";
  pool.unref(slot);
  EXPECT_DEATH(pool.unref(slot), "refs");
}

// Requests that begin, are copied, end and leave checkpoints behind, in random order; each slot's memory holds what its
// holder last wrote there.
TEST(StatePool, RandomLivesKeepTheBooksAndTheBytes) {
  std::mt19937 random(7);
  StatePool pool(12, 5);
  auto cache = StateCache::create({.num_layers = 3, .num_slots = 12, .recurrent_elements = 40, .conv_elements = 6,
                                   .recurrent_dtype = DType::bf16});
  ASSERT_TRUE(cache.ok());
  std::map<int32_t, int> requests, checkpoints;  // slot -> the byte in it
  std::map<int32_t, int> readers;
  const auto pick = [&](const std::map<int32_t, int>& from) {
    return std::next(from.begin(), random() % from.size())->first;
  };
  int copied = 0, refused = 0;
  for (int step = 0; step < 20000; ++step) {
    const int action = static_cast<int>(random() % 8);
    if (action <= 1) {
      const int32_t slot = pool.alloc(Use::request);
      if (slot == kNoStateSlot) { ++refused; continue; }
      requests[slot] = step % 251;
      cache->fill(slot, std::byte(step % 251));
    } else if (action <= 3 && !requests.empty()) {
      const int32_t from = pick(requests);
      const int32_t to = pool.alloc(action == 2 ? Use::request : Use::checkpoint);
      if (to == kNoStateSlot) { ++refused; continue; }
      cache->copy({from, to});
      (action == 2 ? requests : checkpoints)[to] = requests[from];
      ++copied;
    } else if (action == 4 && !requests.empty()) {
      const int32_t slot = pick(requests);
      EXPECT_TRUE(pool.unref(slot));
      requests.erase(slot);
    } else if (action == 5 && !checkpoints.empty()) {
      const int32_t slot = pick(checkpoints);
      if (readers[slot] > 0) {
        --readers[slot];
        EXPECT_FALSE(pool.unref(slot));
      } else {
        EXPECT_TRUE(pool.unref(slot));
        checkpoints.erase(slot);
      }
    } else if (action == 6 && !checkpoints.empty()) {
      const int32_t slot = pick(checkpoints);
      ++readers[slot];
      pool.ref(slot);
    } else if (action == 7 && !requests.empty()) {
      const int32_t slot = pick(requests);
      requests[slot] = (requests[slot] + 1) % 251;
      cache->fill(slot, std::byte(requests[slot]));
    }
    std::vector<int32_t> by_requests, as_checkpoints;
    for (auto [slot, byte] : requests) by_requests.push_back(slot);
    for (auto [slot, byte] : checkpoints) as_checkpoints.insert(as_checkpoints.end(), 1 + readers[slot], slot);
    ASSERT_TRUE(pool.audit(by_requests, as_checkpoints).ok()) << pool.audit(by_requests, as_checkpoints).message();
    ASSERT_EQ(pool.num_requests(), static_cast<int>(requests.size()));
    ASSERT_EQ(pool.num_checkpoints(), static_cast<int>(checkpoints.size()));
    ASSERT_LE(pool.num_checkpoints(), 7);
    for (const auto& held : {requests, checkpoints}) {
      for (auto [slot, byte] : held) ASSERT_TRUE(cache->is_filled(slot, std::byte(byte))) << "slot " << slot;
    }
  }
  EXPECT_GT(copied, 100);
  EXPECT_GT(refused, 100);
}

TEST(StateCache, LayersAndSlotsStandApart) {
  const StateCacheShape shape{.num_layers = 2, .num_slots = 3, .recurrent_elements = 10, .conv_elements = 4,
                              .recurrent_dtype = DType::f32, .conv_dtype = DType::bf16};
  EXPECT_EQ(StateCache::bytes_per_slot(shape), 2u * (10 * 4 + 4 * 2));
  auto cache = StateCache::create(shape);
  ASSERT_TRUE(cache.ok());
  float value = 0;
  for (int layer = 0; layer < 2; ++layer) {
    const StateLayerView view = cache->recurrent(layer);
    EXPECT_EQ(view.slot_stride, 10);
    for (int i = 0; i < 30; ++i) static_cast<float*>(view.data)[i] = value++;
    EXPECT_EQ(cache->conv(layer).slot_stride, 4);
    for (int i = 0; i < 12; ++i) static_cast<uint16_t*>(cache->conv(layer).data)[i] = static_cast<uint16_t>(value++);
  }
  cache->copy({.from = 2, .to = 0});
  for (int layer = 0; layer < 2; ++layer) {
    const auto* recurrent = static_cast<const float*>(cache->recurrent(layer).data);
    const auto* conv = static_cast<const uint16_t*>(cache->conv(layer).data);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(recurrent[i], recurrent[20 + i]);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(conv[i], conv[8 + i]);
    EXPECT_EQ(recurrent[10], static_cast<float>(layer * 42 + 10)) << "the slot between is left alone";
    EXPECT_EQ(conv[4], layer * 42 + 34);
  }
  cache->clear(1);
  EXPECT_TRUE(cache->is_filled(1, std::byte{0}));
  EXPECT_FALSE(cache->is_filled(2, std::byte{0}));
}

TEST(StateCache, RefusesWhatCannotBe) {
  const StateCacheShape sound{.num_layers = 1, .num_slots = 1, .recurrent_elements = 1};
  EXPECT_TRUE(StateCache::create(sound).ok());
  auto shape = sound;
  shape.num_slots = 0;
  EXPECT_FALSE(StateCache::create(shape).ok());
  shape = sound;
  shape.recurrent_elements = 0;
  EXPECT_FALSE(StateCache::create(shape).ok());
  shape = sound;
  shape.recurrent_dtype = DType::f16;
  EXPECT_EQ(StateCache::create(shape).status().field(), "--mamba-ssm-dtype");
  shape = sound;
  shape.num_slots = 2'000'000'000;
  shape.recurrent_elements = int64_t{1} << 40;
  EXPECT_EQ(StateCache::create(shape).status().field(), "--max-mamba-cache-size");
}

TEST(StateCache, AConvolutionAloneIsAState) {
  auto cache = StateCache::create({.num_layers = 2, .num_slots = 2, .conv_elements = 8});
  ASSERT_TRUE(cache.ok());
  cache->fill(0, std::byte{7});
  cache->copy({.from = 0, .to = 1});
  EXPECT_TRUE(cache->is_filled(1, std::byte{7}));
}

}  // namespace
}  // namespace warpweave
