// The C interface from outside, through libwarpweave.so: results against plain loops, and memory rules.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>

#include "base/float16.h"
#include "capi/testing_scene.h"
#include "warpweave/c.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__GLIBC__)
#define WW_COUNTS_ALLOCATIONS 1
namespace {
std::atomic<bool> counting{false};
std::atomic<int> allocations{0};
void count_allocation() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1);
}
}  // namespace
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void* malloc(size_t bytes) { return count_allocation(), __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return count_allocation(), __libc_calloc(count, bytes); }
void* realloc(void* old, size_t bytes) { return count_allocation(), __libc_realloc(old, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) {
  return count_allocation(), __libc_memalign(alignment, bytes);
}
}
#endif

namespace warpweave::capi::testing {
namespace {

TEST(CApi, DenseAndCsrTablesGiveAttention) {
  Context context;
  for (int page_size : {1, 16, 53}) {
    Scene scene(kMixed, page_size);
    const ww_plan_options options = options_of(page_size);
    Plan plan(context, options);
    EXPECT_NE(std::string(ww_plan_explain(plan.plan)).find("intel_amx"), std::string::npos);
    scene.run(plan.plan, scene.dense());
    scene.check(scene.causal(), options);
    std::memset(scene.out.bytes(), 0xff, scene.out.size() * 4);
    scene.run(plan.plan, scene.csr());
    scene.check(scene.causal(), options);
  }
}

// One plan for batches of any page size.
TEST(CApi, PageSizeOfTheBatch) {
  Context context;
  const ww_plan_options options = options_of(0);
  Plan plan(context, options);
  for (int page_size : {5, 200, 16}) {
    Scene scene(kMixed, page_size);
    ww_batch batch = scene.dense();
    EXPECT_EQ(ww_plan_batch(plan.plan, &batch), WW_INVALID_ARGUMENT) << "nobody says the page size";
    batch.page_size = page_size;
    scene.run(plan.plan, batch);
    scene.check(scene.causal(), options);
  }
}

TEST(CApi, EveryBackendByName) {
  Context context;
  int count = 0;
  for (const char* name; (name = ww_backend_name(count)) != nullptr; ++count) {
    SCOPED_TRACE(name);
    Scene scene({{5, 70}, {1, 130}}, 64);
    ww_plan_options options = options_of(64);
    options.backend = name;
    ww_plan* plan = nullptr;
    const ww_status status = ww_plan_create(context.workspace, &options, &plan);
    if (status == WW_UNSUPPORTED) continue;  // e.g. a dual-chunk backend without such a model
    ASSERT_EQ(status, WW_OK) << error_text();
    scene.run(plan, scene.dense());
    scene.check(scene.causal(), options, 1e-3);
    ww_plan_destroy(plan);
  }
  EXPECT_GE(count, 2);
}

TEST(CApi, NoPages) {
  Context context;
  const ww_plan_options options = options_of(0);
  Plan plan(context, options);
  const int kv_starts[] = {6, 12}, lens[] = {5, 30};
  const int32_t q_indptr[] = {0, 2, 5}, kv_indptr[] = {6, 12, 44}, kv_lens[] = {5, 30};
  Array q = Array({5, kQHeads, kDim}).fill(1), k = Array({44, kKvHeads, kDim}).fill(2);
  Array v = Array({44, kKvHeads, kDim}).fill(3), out({5, kQHeads, kDim});
  ww_batch batch = WW_BATCH_INIT;
  batch.num_requests = 2;
  batch.q_indptr = q_indptr;
  batch.kv_indptr = kv_indptr;
  batch.kv_lens = kv_lens;
  ASSERT_EQ(ww_plan_batch(plan.plan, &batch), WW_OK) << error_text();
  ww_kv_cache kv = WW_KV_CACHE_INIT;
  kv.format = WW_KV_F32;
  kv.k = k.tensor();
  kv.v = v.tensor();
  ww_run_args args = WW_RUN_ARGS_INIT;
  args.q = q.tensor();
  args.kv = &kv;
  args.out = out.tensor();
  ASSERT_EQ(ww_plan_run(plan.plan, &args), WW_OK) << error_text();
  for (int row = 0; row < 5; ++row) {
    const int r = row < 2 ? 0 : 1, i = row - q_indptr[r], q_len = q_indptr[r + 1] - q_indptr[r];
    for (int h = 0; h < kQHeads; ++h) {
      auto at = [&](int t, int d) { return ((kv_starts[r] + t) * kKvHeads + h / 2) * kDim + d; };
      const PlainRow expected = plain_row(
          {q.floats() + (row * kQHeads + h) * kDim, kDim},
          PlainTokens{lens[r], [&](int t, int d) { return k[at(t, d)]; }, [&](int t, int d) { return v[at(t, d)]; },
                      [&](int t) { return t <= lens[r] - q_len + i; }},
          {1 / std::sqrt(double{kDim})});
      for (int d = 0; d < kDim; ++d)
        ASSERT_NEAR(out[(row * kQHeads + h) * kDim + d], expected.out[d], 2e-5);
    }
  }
}

TEST(CApi, MaskRules) {
  Context context;
  Scene scene({{5, 70}, {40, 130}, {20, 33}, {1, 1}}, 16);
  {
    ww_plan_options options = options_of(16);
    options.window_left = 11;
    options.logit_softcap = 3;
    options.use_sinks = 1;
    Plan plan(context, options);
    scene.run(plan.plan, scene.dense(), scene.sinks.tensor());
    scene.check([&](int r, int i, int t) {
      const int position = scene.requests[r].kv_len - scene.requests[r].q_len + i;
      return t <= position && t >= position - 11;
    }, options);
  }
  {
    ww_plan_options options = options_of(16);
    options.causal = 0;
    Plan plan(context, options);
    scene.run(plan.plan, scene.dense());
    scene.check([](int, int, int) { return true; }, options);
  }
}

TEST(CApi, MoreRowsThanTokens) {
  Context context;
  Scene scene({{20, 7}, {3, 5}, {130, 70}}, 16);
  ww_plan_options options = options_of(16);
  Plan causal(context, options);
  scene.run(causal.plan, scene.dense());
  scene.check(scene.causal(), options);
  options.causal = 0;
  Plan full(context, options);
  scene.run(full.plan, scene.dense());
  scene.check([](int, int, int) { return true; }, options);
}

TEST(CApi, TreeMask) {
  Context context;
  Scene scene({{6, 40}, {35, 80}}, 16);
  std::vector<uint32_t> mask(41 * 2);
  std::mt19937_64 random(5);
  auto sees_row = [&](int row, int other) {
    return mask[row * 2 + other / 32] >> (other % 32) & 1;
  };
  for (int r = 0; r < 2; ++r) {  // each node sees itself and what its parent sees
    for (int i = 0; i < scene.requests[r].q_len; ++i) {
      const int row = scene.q_indptr[r] + i;
      if (i > 0) {
        const int parent = scene.q_indptr[r] + static_cast<int>(random() % i);
        mask[row * 2] = mask[parent * 2];
        mask[row * 2 + 1] = mask[parent * 2 + 1];
      }
      mask[row * 2 + i / 32] |= 1u << (i % 32);
    }
  }
  ww_plan_options options = options_of(16);
  options.use_tree_mask = 1;
  Plan plan(context, options);
  ww_batch batch = scene.dense();
  batch.tree_mask = mask.data();
  batch.tree_mask_words = 2;
  scene.run(plan.plan, batch);
  scene.check([&](int r, int i, int t) {
    const int prefix = scene.requests[r].kv_len - scene.requests[r].q_len;
    return t < prefix || sees_row(scene.q_indptr[r] + i, t - prefix);
  }, options);

  mask[0] = 0;
  EXPECT_EQ(ww_plan_batch(plan.plan, &batch), WW_INVALID_ARGUMENT);
  EXPECT_NE(error_text().find("does not see itself"), std::string::npos);
}

// HND pages inside one packed [pages, 2, heads, page, dim] cache, q as [batch, rows, heads, dim]
// with heads outermost, lse transposed: everything by strides.
TEST(CApi, Strides) {
  Context context;
  Scene scene({{7, 20}, {7, 33}}, 16);
  const ww_plan_options options = options_of(16);
  Plan plan(context, options);
  const ww_batch batch = scene.dense();
  ASSERT_EQ(ww_plan_batch(plan.plan, &batch), WW_OK) << error_text();

  Array packed({scene.pages, 2, kKvHeads, 16, kDim}), q({2, kQHeads, 7, kDim}),
      out({2, kQHeads, 7, kDim});
  Array lse({2, kQHeads, 7});
  for (int p = 0; p < scene.pages; ++p) {
    for (int h = 0; h < kKvHeads; ++h) {
      for (int t = 0; t < 16; ++t) {
        for (int d = 0; d < kDim; ++d) {
          const int64_t from = ((p * 16 + t) * kKvHeads + h) * kDim + d;
          const int64_t to = ((p * 2 * kKvHeads + h) * 16 + t) * kDim + d;
          packed.floats()[to] = scene.k[from];
          packed.floats()[to + kKvHeads * 16 * kDim] = scene.v[from];
        }
      }
    }
  }
  for (int row = 0; row < 14; ++row) {
    for (int h = 0; h < kQHeads; ++h) {
      for (int d = 0; d < kDim; ++d) {
        q.floats()[((row / 7 * kQHeads + h) * 7 + row % 7) * kDim + d] =
            scene.q[(row * kQHeads + h) * kDim + d];
      }
    }
  }
  const std::vector<int64_t> page_strides = {2 * kKvHeads * 16 * kDim, 16 * kDim, kDim, 1};
  Array packed_v = packed;
  ww_kv_cache kv = WW_KV_CACHE_INIT;
  kv.format = WW_KV_F32;
  kv.layout = WW_KV_HND;
  kv.k = packed.view(page_strides, {scene.pages, kKvHeads, 16, kDim});
  kv.v = packed_v.view(page_strides, {scene.pages, kKvHeads, 16, kDim}, kKvHeads * 16 * kDim);
  const std::vector<int64_t> row_strides = {kQHeads * 7 * kDim, kDim, 7 * kDim, 1};
  ww_run_args args = WW_RUN_ARGS_INIT;
  args.q = q.view(row_strides, {2, 7, kQHeads, kDim});
  args.kv = &kv;
  args.out = out.view(row_strides, {2, 7, kQHeads, kDim});
  args.lse_ln = lse.view({kQHeads * 7, 1, 7}, {2, 7, kQHeads});
  ASSERT_EQ(ww_plan_run(plan.plan, &args), WW_OK) << error_text();
  for (int row = 0; row < 14; ++row) {
    for (int h = 0; h < kQHeads; ++h) {
      const int64_t to = (row / 7 * kQHeads + h) * 7 + row % 7;
      scene.lse.floats()[row * kQHeads + h] = lse[to];
      for (int d = 0; d < kDim; ++d)
        scene.out.floats()[(row * kQHeads + h) * kDim + d] = out[to * kDim + d];
    }
  }
  scene.check(scene.causal(), options);
}

TEST(CApi, Bf16QueriesAndResults) {
  Context context;
  Scene scene({{7, 20}, {1, 90}}, 16);
  Array q({8, kQHeads, kDim}, kBf16), out({8, kQHeads, kDim}, kBf16);
  for (size_t i = 0; i < q.size(); ++i) {
    q.halves()[i] = f32_to_bf16(scene.q[i]);
    scene.q.floats()[i] = bf16_to_f32(q.halves()[i]);
  }
  ww_plan_options options = options_of(16);
  options.q_dtype = kBf16;
  Plan plan(context, options);
  const ww_batch batch = scene.dense();
  ASSERT_EQ(ww_plan_batch(plan.plan, &batch), WW_OK) << error_text();
  const ww_kv_cache kv = scene.kv();
  ww_run_args args = WW_RUN_ARGS_INIT;
  args.q = q.tensor();
  args.kv = &kv;
  args.out = out.tensor();
  args.lse_ln = scene.lse.tensor();
  ASSERT_EQ(ww_plan_run(plan.plan, &args), WW_OK) << error_text();
  for (size_t i = 0; i < out.size(); ++i) scene.out.floats()[i] = bf16_to_f32(out.halves()[i]);
  scene.check(scene.causal(), options, 1e-2);
  args.q = scene.q.tensor();
  EXPECT_EQ(ww_plan_run(plan.plan, &args), WW_INVALID_ARGUMENT);
  EXPECT_EQ(error_text(), "q: its dtype is not the plan's q_dtype");
}

// Appended rows come back as they went in, up to the format's rounding.
TEST(CApi, AppendInEveryFormat) {
  struct Format { ww_kv_format format; ww_dtype dtype; int bytes_per_two; double tolerance; };
  const Format formats[] = {{WW_KV_F32, kF32, 8, 2e-5},    {WW_KV_BF16, kBf16, 4, 0.02},
                            {WW_KV_F16, kF16, 4, 0.003},   {WW_KV_FP8_E4M3, kU8, 2, 0.2},
                            {WW_KV_FP8_E5M2, kU8, 2, 0.4}, {WW_KV_FP4_E2M1, kU8, 1, 1.2}};
  Context context;
  for (const Format& f : formats) {
    SCOPED_TRACE(f.format);
    const bool fp4 = f.format == WW_KV_FP4_E2M1, scaled = f.bytes_per_two <= 2;
    Scene scene({{3, 50}, {1, 17}}, 16);
    const int64_t last = fp4 ? kDim / 2 : kDim;
    Array k({scene.pages, 16, kKvHeads, last}, f.dtype),
        v({scene.pages, 16, kKvHeads, last}, f.dtype);
    Array k_blocks({scene.pages, 16, kKvHeads, kDim / 16}, kU8),
        v_blocks({scene.pages, 16, kKvHeads, kDim / 16}, kU8);
    Array k_scales({kKvHeads}), v_scales({1});
    k_scales.floats()[0] = 0.5f, k_scales.floats()[1] = 0.25f, v_scales.floats()[0] = 0.5f;
    ww_kv_cache kv = WW_KV_CACHE_INIT;
    kv.format = f.format;
    kv.k = k.tensor();
    kv.v = v.tensor();
    if (scaled) kv.k_scales = k_scales.tensor(), kv.v_scales = v_scales.tensor();
    if (fp4) kv.k_block_scales = k_blocks.tensor(), kv.v_block_scales = v_blocks.tensor();

    std::vector<int64_t> slots(int64_t{scene.pages} * 16);
    std::iota(slots.begin(), slots.end(), 0);
    ww_append_args append = WW_APPEND_ARGS_INIT;
    append.k_new = scene.k.view({}, {scene.pages * 16, kKvHeads, kDim});
    append.v_new = scene.v.view({}, {scene.pages * 16, kKvHeads, kDim});
    append.slots = slots.data();
    append.kv = &kv;
    ASSERT_EQ(ww_append_kv(context.context, &append), WW_OK) << error_text();

    ww_plan_options options = options_of(16);
    options.kv_format = f.format;
    Plan plan(context, options);
    const ww_batch batch = scene.dense();
    ASSERT_EQ(ww_plan_batch(plan.plan, &batch), WW_OK) << error_text();
    ww_run_args args = WW_RUN_ARGS_INIT;
    args.q = scene.q.tensor();
    args.kv = &kv;
    args.out = scene.out.tensor();
    args.lse_ln = scene.lse.tensor();
    ASSERT_EQ(ww_plan_run(plan.plan, &args), WW_OK) << error_text();
    scene.check(scene.causal(), options, f.tolerance);

    slots[3] = int64_t{scene.pages} * 16;
    EXPECT_EQ(ww_append_kv(context.context, &append), WW_INVALID_ARGUMENT);
    EXPECT_NE(error_text().find("slots: row 3"), std::string::npos);
  }
}

TEST(CApi, MergedStatesEqualTheWhole) {
  Context context;
  const int kTokens = 100, kSplit = 37;
  Array q = Array({6, kQHeads, kDim}).fill(1), k = Array({kTokens, kKvHeads, kDim}).fill(2);
  Array v = Array({kTokens, kKvHeads, kDim}).fill(3);
  ww_plan_options options = options_of(0);
  options.causal = 0;
  Plan plan(context, options);
  const int32_t q_indptr[] = {0, 6};
  auto run = [&](int begin, int end, Array& out, Array& lse) {
    const int32_t kv_indptr[] = {begin, end};
    ww_batch batch = WW_BATCH_INIT;
    batch.num_requests = 1;
    batch.q_indptr = q_indptr;
    batch.kv_indptr = kv_indptr;
    ASSERT_EQ(ww_plan_batch(plan.plan, &batch), WW_OK) << error_text();
    ww_kv_cache kv = WW_KV_CACHE_INIT;
    kv.format = WW_KV_F32;
    kv.k = k.tensor();
    kv.v = v.tensor();
    ww_run_args args = WW_RUN_ARGS_INIT;
    args.q = q.tensor();
    args.kv = &kv;
    args.out = out.tensor();
    args.lse_ln = lse.tensor();
    ASSERT_EQ(ww_plan_run(plan.plan, &args), WW_OK) << error_text();
  };
  Array whole({6, kQHeads, kDim}), whole_lse({6, kQHeads}), part({6, kQHeads, kDim}),
      part_lse({6, kQHeads});
  Array outs({6, 3, kQHeads, kDim}), lses({6, 3, kQHeads});
  run(0, kTokens, whole, whole_lse);
  const int cuts[] = {0, kSplit, kTokens, kTokens};  // the last part is empty
  for (int s = 0; s < 3; ++s) {
    run(cuts[s], cuts[s + 1], part, part_lse);
    for (int row = 0; row < 6; ++row) {
      std::copy_n(part.floats() + row * kQHeads * kDim, kQHeads * kDim,
                  outs.floats() + (row * 3 + s) * kQHeads * kDim);
      std::copy_n(part_lse.floats() + row * kQHeads, kQHeads,
                  lses.floats() + (row * 3 + s) * kQHeads);
    }
  }
  ww_merge_args args = WW_MERGE_ARGS_INIT;
  args.outs = outs.tensor();
  args.lses_ln = lses.tensor();
  args.out = part.tensor();
  args.lse_ln = part_lse.tensor();
  ASSERT_EQ(ww_merge_states(context.context, &args), WW_OK) << error_text();
  for (size_t i = 0; i < part.size(); ++i) ASSERT_NEAR(part[i], whole[i], 1e-5);
  for (size_t i = 0; i < part_lse.size(); ++i) ASSERT_NEAR(part_lse[i], whole_lse[i], 1e-5);
}

#ifdef WW_COUNTS_ALLOCATIONS
TEST(CApi, RunDoesNotAllocate) {
  Context context;
  for (const char* backend : {"intel_amx", "torch_native"}) {
    for (const std::vector<Scene::Request>& requests :
         {std::vector<Scene::Request>{{1, 3000}, {1, 20}}, {{70, 90}, {1, 600}, {20, 7}}}) {
      Scene scene(requests, 16);
      ww_plan_options options = options_of(16);
      options.backend = backend;
      Plan plan(context, options);
      const ww_batch batch = scene.dense();
      ASSERT_EQ(ww_plan_batch(plan.plan, &batch), WW_OK) << error_text();
      const ww_kv_cache kv = scene.kv();
      ww_run_args args = WW_RUN_ARGS_INIT;
      args.q = scene.q.tensor();
      args.kv = &kv;
      args.out = scene.out.tensor();
      args.lse_ln = scene.lse.tensor();
      allocations = 0;
      counting = true;
      const ww_status status = ww_plan_run(plan.plan, &args);
      counting = false;
      ASSERT_EQ(status, WW_OK) << error_text();
      EXPECT_EQ(allocations.load(), 0) << backend;
      scene.check(scene.causal(), options);
    }
  }
}
#endif

TEST(CApi, FixedWorkspaceNamesWhatItNeeds) {
  Context context;
  ww_workspace* small = nullptr;
  ASSERT_EQ(ww_workspace_create(context.context, 1024, &small), WW_OK) << error_text();
  ww_plan_options options = options_of(16);
  ww_plan* plan = nullptr;
  ASSERT_EQ(ww_plan_create(small, &options, &plan), WW_OK) << error_text();
  Scene scene({{40, 40}}, 16);
  const ww_batch batch = scene.dense();
  EXPECT_EQ(ww_plan_batch(plan, &batch), WW_RESOURCE_EXHAUSTED);
  EXPECT_NE(error_text().find("the workspace has 1024"), std::string::npos);
  const ww_kv_cache kv = scene.kv();
  ww_run_args args = WW_RUN_ARGS_INIT;
  args.q = scene.q.tensor();
  args.kv = &kv;
  args.out = scene.out.tensor();
  EXPECT_EQ(ww_plan_run(plan, &args), WW_INVALID_ARGUMENT) << "a failed plan does not run";
  ww_plan_destroy(plan);
  ww_workspace_destroy(small);
}

TEST(CApi, PlansShareAContextBetweenThreads) {
  Context context;
  auto work = [&](int seed) {
    ww_workspace* workspace = nullptr;
    ASSERT_EQ(ww_workspace_create(context.context, 0, &workspace), WW_OK);
    Scene scene({{seed, 60 + seed}, {1, 33}}, 16);
    const ww_plan_options options = options_of(16);
    ww_plan* plan = nullptr;
    ASSERT_EQ(ww_plan_create(workspace, &options, &plan), WW_OK);
    for (int i = 0; i < 50; ++i) {
      scene.run(plan, scene.dense());
      scene.check(scene.causal(), options);
    }
    ww_plan_destroy(plan);
    ww_workspace_destroy(workspace);
  };
  std::thread other(work, 3);
  work(9);
  other.join();
}

}  // namespace
}  // namespace warpweave::capi::testing
