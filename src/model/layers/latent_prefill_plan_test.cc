#include "model/layers/latent_prefill_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace warpweave {
namespace {

struct Request {
  int q_len, kv_len;
};

LatentPrefillPlan plan_of(const std::vector<Request>& requests, int64_t capacity_rows = 1 << 20) {
  const LatentPrefillShape shape = {.rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .capacity_rows = capacity_rows};
  std::vector<int32_t> q_indptr = {0}, kv_lens;
  for (const Request& r : requests) {
    q_indptr.push_back(q_indptr.back() + r.q_len);
    kv_lens.push_back(r.kv_len);
  }
  return plan_latent_prefill(shape, q_indptr, kv_lens);
}

TEST(LatentPrefillPlan, LongPromptsExpandAndShortExtendsDoNot) {
  EXPECT_TRUE(plan_of({{8192, 8192}}).expands);
  EXPECT_TRUE(plan_of({{512, 512}}).expands);
  EXPECT_TRUE(plan_of({{512, 32768}}).expands);
  EXPECT_FALSE(plan_of({{64, 32768}}).expands);
  EXPECT_FALSE(plan_of({{8, 4096}, {8, 4096}}).expands);
  EXPECT_FALSE(plan_of({{1, 4096}, {1, 77}}).expands);
  EXPECT_FALSE(plan_of({}).expands);
  EXPECT_FALSE(plan_of({{3, 0}}).expands) << "rows that see nothing";
}

// A chunk of a prefix has as many rows for every request as for the one with the longest.
TEST(LatentPrefillPlan, CountsTheRowsThatShortPrefixesLeaveEmpty) {
  std::vector<Request> requests(16, {512, 512 + 30000});
  EXPECT_TRUE(plan_of(requests).expands);
  for (size_t i = 1; i < requests.size(); ++i) requests[i].kv_len = 512 + 128;
  EXPECT_FALSE(plan_of(requests).expands);
}

TEST(LatentPrefillPlan, RowsAreWholePages) {
  const LatentPrefillPlan plan = plan_of({{1000, 1000}, {1, 50}, {129, 129}});
  EXPECT_TRUE(plan.expands);
  EXPECT_EQ(plan.fresh_rows, 1024 + 256);
  EXPECT_EQ(plan.num_chunks, 0);
  EXPECT_EQ(plan.max_chunk_tokens, 1000);
}

TEST(LatentPrefillPlan, PrefixesAreTakenInChunksThatFit) {
  const LatentPrefillPlan plan = plan_of({{2000, 2000 + 10000}, {600, 600 + 300}, {500, 500}}, 8192);
  EXPECT_TRUE(plan.expands);
  EXPECT_EQ(plan.chunk_tokens % 128, 0);
  EXPECT_LE(plan.chunk_rows, 8192);
  EXPECT_EQ(plan.chunk_rows, 2 * plan.chunk_tokens);
  EXPECT_GE(plan.chunk_tokens * plan.num_chunks, 10000);
  EXPECT_LT(plan.chunk_tokens * (plan.num_chunks - 1), 10000);
  EXPECT_EQ(plan.max_chunk_tokens, plan.chunk_tokens);
}

TEST(LatentPrefillPlan, NothingExpandsThatDoesNotFit) {
  EXPECT_FALSE(plan_of({{2000, 2000}}, 1920).expands);
  EXPECT_FALSE(plan_of({{100, 900}, {100, 900}}, 128).expands);
}

TEST(LatentPrefillPlan, SinglesAreARangeOfRows) {
  LatentPrefillPlan plan = plan_of({{1000, 1000}, {1, 50}, {1, 7}, {1, 90}});
  EXPECT_EQ(plan.singles_begin, 1000);
  EXPECT_EQ(plan.singles_end, 1003);
  plan = plan_of({{1, 9}, {700, 700}, {1, 50}});
  EXPECT_EQ(plan.singles_begin, 0);
  EXPECT_EQ(plan.singles_end, 702);
  plan = plan_of({{700, 700}});
  EXPECT_EQ(plan.singles_begin, plan.singles_end);
}

}  // namespace
}  // namespace warpweave
