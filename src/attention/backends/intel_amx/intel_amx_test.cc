// The plan as data: coverage, order and bounds. Results are the conformance suite's matter.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <vector>

#include "attention/backends/intel_amx/kernels.h"
#include "attention/backends/intel_amx/plan.h"
#include "attention/batch_check.h"

namespace warpweave::intel_amx {
namespace {

struct TestBatch {
  std::vector<int32_t> q_indptr = {0}, kv_lens;
  ForwardBatch batch;

  explicit TestBatch(const std::vector<std::pair<int, int>>& requests) {
    for (auto [q_len, kv_len] : requests) {
      q_indptr.push_back(q_indptr.back() + q_len);
      kv_lens.push_back(kv_len);
    }
    batch.num_reqs = static_cast<int>(requests.size());
    batch.num_tokens = q_indptr.back();
    batch.page_size = 1;
    batch.page_table_stride = 1 << 20;
    batch.q_indptr = q_indptr;
    batch.kv_lens = kv_lens;
  }
};

const std::vector<std::pair<int, int>> kRequests = {{1, 20000}, {300, 300}, {64, 4096}, {1, 1},
                                                    {0, 7},     {1, 0},     {17, 600},  {1, 513}};

TEST(Plan, CoversEveryRowAndChunkOnce) {
  for (int threads : {1, 2, 16, 64}) {
    const TestBatch test(kRequests);
    const PlanShape shape = {4, 8, threads};
    Plan plan;
    plan.init(test.batch, shape);
    std::map<std::pair<int, int>, int> chunks_of_row;  // (request, row) -> chunks computed
    for (const Tile& tile : plan.tiles()) {
      const int chunks = (tile.kv_end + kChunkTokens - 1) / kChunkTokens;
      for (int i = 0; i < tile.q_count; ++i) {
        chunks_of_row[{tile.request, tile.q_begin + i}] += tile.chunk < 0 ? chunks : 1;
      }
    }
    size_t rows = 0;
    for (size_t r = 0; r < kRequests.size(); ++r) {
      const auto [q_len, kv_len] = kRequests[r];
      if (kv_len == 0) continue;
      for (int i = 0; i < q_len; ++i, ++rows) {
        const int tile_tokens = kTileRows / shape.group;
        const int last_row = std::min(q_len, (i / tile_tokens + 1) * tile_tokens);
        const int kv_end = kv_len - q_len + last_row;
        EXPECT_EQ((chunks_of_row[{static_cast<int>(r), i}]), (kv_end + kChunkTokens - 1) / kChunkTokens);
      }
    }
    EXPECT_EQ(chunks_of_row.size(), rows);
  }
}

TEST(Plan, PartialRowsDoNotOverlap) {
  const TestBatch test(kRequests);
  Plan plan;
  plan.init(test.batch, {4, 8, 64});
  std::vector<int> used(plan.partial_rows());
  size_t cut = 0;
  for (const Tile& tile : plan.tiles()) {
    if (tile.chunk < 0) continue;
    ++cut;
    for (int row = 0; row < tile.q_count * 4; ++row) ++used.at(tile.partial_row + row);
  }
  EXPECT_GT(cut, 0u);
  for (int count : used) EXPECT_EQ(count, 1);
}

TEST(Plan, LongestTilesComeFirst) {
  const TestBatch test({{1, 100}, {512, 512}, {1, 50}});
  Plan plan;
  plan.init(test.batch, {1, 1, 2});
  int64_t last = INT64_MAX;
  for (const Tile& tile : plan.tiles()) {
    const int64_t work = int64_t{tile.q_count} * tile.kv_end;
    EXPECT_LE(work, last);
    last = work;
  }
}

TEST(Plan, DecodeTakesManyHeadsAtATimeAndPrefillOne) {
  std::vector<std::pair<int, int>> many(64, {1, 1000});
  const TestBatch decode(many), prefill({{512, 512}});
  Plan plan;
  plan.init(decode.batch, {4, 8, 2});
  EXPECT_EQ(plan.heads_per_item(), 8);
  plan.init(prefill.batch, {4, 8, 2});
  EXPECT_LE(plan.heads_per_item() * padded_rows(kTileRows), kItemRows);
  // max_q_len is advice of the batch builder; the row buffers must not depend on it.
  const TestBatch mixed({{1, 100}, {64, 64}});
  plan.init(mixed.batch, {4, 8, 1});
  EXPECT_LE(plan.heads_per_item() * padded_rows(kTileRows), kItemRows);
}

TEST(BatchCheck, NamesTheRequestThatBreaksARule) {
  EXPECT_TRUE(check_batch(TestBatch(kRequests).batch).ok());
  const Status more_rows = check_batch(TestBatch({{1, 1}, {5, 4}}).batch);
  EXPECT_EQ(more_rows.code(), StatusCode::invalid_argument);
  EXPECT_NE(more_rows.message().find("request 1"), std::string::npos);
  TestBatch short_table({{1, 100}});
  short_table.batch.page_size = 16;
  short_table.batch.page_table_stride = 6;
  EXPECT_FALSE(check_batch(short_table.batch).ok());
  short_table.batch.page_table_stride = 7;
  EXPECT_TRUE(check_batch(short_table.batch).ok());
}

}  // namespace
}  // namespace warpweave::intel_amx
