// The plan as data: coverage, order and bounds. Results are the conformance suite's matter.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "attention/backends/intel_amx/backend.h"
#include "attention/backends/intel_amx/kernels.h"
#include "attention/backends/intel_amx/plan.h"
#include "attention/batch_check.h"
#include "base/float16.h"
#include "base/float8.h"
#include "base/threads.h"

namespace warpweave::intel_amx {
namespace {

struct TestBatch {
  std::vector<int32_t> q_indptr = {0}, kv_lens, pages;
  ForwardBatch batch;

  // Every request has pages of its own, of one token each.
  explicit TestBatch(const std::vector<std::pair<int, int>>& requests) {
    int longest = 1;
    for (auto [q_len, kv_len] : requests) longest = std::max(longest, kv_len);
    for (auto [q_len, kv_len] : requests) {
      q_indptr.push_back(q_indptr.back() + q_len);
      kv_lens.push_back(kv_len);
    }
    pages.resize(requests.size() * longest);
    std::iota(pages.begin(), pages.end(), 0);
    batch.num_reqs = static_cast<int>(requests.size());
    batch.num_tokens = q_indptr.back();
    batch.page_size = 1;
    batch.page_table_stride = longest;
    batch.q_indptr = q_indptr;
    batch.kv_lens = kv_lens;
    batch.page_table = pages;
  }

