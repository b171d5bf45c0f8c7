#include "engine/widest_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "attention/batch_check.h"

namespace warpweave {
namespace {

SchedulerConfig flags() {
  SchedulerConfig config;
  config.context_len = 100;
  config.num_pages = 7;
  config.chunked_prefill_size = 256;
  config.max_running_requests = 8;
  config.max_proposals = 15;
  config.max_step_proposals = 64;
  return config;
}

// Of f32 weights.
LogitsHead head_of(int vocab_size) { return {.vocab_size = vocab_size, .weight_bytes = 4, .threads = 8}; }

TEST(WidestStep, HasTheRowsThatTheFlagsAllow) {
  SchedulerConfig config = flags();
  WidestStep widest = WidestStep::of(config, {}, head_of(1000));
  EXPECT_EQ(widest.rows, 256);
  EXPECT_EQ(widest.logits_rows, 128);

  config.enable_mixed_chunk = true;
  EXPECT_EQ(WidestStep::of(config, {}, head_of(1000)).rows, 256 + 8);
  config.chunked_prefill_size = 10;
  EXPECT_EQ(WidestStep::of(config, {}, head_of(1000)).rows, 8 + 64) << "proposals";
  config.chunked_prefill_size = 256;

  config.state_slots = 2;
  EXPECT_EQ(WidestStep::of(config, {}, head_of(1000)).rows, 200) << "two requests of the context";
}

// Beyond its bounds memory is taken when it is needed.
TEST(WidestStep, IsBounded) {
  SchedulerConfig config = flags();
  for (const int chunk : {-1, 100'000}) {
    config.chunked_prefill_size = chunk;
    EXPECT_EQ(WidestStep::of(config, {}, head_of(1000)).rows, WidestStep::kMostRows);
  }
  // The flags' own bounds.
  config.max_running_requests = config.max_prefill_tokens = std::numeric_limits<int>::max();
  for (const int chunk : {-1, std::numeric_limits<int>::max()}) {
    config.chunked_prefill_size = chunk;
    EXPECT_EQ(WidestStep::of(config, {}, head_of(1000)).rows, WidestStep::kMostRows);
  }
  config.max_running_requests = 4096;
  const WidestStep widest = WidestStep::of(config, {}, head_of(200'000));
  EXPECT_LE(widest.logits_rows * int64_t{200'000} * 4, int64_t{64} << 20);
  EXPECT_GE(widest.logits_rows, 64);
}

// Rows are sampled block by block: the memory does not grow with the requests.
TEST(WidestStep, LogitsOfManyRequestsTakeNoMoreThanABlock) {
  SchedulerConfig config = flags();
  config.chunked_prefill_size = 2048;
  config.max_running_requests = 1024;
  for (const int vocab_size : {1000, 49'152, 151'936, 262'144}) {
    const int rows = WidestStep::of(config, {}, head_of(vocab_size)).logits_rows;
    EXPECT_EQ(rows, WidestStep::logits_block_rows(head_of(vocab_size))) << vocab_size;
    EXPECT_GE(rows, 64) << "the head's weights are read once a block";
    EXPECT_LE(rows, 128);
  }
  EXPECT_EQ(WidestStep::logits_block_rows(head_of(49'152)), 128);
  EXPECT_EQ(WidestStep::logits_block_rows(head_of(151'936)), 64);
}

// Fewer rows take as long as reading the head's weights where these are small and few threads multiply.
TEST(WidestStep, LogitsBlocksFollowWhatReadingTheHeadTakes) {
  const auto rows = [](int vocab_size, double weight_bytes, int threads) {
    return WidestStep::logits_block_rows({vocab_size, weight_bytes, threads});
  };
  constexpr double kQ4_1 = 20.0 / 32, kQ8_0 = 34.0 / 32;
  for (const int vocab_size : {1000, 49'152, 262'144}) {
    for (const int threads : {1, 2}) {
      EXPECT_EQ(rows(vocab_size, kQ4_1, threads), 32);
      EXPECT_EQ(rows(vocab_size, kQ8_0, threads), 32);
      EXPECT_EQ(rows(vocab_size, 2, threads), 64);
    }
  }
  EXPECT_EQ(rows(49'152, 4, 2), 128);
  EXPECT_EQ(rows(49'152, kQ8_0, 4), 64);
  EXPECT_EQ(rows(49'152, kQ8_0, 256), 128);
  EXPECT_EQ(rows(151'936, 4, 256), 64);
}

TEST(WidestStep, ItsBatchIsOneThatBackendsTakeAndWritesNothing) {
  for (const int page_size : {1, 16}) {
    const WidestStep widest = WidestStep::of(flags(), {.page_size = page_size, .num_groups = 2}, head_of(1000));
    const WidestBatch made_up(widest);
    const ForwardBatch& batch = made_up.batch();
    EXPECT_TRUE(check_batch(batch).ok()) << check_batch(batch).message();
    EXPECT_EQ(batch.num_tokens, widest.rows);
    EXPECT_EQ(batch.q_indptr.back(), widest.rows);
    EXPECT_EQ(batch.groups.size(), 2u);
    for (const CacheGroupArrays& group : batch.groups) {
      EXPECT_TRUE(std::all_of(group.kv_slots.begin(), group.kv_slots.end(), [](int32_t slot) { return slot < 0; }));
      EXPECT_TRUE(std::all_of(group.page_table.begin(), group.page_table.end(),
                              [](int32_t page) { return page >= 0 && page < 7; }));
    }
    for (int r = 0; r < batch.num_reqs; ++r) {
      EXPECT_LE(batch.q_len(r), 100);
      EXPECT_EQ(batch.positions[batch.q_indptr[r]], 0);
      EXPECT_EQ(batch.kv_lens[r], batch.q_len(r));
    }
  }
}

}  // namespace
}  // namespace warpweave
