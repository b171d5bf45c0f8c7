// What the C interface refuses, and by which field or argument.
#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "capi/testing_scene.h"
#include "warpweave/c.h"

namespace warpweave::capi::testing {
namespace {

TEST(CApi, StructsOfOtherVersions) {
  Context context;
  ww_plan* plan = nullptr;
  struct Newer {
    ww_plan_options options;
    int64_t later;
  } newer = {options_of(16), 0};
  newer.options.struct_size = sizeof(newer);
  ASSERT_EQ(ww_plan_create(context.workspace, &newer.options, &plan), WW_OK) << error_text();
  ww_plan_destroy(plan);
  newer.later = 1;
  EXPECT_EQ(ww_plan_create(context.workspace, &newer.options, &plan), WW_UNSUPPORTED);
  EXPECT_NE(error_text().find("newer interface"), std::string::npos);
  ww_plan_options older = options_of(16);
  older.struct_size = offsetof(ww_plan_options, backend);
  older.backend = reinterpret_cast<const char*>(1);  // past its end: never looked at
  ASSERT_EQ(ww_plan_create(context.workspace, &older, &plan), WW_OK) << error_text();
  ww_plan_destroy(plan);
  older.struct_size = 0;
  EXPECT_EQ(ww_plan_create(context.workspace, &older, &plan), WW_INVALID_ARGUMENT);
}

TEST(CApi, RefusedOptionsNameTheField) {
  Context context;
  struct Refusal {
    std::function<void(ww_plan_options&)> change;
    ww_status status;
    const char* text;
  };
  const Refusal refusals[] = {
      {[](auto& o) { o.num_q_heads = 3; }, WW_INVALID_ARGUMENT, "num_q_heads"},
      {[](auto& o) { o.num_kv_heads = 0; }, WW_INVALID_ARGUMENT, "num_kv_heads"},
      {[](auto& o) { o.head_dim = -1; }, WW_INVALID_ARGUMENT, "head_dim"},
      {[](auto& o) { o.page_size = -1; }, WW_INVALID_ARGUMENT, "page_size"},
      {[](auto& o) { o.kv_format = 99; }, WW_INVALID_ARGUMENT, "kv_format"},
      {[](auto& o) { o.q_dtype = kU8; }, WW_INVALID_ARGUMENT, "q_dtype"},
      {[](auto& o) { o.window_right = 4; }, WW_UNSUPPORTED, "window_right"},
      {[](auto& o) { o.logit_softcap = -1; }, WW_INVALID_ARGUMENT, "logit_softcap"},
      {[](auto& o) { o.backend = "intel_amxx"; }, WW_INVALID_ARGUMENT, "did you mean intel_amx?"},
      {[](auto& o) { o.backend = "fa3"; }, WW_UNSUPPORTED, "fa3"},
      {[](auto& o) { o.head_dim = 4096; }, WW_UNSUPPORTED, "4096"},
  };
  for (const Refusal& refusal : refusals) {
    ww_plan_options options = options_of(16);
    refusal.change(options);
    ww_plan* plan = nullptr;
    EXPECT_EQ(ww_plan_create(context.workspace, &options, &plan), refusal.status) << refusal.text;
    EXPECT_NE(error_text().find(refusal.text), std::string::npos) << error_text();
    EXPECT_EQ(plan, nullptr);
  }
}

TEST(CApi, RefusedBatchesNameTheField) {
  Context context;
  const ww_plan_options options = options_of(16);
  Plan plan(context, options);
  const Scene scene({{2, 40}, {1, 17}}, 16);
  std::vector<int32_t> falling = {0, 2, 1}, negative = {40, -1}, table = scene.table;
  table[0] = -1;
  struct Refusal { std::function<void(ww_batch&)> change; const char* text; };
  const Refusal refusals[] = {
      {[](auto& b) { b.num_requests = -1; }, "num_requests"},
      {[](auto& b) { b.q_indptr = nullptr; }, "q_indptr"},
      {[&](auto& b) { b.q_indptr = falling.data(); }, "q_indptr: falls from 2 to 1"},
      {[](auto& b) { b.kv_lens = nullptr; }, "kv_lens: is NULL"},
      {[&](auto& b) { b.kv_lens = negative.data(); }, "kv_lens: request 1 sees -1 tokens"},
      {[](auto& b) { b.page_table = nullptr; }, "exactly one of"},
      {[&](auto& b) { b.kv_indptr = scene.page_indptr.data(); }, "exactly one of"},
      {[](auto& b) { b.page_size = 32; }, "page_size: is 32 under a plan made with 16"},
      {[](auto& b) { b.page_table_stride = 2; },
       "request 0 sees 40 tokens, 3 pages of 16, but has 2"},
      {[&](auto& b) { b.page_table = table.data(); }, "page 0 of request 0 is -1"},
  };
  for (const Refusal& refusal : refusals) {
    ww_batch batch = scene.dense();
    refusal.change(batch);
    EXPECT_EQ(ww_plan_batch(plan.plan, &batch), WW_INVALID_ARGUMENT) << refusal.text;
    EXPECT_NE(error_text().find(refusal.text), std::string::npos) << error_text();
  }
}

TEST(CApi, RefusedTensorsNameTheArgument) {
  Context context;
  const ww_plan_options options = options_of(16);
  Plan plan(context, options);
  Scene scene({{2, 40}, {1, 17}}, 16);
  const ww_batch batch = scene.dense();
  ASSERT_EQ(ww_plan_batch(plan.plan, &batch), WW_OK) << error_text();
  ww_kv_cache kv = scene.kv();
  ww_tensor gpu = *scene.q.tensor();
  gpu.device.device_type = WW_DEVICE_CUDA;
  Array short_q({2, kQHeads, kDim}), wide({3, kQHeads, kDim + 1}), few({1, 16, kKvHeads, kDim});
  Array halves({3, kQHeads, kDim}, kF16);
  struct Refusal { std::function<void(ww_run_args&)> change; ww_status status; const char* text; };
  const Refusal refusals[] = {
      {[](auto& a) { a.q = nullptr; }, WW_INVALID_ARGUMENT, "q: a tensor is needed"},
      {[&](auto& a) { a.q = &gpu; }, WW_UNSUPPORTED, "q: the tensor is on DLPack device type 2"},
      {[&](auto& a) { a.q = short_q.tensor(); }, WW_INVALID_ARGUMENT,
       "q: has 2 rows, the batch has 3"},
      {[&](auto& a) { a.q = wide.tensor(); }, WW_INVALID_ARGUMENT, "must have 4 of 32"},
      {[&](auto& a) {
         a.q = wide.view({kQHeads * (kDim + 1), kDim, 2}, {3, kQHeads, kDim});
       },
       WW_INVALID_ARGUMENT, "q: the last dimension must be contiguous"},
      {[&](auto& a) { a.out = halves.tensor(); }, WW_INVALID_ARGUMENT, "out: its dtype"},
      {[&](auto& a) { a.lse_ln = halves.tensor(); }, WW_INVALID_ARGUMENT, "lse_ln"},
      {[&](auto& a) { a.sinks = scene.sinks.tensor(); }, WW_INVALID_ARGUMENT, "use_sinks = 0"},
      {[&](auto&) {
         kv.k = few.tensor();
         kv.v = few.tensor();
       },
       WW_INVALID_ARGUMENT, "kv.k: has 1 pages"},
      {[&](auto&) { kv.format = WW_KV_BF16; }, WW_INVALID_ARGUMENT, "kv.format"},
      {[&](auto&) { kv.layout = WW_KV_HND; }, WW_INVALID_ARGUMENT, "HND"},
      {[&](auto&) { kv.k_scales = scene.sinks.tensor(); }, WW_INVALID_ARGUMENT,
       "kv.k_scales: f32 has no scales"},
      {[&](auto&) { kv.v = nullptr; }, WW_INVALID_ARGUMENT, "kv.v"},
  };
  for (const Refusal& refusal : refusals) {
    kv = scene.kv();
    ww_run_args args = WW_RUN_ARGS_INIT;
    args.q = scene.q.tensor();
    args.kv = &kv;
    args.out = scene.out.tensor();
    refusal.change(args);
    EXPECT_EQ(ww_plan_run(plan.plan, &args), refusal.status) << refusal.text;
    EXPECT_NE(error_text().find(refusal.text), std::string::npos) << error_text();
  }
}

}  // namespace
}  // namespace warpweave::capi::testing
