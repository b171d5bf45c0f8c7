// Which tokens a chunk takes and where they stand, on the host: new tokens, chunks of the prefix, more requests than
// threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "attention/cuda/mla/mla_chunk.cuh"

namespace warpweave::cuda {
namespace {

struct Request {
  int q_len, kv_len;
};

void check(const std::vector<Request>& requests, const MlaChunkRule& rule, host_cta::Order order) {
  std::vector<int32_t> q_indptr = {0}, kv_lens;
  for (const Request& r : requests) {
    q_indptr.push_back(q_indptr.back() + r.q_len);
    kv_lens.push_back(r.kv_len);
  }
  const int count = static_cast<int>(requests.size()), stride = 40;
  std::vector<int32_t> begins(count, -7), lens(count, -7), first_rows(count + 1, -7),
      table(size_t{1} * count * stride, -7);
  MlaParams p;
  p.q_indptr = q_indptr.data();
  p.kv_lens = kv_lens.data();
  p.num_requests = count;
  const MlaChunk chunk = {begins.data(), lens.data(), first_rows.data(), table.data(), stride};
  host_cta::run(kPlanThreads, order, [&] { mla_chunk(p, rule, chunk); });
  int page = 0;
  for (int r = 0; r < count; ++r) {
    const int prefix = kv_lens[r] - requests[r].q_len;
    int tokens = rule.fresh ? requests[r].q_len : std::clamp(prefix - rule.begin, 0, rule.max_tokens);
    if (requests[r].q_len < rule.min_q_len || prefix < 0) tokens = 0;
    ASSERT_EQ(lens[r], tokens) << "request " << r;
    if (tokens > 0) {
      ASSERT_EQ(begins[r], rule.fresh ? prefix : rule.begin);
    }
    ASSERT_EQ(first_rows[r], page * kExpandedPageTokens);
    for (int i = 0; i < stride; ++i) {
      const bool used = i * kExpandedPageTokens < tokens;
      ASSERT_EQ(table[size_t{1} * r * stride + i], used ? page + i : -7) << "request " << r << " page " << i;
    }
    page += (tokens + kExpandedPageTokens - 1) / kExpandedPageTokens;
  }
  ASSERT_EQ(first_rows[count], page * kExpandedPageTokens);
}

TEST(MlaChunk, TakesNewTokensAndPiecesOfThePrefix) {
  const std::vector<Request> requests = {{200, 200}, {1, 900}, {64, 3000}, {128, 128}, {3, 0}, {129, 700}, {2, 2}};
  for (const host_cta::Order order :
       {host_cta::Order::ascending, host_cta::Order::descending, host_cta::Order::random}) {
    ASSERT_NO_FATAL_FAILURE(check(requests, {}, order));
    for (const int begin : {0, 512, 1024, 2560}) {
      ASSERT_NO_FATAL_FAILURE(check(requests, {.fresh = false, .begin = begin, .max_tokens = 512}, order));
    }
  }
}

TEST(MlaChunk, MoreRequestsThanThreads) {
  std::vector<Request> requests;
  for (int i = 0; i < 2 * kPlanThreads + 5; ++i) requests.push_back({i % 7, i % 7 + i % 900});
  ASSERT_NO_FATAL_FAILURE(check(requests, {}, host_cta::Order::ascending));
  ASSERT_NO_FATAL_FAILURE(check(requests, {.fresh = false, .begin = 128, .max_tokens = 256}, host_cta::Order::random));
}

}  // namespace
}  // namespace warpweave::cuda
