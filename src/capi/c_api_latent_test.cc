// Latent attention (MLA) through the C interface: against plain loops, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "capi/testing_scene.h"
#include "warpweave/c.h"

namespace warpweave::capi::testing {
namespace {

constexpr int kHeads = 3, kRank = 32, kRope = 8, kRowDim = kRank + kRope, kPage = 16, kPages = 14;
constexpr float kScale = 0.14f;

struct Request { int q_len, kv_len; };
const std::vector<Request> kRequests = {{5, 70}, {1, 33}, {2, 2}, {1, 64}};

ww_plan_options latent_options() {
  ww_plan_options options = latent_options_of(kHeads, kRowDim, kRank, kPage);
  options.kv_format = WW_KV_F32;
  options.scale = kScale;
  return options;
}

class CApiLatent : public ::testing::Test {
 protected:
  CApiLatent() {
    int page = kPages;  // from the last to the first
    for (const Request& r : kRequests) {
      q_indptr_.push_back(q_indptr_.back() + r.q_len);
      kv_lens_.push_back(r.kv_len);
      for (int p = 0; p < kStride; ++p) table_.push_back(p * kPage < r.kv_len ? --page : -77);
    }
  }

  ww_batch batch() const { return batch_of(q_indptr_, kv_lens_, table_, kStride); }
  ww_kv_cache cache() {
    ww_kv_cache kv = WW_KV_CACHE_INIT;
    kv.format = WW_KV_F32;
    kv.k = rows_.tensor();
    return kv;
  }
  ww_run_args run_args(const ww_kv_cache& kv) {
    ww_run_args args = WW_RUN_ARGS_INIT;
    args.q = q_.tensor();
    args.kv = &kv;
    args.out = out_.tensor();
    args.lse_ln = lse_.tensor();
    return args;
  }
  const float* row_of(int request, int token) {
    const int64_t page = table_[request * kStride + token / kPage];
    return rows_.floats() + (page * kPage + token % kPage) * kRowDim;
  }
  void check_row(int request, int row, int head) {
    const auto [q_len, kv_len] = kRequests[request];
    const int64_t at = int64_t{q_indptr_[request] + row} * kHeads + head;
    const PlainRow expected = plain_row(
        {q_.floats() + at * kRowDim, kRowDim},
        PlainTokens{kv_len, [&](int t, int d) { return row_of(request, t)[d]; },
                    [&](int t, int d) { return row_of(request, t)[d]; },
                    [&, seen = kv_len - q_len + row](int t) { return t <= seen; }},
        {kScale});
    for (int d = 0; d < kRank; ++d) ASSERT_NEAR(out_[at * kRank + d], expected.out[d], 2e-5) << request << " " << row;
    ASSERT_NEAR(lse_[at], expected.lse, 2e-4);
  }

  static constexpr int kStride = 6;
  const Context context_;
  std::vector<int32_t> q_indptr_ = {0}, kv_lens_, table_;
  Array q_ = Array({9, kHeads, kRowDim}).fill(1), rows_ = Array({kPages, kPage, 1, kRowDim}).fill(2);
  Array out_{{9, kHeads, kRank}}, lse_{{9, kHeads}};
};

TEST_F(CApiLatent, EveryBackendGivesAttentionOverTheLatentRows) {
  int count = 0;
  for (int i = 0; const char* name = ww_backend_name(i); ++i) {
    SCOPED_TRACE(name);
    ww_plan_options options = latent_options();
    options.backend = name;
    ww_plan* plan = nullptr;
    const ww_status status = ww_plan_create(context_.workspace, &options, &plan);
    if (status == WW_UNSUPPORTED) continue;  // it has no MLA
    ASSERT_EQ(status, WW_OK) << error_text();
    const ww_batch planned = batch();
    ASSERT_EQ(ww_plan_batch(plan, &planned), WW_OK) << error_text();
    const ww_kv_cache kv = cache();
    const ww_run_args args = run_args(kv);
    ASSERT_EQ(ww_plan_run(plan, &args), WW_OK) << error_text();
    for (int r = 0; r < static_cast<int>(kRequests.size()); ++r) {
      for (int row = 0; row < kRequests[r].q_len; ++row) {
        for (int h = 0; h < kHeads; ++h) check_row(r, row, h);
      }
    }
    ww_plan_destroy(plan);
    ++count;
  }
  EXPECT_GE(count, 2);
}

TEST_F(CApiLatent, RefusesWhatLatentRowsCannotBe) {
  struct Wrong {
    void (*change)(ww_plan_options&);
    const char* says;
  };
  const Wrong wrong[] = {
      {[](ww_plan_options& o) { o.num_kv_heads = 3; }, "num_kv_heads"},
      {[](ww_plan_options& o) { o.v_head_dim = 0; }, "v_head_dim"},
      {[](ww_plan_options& o) { o.v_head_dim = kRowDim + 1; }, "v_head_dim"},
      {[](ww_plan_options& o) { o.scale = 0; }, "scale"},
      {[](ww_plan_options& o) { o.latent = 2; }, "latent"},
  };
  for (const Wrong& w : wrong) {
    ww_plan_options options = latent_options();
    w.change(options);
    ww_plan* plan = nullptr;
    EXPECT_EQ(ww_plan_create(context_.workspace, &options, &plan), WW_INVALID_ARGUMENT) << w.says;
    EXPECT_NE(error_text().find(w.says), std::string::npos) << error_text();
  }
  const Plan plan(context_, latent_options());
  const ww_batch planned = batch();
  ASSERT_EQ(ww_plan_batch(plan.plan, &planned), WW_OK) << error_text();
  ww_kv_cache kv = cache();
  kv.v = kv.k;
  const ww_run_args args = run_args(kv);
  EXPECT_EQ(ww_plan_run(plan.plan, &args), WW_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("pass NULL"), std::string::npos) << error_text();
}

}  // namespace
}  // namespace warpweave::capi::testing
