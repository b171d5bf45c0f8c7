// The C interface from outside, through libwarpweave.so: results against plain loops, memory rules,
// and what it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <thread>

#include "capi/testing.h"
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

constexpr int kQHeads = 4, kKvHeads = 2, kDim = 32;

std::string error_text() { return ww_last_error(); }

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

ww_plan_options options_of(int page_size) {
  ww_plan_options options = WW_PLAN_OPTIONS_INIT;
  options.num_q_heads = kQHeads;
  options.num_kv_heads = kKvHeads;
  options.head_dim = kDim;
  options.page_size = page_size;
  options.kv_format = WW_KV_F32;
  return options;
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

  ww_batch dense() const {
    ww_batch batch = WW_BATCH_INIT;
    batch.num_requests = static_cast<int32_t>(requests.size());
    batch.q_indptr = q_indptr.data();
    batch.kv_lens = kv_lens.data();
    batch.page_table = table.data();
    batch.page_table_stride = stride;
    return batch;
  }
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
        for (int h = 0; h < kQHeads; ++h)
          check_row(static_cast<int>(r), i, h, sees, options, tolerance);
      }
    }
  }
  void check_row(int r, int i, int h, const Sees& sees, const ww_plan_options& options,
                 double tolerance) {
    const int64_t row = (int64_t{q_indptr[r]} + i) * kQHeads + h;
    const PlainRow expected = plain_row(
        q.floats() + row * kDim, kDim, requests[r].kv_len,
        [&](int t, int d) { return k[at(r, t, h / 2) + d]; },
        [&](int t, int d) { return v[at(r, t, h / 2) + d]; }, [&](int t) { return sees(r, i, t); },
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

const std::vector<Scene::Request> kMixed = {{5, 70}, {1, 130}, {33, 33}, {1, 1}, {3, 0}, {0, 9}};

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
          q.floats() + (row * kQHeads + h) * kDim, kDim, lens[r],
          [&](int t, int d) { return k[at(t, d)]; }, [&](int t, int d) { return v[at(t, d)]; },
          [&](int t) { return t <= lens[r] - q_len + i; }, {1 / std::sqrt(double{kDim})});
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

uint16_t bf16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float of_bf16(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

TEST(CApi, Bf16QueriesAndResults) {
  Context context;
  Scene scene({{7, 20}, {1, 90}}, 16);
  Array q({8, kQHeads, kDim}, kBf16), out({8, kQHeads, kDim}, kBf16);
  for (size_t i = 0; i < q.size(); ++i) {
    q.halves()[i] = bf16_of(scene.q[i]);
    scene.q.floats()[i] = of_bf16(q.halves()[i]);
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
  for (size_t i = 0; i < out.size(); ++i) scene.out.floats()[i] = of_bf16(out.halves()[i]);
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
