#include "model/layers/latent_prefill_plan.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "attention/select.h"
#include "attention/tuning.h"

namespace warpweave {
namespace {

struct Request {
  int q_len, kv_len;
};

LatentPrefillPlan plan_of(const std::vector<Request>& requests, int64_t capacity_rows = 1 << 20) {
  const LatentPrefillShape shape = {
      .rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .capacity_rows = capacity_rows};
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

// Few heads leave the moving of a long prefix little to be set against.
TEST(LatentPrefillPlan, MovingAPrefixCountsForFewHeads) {
  LatentPrefillShape shape = {.rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .capacity_rows = 1 << 20};
  const int32_t q_indptr[] = {0, 256}, kv_lens[] = {256 + 32768};
  shape.num_heads = 16;
  EXPECT_FALSE(plan_latent_prefill(shape, q_indptr, kv_lens).expands) << "552 us absorbed, 990 expanded on an H100";
  shape.num_heads = 128;
  EXPECT_TRUE(plan_latent_prefill(shape, q_indptr, kv_lens).expands) << "4167 us absorbed, 3779 expanded";
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

// A device on which expanding is so fast that even a few rows expand, or so slow that nothing does.
LatentFormTimes measured(double expanded_us_a_token) {
  std::vector<LatentFormPoint> points;
  for (const int requests : {1, 16}) {
    for (const int new_tokens : {16, 4096}) {
      for (const int prefix : {0, 32768}) {
        points.push_back({.requests = requests,
                          .new_tokens = new_tokens,
                          .prefix = prefix,
                          .absorbed_us = 1.0 * requests * new_tokens,
                          .expanded_us = expanded_us_a_token * requests * new_tokens + 100});
      }
    }
  }
  return *LatentFormTimes::of(points);
}

TEST(LatentPrefillPlan, MeasuredTimesDecideWhereThereAreSome) {
  LatentPrefillShape shape = {.rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .capacity_rows = 1 << 20};
  const LatentFormTimes fast = measured(0.1), slow = measured(2);
  const int32_t q_indptr[] = {0, 8192}, kv_lens[] = {8192};
  EXPECT_TRUE(plan_latent_prefill(shape, q_indptr, kv_lens).expands) << "by counting";
  shape.measured = &slow;
  EXPECT_FALSE(plan_latent_prefill(shape, q_indptr, kv_lens).expands);
  EXPECT_EQ(first_expanded(shape, 1, 0, 8192), std::nullopt);
  shape.measured = &fast;
  const std::optional<int> first = first_expanded(shape, 1, 0, 8192);
  ASSERT_TRUE(first.has_value());
  EXPECT_GT(*first, 16);
  EXPECT_LT(*first, 400) << "0.1 us a token and 100 us meet 1 us a token between what was measured";
  EXPECT_TRUE(plan_latent_prefill(shape, q_indptr, kv_lens).expands);
}

TEST(LatentPrefillPlan, RequestsAreAddedUp) {
  LatentPrefillShape shape = {.rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .capacity_rows = 1 << 20};
  const LatentFormTimes fast = measured(0.1);
  shape.measured = &fast;
  const int32_t one[] = {0, 20}, one_len[] = {20};
  EXPECT_FALSE(plan_latent_prefill(shape, one, one_len).expands);
  const int32_t two[] = {0, 20, 4020}, two_lens[] = {20, 4000};
  EXPECT_TRUE(plan_latent_prefill(shape, two, two_lens).expands);
}

// One prompt of 128 tokens leaves the GPU idle between launches, of which the expanded form has more; 16 fill it.
TEST(LatentPrefillPlan, ShortPromptsCountAsTheCrowdThatTheyAre) {
  const std::vector<LatentFormPoint> points = {
      {.requests = 1, .new_tokens = 128, .prefix = 0, .absorbed_us = 60, .expanded_us = 70},
      {.requests = 1, .new_tokens = 2048, .prefix = 0, .absorbed_us = 500, .expanded_us = 250},
      {.requests = 16, .new_tokens = 128, .prefix = 0, .absorbed_us = 300, .expanded_us = 200},
      {.requests = 16, .new_tokens = 2048, .prefix = 0, .absorbed_us = 8000, .expanded_us = 4000}};
  const std::optional<LatentFormTimes> times = LatentFormTimes::of(points);
  ASSERT_TRUE(times.has_value());
  const LatentPrefillShape shape = {.rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .capacity_rows = 1 << 20, .measured = &*times};
  const auto expands = [&](int prompts) {
    std::vector<int32_t> q_indptr = {0};
    for (int r = 0; r < prompts; ++r) q_indptr.push_back(q_indptr.back() + 128);
    return plan_latent_prefill(shape, q_indptr, std::vector<int32_t>(prompts, 128)).expands;
  };
  EXPECT_FALSE(expands(1));
  EXPECT_FALSE(expands(2)) << "76 us absorbed, 79 expanded";
  EXPECT_TRUE(expands(4)) << "108 and 96";
  EXPECT_TRUE(expands(16));
  EXPECT_TRUE(expands(60));
  const int32_t beside_others[] = {0, 128, 129, 130}, lens[] = {128, 9000, 9000};
  EXPECT_FALSE(plan_latent_prefill(shape, beside_others, lens).expands) << "decode rows are no prompts";
}

// By the program's own table; microseconds as measured for it (docs/gpu-tuning.md).
TEST(LatentPrefillPlan, TakesTheFasterFormOnAnH200) {
  const HardwareFacts h200 = named_hardware("h200").value();
  const auto expands = [&](int heads, int prompts, int new_tokens, int prefix) {
    const LatentFormShape shape = {heads, 512, 128, 64, 128, KvFormat::bf16};
    const LatentFormTimes times = builtin_tuning(h200.name)->latent_forms(h200, shape).times;
    EXPECT_FALSE(times.empty()) << heads;
    std::vector<int32_t> q_indptr = {0};
    for (int r = 0; r < prompts; ++r) q_indptr.push_back(q_indptr.back() + new_tokens);
    const std::vector<int32_t> kv_lens(prompts, prefix + new_tokens);
    return plan_latent_prefill({.num_heads = heads, .rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .capacity_rows = 24576, .measured = &times}, q_indptr, kv_lens).expands;
  };
  EXPECT_TRUE(expands(16, 1, 512, 32768)) << "982 absorbed, 800 expanded";
  EXPECT_TRUE(expands(128, 1, 512, 32768)) << "7,826 and 4,251";
  EXPECT_FALSE(expands(16, 1, 512, 1024)) << "120 and 137";
  EXPECT_TRUE(expands(16, 4, 512, 1024)) << "309 and 260";
  EXPECT_FALSE(expands(16, 1, 64, 0)) << "60 and 62";
  EXPECT_TRUE(expands(16, 16, 128, 0)) << "188 and 157";
  EXPECT_FALSE(expands(16, 1, 128, 4096)) << "102 and 185";
  EXPECT_TRUE(expands(40, 1, 2048, 0)) << "between 16 and 64 heads";
  EXPECT_FALSE(expands(40, 1, 16, 32768));
}

TEST(LatentPrefillPlan, AFormMayBeAskedFor) {
  LatentPrefillShape shape = {.rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .capacity_rows = 1 << 20};
  const int32_t q_indptr[] = {0, 8}, kv_lens[] = {4096}, long_indptr[] = {0, 4096};
  shape.form = LatentForm::expanded;
  EXPECT_TRUE(plan_latent_prefill(shape, q_indptr, kv_lens).expands);
  EXPECT_GT(plan_latent_prefill(shape, q_indptr, kv_lens).num_chunks, 0);
  shape.capacity_rows = 128;
  EXPECT_FALSE(plan_latent_prefill(shape, long_indptr, kv_lens).expands) << "where it does not fit";
  shape.capacity_rows = 1 << 20;
  shape.form = LatentForm::absorbed;
  EXPECT_FALSE(plan_latent_prefill(shape, long_indptr, kv_lens).expands);
}

// --disable-chunked-prefix-cache
TEST(LatentPrefillPlan, PrefixesMayBeLeftAsTheyLie) {
  LatentPrefillShape shape = {.rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128, .capacity_rows = 1 << 20};
  shape.expands_prefixes = false;
  const int32_t q_indptr[] = {0, 4096, 8192}, fresh[] = {4096, 4096}, behind_one[] = {4096, 4097};
  EXPECT_TRUE(plan_latent_prefill(shape, q_indptr, fresh).expands);
  EXPECT_FALSE(plan_latent_prefill(shape, q_indptr, behind_one).expands);
  shape.form = LatentForm::expanded;
  EXPECT_FALSE(plan_latent_prefill(shape, q_indptr, behind_one).expands);
  EXPECT_EQ(first_expanded(shape, 1, 1, 8192), std::nullopt);
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