  void share(int from, int to, int tokens) {
    std::copy_n(pages.data() + int64_t{from} * batch.page_table_stride, tokens,
                pages.data() + int64_t{to} * batch.page_table_stride);
  }
};

const std::vector<std::pair<int, int>> kRequests = {{1, 20000}, {300, 300}, {64, 4096}, {1, 1},
                                                    {0, 7},     {1, 0},     {17, 600},  {1, 513}};

int chunks_of(int tokens) { return (tokens + kChunkTokens - 1) / kChunkTokens; }

// (request, query row, chunk) -> how many tiles compute it.
std::map<std::tuple<int, int, int>, int> covered(const Plan& plan) {
  std::map<std::tuple<int, int, int>, int> times;
  for (const Tile& tile : plan.tiles()) {
    for (int i = 0; i < tile.num_members; ++i) {
      const TileMember& member = plan.members()[tile.first_member + i];
      for (int q = 0; q < member.q_count; ++q) {
        for (int c = tile.chunk_begin; c < tile.chunk_end; ++c) {
          ++times[{member.request, member.q_begin + q, c}];
        }
      }
    }
  }
  return times;
}

void expect_everything_once(const TestBatch& test, const Plan& plan) {
  const auto times = covered(plan);
  size_t expected = 0;
  for (int r = 0; r < test.batch.num_reqs; ++r) {
    const int q_len = test.batch.q_len(r), kv_len = test.kv_lens[r];
    if (kv_len == 0) continue;
    for (int q = 0; q < q_len; ++q) {
      for (int c = 0; c < chunks_of(kv_len - q_len + q + 1); ++c, ++expected) {
        const auto found = times.find({r, q, c});
        ASSERT_TRUE(found != times.end()) << "request " << r << " row " << q << " chunk " << c;
        EXPECT_EQ(found->second, 1);
      }
    }
  }
  for (const auto& [key, count] : times) EXPECT_EQ(count, 1);
  EXPECT_GE(times.size(), expected);
}

TEST(Plan, CoversEveryRowAndChunkOnce) {
  for (int threads : {1, 2, 16, 64}) {
    const TestBatch test(kRequests);
    Plan plan;
    plan.init(test.batch, {4, 8, threads});
    expect_everything_once(test, plan);
    std::map<std::pair<int, int>, int> heads;  // (tile, head) -> items
    for (const Item& item : plan.items()) {
      for (int head = item.head_begin; head < item.head_end; ++head) ++heads[{item.tile, head}];
    }
    EXPECT_EQ(heads.size(), plan.tiles().size() * 8);
    for (const auto& [key, count] : heads) EXPECT_EQ(count, 1);
  }
}

TEST(Plan, PartialRowsDoNotOverlap) {
  TestBatch test(kRequests);
  test.share(0, 7, 512);
  Plan plan;
  plan.init(test.batch, {4, 8, 64});
  std::vector<int> used(plan.partial_rows());
  size_t cut = 0;
  for (const Tile& tile : plan.tiles()) {
    if (!tile.cut) continue;
    ++cut;
    for (int i = 0; i < tile.num_members; ++i) {
      const TileMember& member = plan.members()[tile.first_member + i];
      for (int c = tile.chunk_begin; c < tile.chunk_end; ++c) {
        for (int row = 0; row < member.q_count * 4; ++row) {
          ++used.at(member.partial_row + c * member.q_count * 4 + row);
        }
      }
    }
  }
  EXPECT_GT(cut, 0u);
  for (int count : used) EXPECT_EQ(count, 1);
}

TEST(Plan, LongestItemsComeFirst) {
  const TestBatch test({{1, 100}, {512, 512}, {1, 50}});
  Plan plan;
  plan.init(test.batch, {1, 1, 2});
  int64_t last = INT64_MAX;
  for (const Item& item : plan.items()) {
    const Tile& tile = plan.tiles()[item.tile];
    const int64_t work = int64_t{tile.rows} * tile.kv_end;
    EXPECT_LE(work, last);
    last = work;
  }
}

TEST(Plan, DecodeTakesManyHeadsAtATimeAndPrefillOne) {
  const std::vector<std::pair<int, int>> many(64, {1, 1000});
  const TestBatch decode(many), mixed({{1, 100}, {64, 64}});
  Plan plan;
  plan.init(decode.batch, {4, 8, 2});
  for (const Item& item : plan.items()) EXPECT_EQ(item.head_end - item.head_begin, 8);
  plan.init(mixed.batch, {4, 8, 1});
  for (const Item& item : plan.items()) {
    const int rows = plan.tiles()[item.tile].rows, heads = item.head_end - item.head_begin;
    EXPECT_TRUE(heads == 1 || (rows + 15) / 16 * 16 * heads <= kItemRows);
  }
}

TEST(Plan, SharedPrefixIsComputedOnceForAllOfItsRows) {
  TestBatch test({{1, 1200}, {1, 2000}, {3, 1100}, {1, 1500}, {1, 600}});
  test.share(0, 1, 1100);  // two chunks and a bit
  test.share(0, 2, 1050);
  test.share(0, 4, 300);   // less than a chunk: not worth it
  Plan plan;
  plan.init(test.batch, {4, 8, 2});
  expect_everything_once(test, plan);
  const Tile* shared = nullptr;
  for (const Tile& tile : plan.tiles()) {
    if (tile.num_members > 1) shared = &tile;
  }
  ASSERT_NE(shared, nullptr);
  EXPECT_EQ(shared->num_members, 3);
  EXPECT_EQ(shared->rows, (1 + 1 + 3) * 4);
  EXPECT_LE(shared->chunk_end, 2);
}

// A long and a short request begin alike. In a layer with a window the long one's first pages are gone: the short one,
// which still sees them, must not read them where the long one's were.
TEST(Backend, LayersOfAnotherCacheGroupShareTheirOwnPages) {
  constexpr int kDim = 16, kHeads = 2;
  TestBatch full({{1, 1200}, {1, 600}});
  full.share(0, 1, 512);
  TestBatch windowed = full;
  const int32_t blank = 1200 + 600;
  std::fill_n(windowed.pages.begin(), 512, blank);
  windowed.batch.q_indptr = windowed.q_indptr;
  windowed.batch.kv_lens = windowed.kv_lens;
  windowed.batch.page_table = windowed.pages;
  full.batch.max_q_len = windowed.batch.max_q_len = 1;
  full.batch.max_kv_len = windowed.batch.max_kv_len = 1200;
  full.batch.mode = windowed.batch.mode = ForwardMode::decode;
  full.batch.q_indptr = full.q_indptr;
  full.batch.kv_lens = full.kv_lens;
  full.batch.page_table = full.pages;

  std::vector<float> pool((2 * 1200 + 1) * kDim), q(2 * kHeads * kDim, 0.1f), out(q.size()), expected(q.size());
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = static_cast<float>(i * 37 % 101) / 101;
  std::fill_n(pool.begin() + blank * kDim, kDim, 1000.0f);
  AttentionCall call;
  call.num_q_heads = kHeads;
  call.num_kv_heads = 1;
  call.head_dim = call.v_head_dim = kDim;
  call.window_left = 200;  // the long one sees from 999 on, the short one from 399
  call.q = q.data();
  call.q_token_stride = call.out_token_stride = kHeads * kDim;
  call.k = {pool.data(), KvFormat::f32, kDim, kDim, kDim};
  call.v = call.k;
  ThreadTeam team(1);
  const auto backend = create_for_tier({.team = &team}, cpu_info().tier);
  call.out = expected.data();
  ASSERT_TRUE(backend->init_forward_metadata(windowed.batch).ok());
  ASSERT_TRUE(backend->forward_decode(windowed.batch, call).ok());
  EXPECT_LT(*std::max_element(expected.begin(), expected.end()), 1.5f);
  call.out = out.data();
  ASSERT_TRUE(backend->init_forward_metadata(full.batch).ok());
  ASSERT_TRUE(backend->forward_decode(windowed.batch, call).ok());
  EXPECT_EQ(out, expected);
}

// Rows that check guesses, with and without packed blocks: the bits are those of decode steps.
void expect_bits_of_one_row_at_a_time(KvFormat format) {
  constexpr int kDim = 64, kHeads = 3, kTokens = 150, kMostRows = 9;
  std::vector<uint16_t> pool(kTokens * kDim);  // twice what formats of 8 bits take
  std::vector<float> q(kMostRows * kHeads * kDim);
  for (size_t i = 0; i < pool.size(); ++i) {
    const float value = static_cast<float>(i * 37 % 101) / 50 - 1;
    if (format == KvFormat::bf16) {
      pool[i] = f32_to_bf16(value);
    } else {
      const uint8_t code = format == KvFormat::fp8_e4m3 ? f32_to_e4m3(value) : f32_to_e5m2(value);
      pool[i] = static_cast<uint16_t>(code << 8 | code);
    }
  }
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i * 53 % 97) / 48 - 1;
  AttentionCall call;
  call.num_q_heads = kHeads;
  call.num_kv_heads = 1;
  call.head_dim = call.v_head_dim = kDim;
  call.scale = 0.125f;
  call.q_token_stride = call.out_token_stride = kHeads * kDim;
  call.k = {pool.data(), format, kDim, kDim, kDim};
  call.v = call.k;
  ThreadTeam team(1);
  const auto backend = create_for_tier({.team = &team}, cpu_info().tier);
  const auto run = [&](int rows, int kv_len, const float* from) {
    TestBatch test({{rows, kv_len}});
    test.batch.max_q_len = rows;
    test.batch.max_kv_len = kv_len;
    test.batch.mode = rows == 1 ? ForwardMode::decode : ForwardMode::target_verify;
    std::vector<float> out(rows * kHeads * kDim);
    call.q = from;
    call.out = out.data();
    EXPECT_TRUE(backend->init_forward_metadata(test.batch).ok());
    EXPECT_TRUE(backend->forward_extend(test.batch, call).ok());
    return out;
  };
  for (int rows = 2; rows <= kMostRows; ++rows) {
    std::vector<float> expected;
    for (int r = 0; r < rows; ++r) {
      const std::vector<float> one = run(1, kTokens - rows + r + 1, q.data() + r * kHeads * kDim);
      expected.insert(expected.end(), one.begin(), one.end());
    }
    EXPECT_EQ(run(rows, kTokens, q.data()), expected) << rows << " rows";
  }
}

TEST(Backend, SeveralRowsHaveTheBitsOfOneAtATime) {
  for (const KvFormat format : {KvFormat::bf16, KvFormat::fp8_e4m3, KvFormat::fp8_e5m2}) {
    SCOPED_TRACE(kv_format_name(format));
    expect_bits_of_one_row_at_a_time(format);
  }
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
