// Latent attention (MLA) through the C interface: against plain loops, and what it refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/float8.h"
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

constexpr int kPackedLatent = 512, kPackedDim = 576;
constexpr float kPackedScale = 0.072168784f;  // of heads of 192

// A token as docs/kv-formats.md lays it out, with one scale for all; `row` becomes what is stored.
void pack_token(ww_kv_format format, float* row, uint8_t* to) {
  const bool fp8 = format == WW_KV_FP8_DS_MLA;
  const float scale = fp8 ? 0.03125f : 0.5f;
  std::memset(to, 0, fp8 ? 656 : 416);
  for (int d = 0; d < kPackedLatent; ++d) {
    const uint8_t code = fp8 ? f32_to_e4m3(row[d] / scale) : f32_to_e2m1(row[d] / scale);
    row[d] = (fp8 ? e4m3_to_f32(code) : e2m1_to_f32(code)) * scale;
    fp8 ? to[d] = code : to[d / 2] |= static_cast<uint8_t>(code << d % 2 * 4);
  }
  uint8_t* const scales = to + (fp8 ? 512 : 256);
  if (fp8) {
    for (int i = 0; i < 4; ++i) std::memcpy(scales + 4 * i, &scale, sizeof scale);
  } else {
    std::memset(scales, f32_to_e4m3(scale), 32);
  }
  for (int d = kPackedLatent; d < kPackedDim; ++d) {
    uint32_t bits;
    std::memcpy(&bits, row + d, sizeof bits);
    bits &= 0xffff0000u;
    std::memcpy(row + d, &bits, sizeof bits);
    const uint16_t bf16 = static_cast<uint16_t>(bits >> 16);
    std::memcpy(to + (fp8 ? 528 : 288) + (d - kPackedLatent) * 2, &bf16, sizeof bf16);
  }
}

// One request over pages from the last to the first, whose one row sees all tokens.
struct PackedScene {
  PackedScene(ww_kv_format kv_format, int tokens)
      : format(kv_format), pages((tokens + kPage - 1) / kPage), lens{tokens} {
    values.fill(2);
    const int stored = format == WW_KV_FP8_DS_MLA ? 656 : 416;
    bytes.assign(size_t(pages) * kPage * stored, 0xff);
    for (int p = 0; p < pages; ++p) table.push_back(pages - 1 - p);
    for (int t = 0; t < tokens; ++t) {
      const int slot = table[t / kPage] * kPage + t % kPage;
      pack_token(format, values.floats() + int64_t{t} * kPackedDim, &bytes[size_t(slot) * stored]);
    }
    shape = {pages, kPage, 1, stored};
    tensor.data = bytes.data();
    tensor.ndim = 4;
    tensor.shape = shape.data();
    tensor.dtype = {WW_DTYPE_UINT, 8, 1};
    tensor.device = {WW_DEVICE_CPU, 0};
    kv.format = format;
    kv.k = &tensor;
  }
  void run_and_check(ww_plan* plan, float tolerance) {
    const ww_batch batch = batch_of(indptr, lens, table, pages);
    ASSERT_EQ(ww_plan_batch(plan, &batch), WW_OK) << error_text();
    ww_run_args args = WW_RUN_ARGS_INIT;
    args.q = q.tensor();
    args.kv = &kv;
    args.out = out.tensor();
    args.lse_ln = lse.tensor();
    ASSERT_EQ(ww_plan_run(plan, &args), WW_OK) << error_text();
    const auto value = [&](int t, int d) { return values[int64_t{t} * kPackedDim + d]; };
    for (int h = 0; h < kHeads; ++h) {
      const PlainRow expected = plain_row({q.floats() + h * kPackedDim, kPackedDim},
                                          PlainTokens{lens[0], value, value, [](int) { return true; }}, {kPackedScale});
      for (int d = 0; d < kPackedLatent; ++d) ASSERT_NEAR(out[h * kPackedLatent + d], expected.out[d], tolerance);
      ASSERT_NEAR(lse[h], expected.lse, 10 * tolerance);
    }
  }

  ww_kv_format format;
  int pages;
  std::vector<int32_t> indptr = {0, 1}, lens, table;
  Array values{{70, kPackedDim}}, q = Array({1, kHeads, kPackedDim}).fill(1), out{{1, kHeads, kPackedLatent}};
  Array lse{{1, kHeads}};
  std::vector<uint8_t> bytes;
  std::vector<int64_t> shape;
  ww_tensor tensor = {};
  ww_kv_cache kv = WW_KV_CACHE_INIT;
};

TEST_F(CApiLatent, BackendsReadPackedTokens) {
  for (const ww_kv_format format : {WW_KV_FP8_DS_MLA, WW_KV_FP4_MLA}) {
    PackedScene scene(format, 70);
    int count = 0;
    for (int i = 0; const char* name = ww_backend_name(i); ++i) {
      SCOPED_TRACE(std::string(name) + ", format " + std::to_string(format));
      ww_plan_options options = latent_options_of(kHeads, kPackedDim, kPackedLatent, kPage);
      options.kv_format = format;
      options.scale = kPackedScale;
      options.backend = name;
      ww_plan* plan = nullptr;
      const ww_status status = ww_plan_create(context_.workspace, &options, &plan);
      if (status == WW_UNSUPPORTED) continue;  // it has no MLA, or not this format
      ASSERT_EQ(status, WW_OK) << error_text();
      // Others than the plain loops may widen to bf16, which holds the values, and round q and the probabilities to it.
      scene.run_and_check(plan, std::string(name) == "torch_native" ? 2e-5f : 1e-2f);
      ww_plan_destroy(plan);
      ++count;
    }
    EXPECT_GE(count, 2) << format;
  }
}

TEST_F(CApiLatent, PackedTokensHaveOneSizeAndAreNotAppended) {
  ww_plan_options options = latent_options();  // of other dims
  ww_plan* plan = nullptr;
  for (const ww_kv_format format : {WW_KV_FP8_DS_MLA, WW_KV_FP4_MLA}) {
    options.kv_format = format;
    EXPECT_EQ(ww_plan_create(context_.workspace, &options, &plan), WW_INVALID_ARGUMENT);
    EXPECT_NE(error_text().find("head_dim 576"), std::string::npos) << error_text();
  }
  options.kv_format = WW_KV_FP4_E2M1;
  EXPECT_EQ(ww_plan_create(context_.workspace, &options, &plan), WW_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("WW_KV_FP4_MLA"), std::string::npos) << error_text();

  PackedScene scene(WW_KV_FP4_MLA, 5);
  Array row = Array({1, 1, kPackedDim}).fill(3);
  const int64_t slot = 0;
  ww_append_args append = WW_APPEND_ARGS_INIT;
  append.k_new = append.v_new = row.tensor();
  append.slots = &slot;
  append.kv = &scene.kv;
  EXPECT_EQ(ww_append_kv(context_.context, &append), WW_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("packed by the caller"), std::string::npos) << error_text();
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
