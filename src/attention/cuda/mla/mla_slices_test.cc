// How requests are cut into slices, on the host: every query token is in one slice, whose range ends with its last
// token.
#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "attention/cuda/mla/mla_slices.cuh"

namespace warpweave::cuda {
namespace {

struct Request {
  int q_len, kv_len;
};

struct Cut {
  std::vector<int32_t> q_indptr, kv_lens, page_rows;
};

Cut cut(const std::vector<Request>& requests, int slice_tokens) {
  std::vector<int32_t> q_indptr = {0}, kv_lens;
  for (const Request& r : requests) {
    q_indptr.push_back(q_indptr.back() + r.q_len);
    kv_lens.push_back(r.kv_len);
  }
  MlaParams p;
  p.q_indptr = q_indptr.data();
  p.kv_lens = kv_lens.data();
  p.num_requests = static_cast<int>(requests.size());
  const int count = MlaSlices::count(q_indptr.back(), p.num_requests, slice_tokens);
  Cut out{std::vector<int32_t>(count + 1, -1), std::vector<int32_t>(count, -1), std::vector<int32_t>(count, -1)};
  const MlaSlices slices = {slice_tokens, out.q_indptr.data(), out.kv_lens.data(), out.page_rows.data()};
  for (int i = 0; i <= count; ++i) mla_cut(p, slices, count, i);
  return out;
}

TEST(MlaSlices, CoverEveryRequestInItsOrder) {
  const std::vector<Request> requests = {{5, 5}, {1, 700}, {8, 8}, {13, 40}, {0, 0}, {1, 1}, {64, 129}, {3, 0}};
  for (const int slice_tokens : {1, 4, 8, 64}) {
    const Cut slices = cut(requests, slice_tokens);
    std::vector<int> next(requests.size(), 0);  // tokens of the request that slices have had
    EXPECT_EQ(slices.q_indptr.front(), 0);
    for (size_t i = 0; i < slices.kv_lens.size(); ++i) {
      const int len = slices.q_indptr[i + 1] - slices.q_indptr[i];
      ASSERT_GE(len, 0);
      ASSERT_LE(len, slice_tokens);
      if (len == 0) {
        EXPECT_EQ(slices.kv_lens[i], 0);
        continue;
      }
      const int r = slices.page_rows[i];
      next[r] += len;
      const Request& request = requests[r];
      EXPECT_EQ(slices.kv_lens[i], std::max(0, request.kv_len - request.q_len + next[r])) << "slice " << i;
    }
    for (size_t r = 0; r < requests.size(); ++r) EXPECT_EQ(next[r], requests[r].q_len) << "request " << r;
  }
}

}  // namespace
}  // namespace warpweave::cuda
