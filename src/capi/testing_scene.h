// What tests of the C interface's attention share: contexts and plans that end by themselves, and a scene of requests
// over shuffled pages that knows what attention gives.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "capi/testing.h"
#include "warpweave/c.h"

namespace warpweave::capi::testing {

inline constexpr int kQHeads = 4, kKvHeads = 2, kDim = 32;

inline std::string error_text() { return ww_last_error(); }

struct Context {
  explicit Context(int threads = 2) {
    ww_context_options options = WW_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    EXPECT_EQ(ww_context_create(&options, &context), WW_OK) << error_text();
    EXPECT_EQ(ww_workspace_create(context, 0, &workspace), WW_OK) << error_text();
  }
  ~Context() {
    ww_workspace_destroy(workspace);
    ww_context_destroy(context);
  }
  ww_context* context = nullptr;
  ww_workspace* workspace = nullptr;
};

struct Plan {
  explicit Plan(const Context& context, const ww_plan_options& options) {
    EXPECT_EQ(ww_plan_create(context.workspace, &options, &plan), WW_OK) << error_text();
  }
  ~Plan() { ww_plan_destroy(plan); }
  ww_plan* plan = nullptr;
};

inline ww_plan_options options_of(int page_size) {
  ww_plan_options options = WW_PLAN_OPTIONS_INIT;
  options.num_q_heads = kQHeads;
  options.num_kv_heads = kKvHeads;
  options.head_dim = kDim;
  options.page_size = page_size;
  options.kv_format = WW_KV_F32;
  return options;
}

// Latent attention; head_dim values a token, of which the first v_head_dim are V.
inline ww_plan_options latent_options_of(int num_q_heads, int head_dim, int v_head_dim, int page_size) {
  ww_plan_options options = WW_PLAN_OPTIONS_INIT;
  options.num_q_heads = num_q_heads;
  options.num_kv_heads = 1;
  options.head_dim = head_dim;
  options.v_head_dim = v_head_dim;
  options.page_size = page_size;
  options.latent = 1;
  return options;
}

// Of page tables of `stride` pages for each request. Points into all three, which outlive it.
inline ww_batch batch_of(const std::vector<int32_t>& q_indptr, const std::vector<int32_t>& kv_lens,
                         const std::vector<int32_t>& table, int stride) {
  ww_batch batch = WW_BATCH_INIT;
  batch.num_requests = static_cast<int32_t>(kv_lens.size());
  batch.q_indptr = q_indptr.data();
  batch.kv_lens = kv_lens.data();
  batch.page_table = table.data();
  batch.page_table_stride = stride;
  return batch;
}

// Requests over shuffled pages, with every tensor in f32.
struct Scene {
  struct Request { int q_len, kv_len; };
  std::vector<Request> requests;
  int page_size;
  std::vector<int32_t> q_indptr{0}, kv_lens, table, page_indptr{0}, page_indices;
  int stride = 0, rows = 0, pages = 0;
  Array q{{}}, k{{}}, v{{}}, out{{}}, lse{{}}, sinks = Array({kQHeads}).fill(9);

  Scene(std::vector<Request> list, int page) : requests(std::move(list)), page_size(page) {
    for (const Request& r : requests) {
      rows += r.q_len;
      q_indptr.push_back(rows);
      kv_lens.push_back(r.kv_len);
      stride = std::max(stride, pages_of(r) + 1);
      pages += pages_of(r);
    }
    std::vector<int32_t> ids(pages += 3);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), std::mt19937_64(7));
    table.assign(requests.size() * stride, -77);  // past a request's pages nothing is read
    for (size_t r = 0; r < requests.size(); ++r) {
      for (int p = 0; p < pages_of(requests[r]); ++p) {
        table[r * stride + p] = ids.back();
        page_indices.push_back(ids.back());
        ids.pop_back();
      }
      page_indptr.push_back(static_cast<int32_t>(page_indices.size()));
    }
    q = Array({rows, kQHeads, kDim}).fill(1);
    k = Array({pages, page, kKvHeads, kDim}).fill(2);
    v = Array({pages, page, kKvHeads, kDim}).fill(3);
    out = Array({rows, kQHeads, kDim});
    lse = Array({rows, kQHeads});
  }
  int pages_of(const Request& r) const { return (r.kv_len + page_size - 1) / page_size; }
  int64_t at(int request, int token, int head) const {
    const int64_t page = table[request * stride + token / page_size];
    return ((page * page_size + token % page_size) * kKvHeads + head) * kDim;
  }

  ww_batch dense() const { return batch_of(q_indptr, kv_lens, table, stride); }
  ww_batch csr() const {
    ww_batch batch = dense();
    batch.page_table = nullptr;
    batch.page_indptr = page_indptr.data();
    batch.page_indices = page_indices.data();
    return batch;
  }
  ww_kv_cache kv() {
    ww_kv_cache cache = WW_KV_CACHE_INIT;
    cache.format = WW_KV_F32;
    cache.k = k.tensor();
    cache.v = v.tensor();
    return cache;
  }
  void run(ww_plan* plan, const ww_batch& batch, const ww_tensor* sink = nullptr) {
    ASSERT_EQ(ww_plan_batch(plan, &batch), WW_OK) << error_text();
    const ww_kv_cache cache = kv();
    ww_run_args args = WW_RUN_ARGS_INIT;
    args.q = q.tensor();
    args.kv = &cache;
    args.out = out.tensor();
    args.lse_ln = lse.tensor();
    args.sinks = sink;
    ASSERT_EQ(ww_plan_run(plan, &args), WW_OK) << error_text();
  }

  using Sees = std::function<bool(int request, int row, int token)>;
  // `row` counts within the request.
  void check(const Sees& sees, const ww_plan_options& options, double tolerance = 2e-5) {
    for (size_t r = 0; r < requests.size(); ++r) {
      for (int i = 0; i < requests[r].q_len; ++i) {
        for (int h = 0; h < kQHeads; ++h) check_row({static_cast<int>(r), i, h}, sees, options, tolerance);
      }
    }
  }
  struct RowOf {
    int request, row, head;
  };
  void check_row(RowOf of, const Sees& sees, const ww_plan_options& options, double tolerance) {
    const int r = of.request, i = of.row, h = of.head;
    const int64_t row = (int64_t{q_indptr[r]} + i) * kQHeads + h;
    const PlainRow expected = plain_row(
        {q.floats() + row * kDim, kDim},
        PlainTokens{requests[r].kv_len, [&](int t, int d) { return k[at(r, t, h / 2) + d]; },
                    [&](int t, int d) { return v[at(r, t, h / 2) + d]; }, [&](int t) { return sees(r, i, t); }},
        {1 / std::sqrt(double{kDim}), options.logit_softcap,
         options.use_sinks ? sinks.floats() + h : nullptr});
    const std::string where = "request " + std::to_string(r) + " row " + std::to_string(i);
    for (int d = 0; d < kDim; ++d)
      ASSERT_NEAR(out[row * kDim + d], expected.out[d], tolerance) << where;
    if (std::isinf(expected.lse)) {
      ASSERT_EQ(lse[row], -std::numeric_limits<float>::infinity()) << where;
    } else {
      ASSERT_NEAR(lse[row], expected.lse, 10 * tolerance) << where;
    }
  }
  Sees causal() const {
    return [this](int r, int i, int t) { return t <= requests[r].kv_len - requests[r].q_len + i; };
  }
};

inline const std::vector<Scene::Request> kMixed = {{5, 70}, {1, 130}, {33, 33}, {1, 1}, {3, 0}, {0, 9}};

}  // namespace warpweave::capi::testing
