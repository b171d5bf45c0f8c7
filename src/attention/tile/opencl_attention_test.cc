// The kernels as they are laid out for GPUs (a lane is a thread, reductions in local memory; or Intel's
// matrix units, emulated), run on an OpenCL CPU against the layout for CPUs, which the conformance
// suite holds to the reference.
#include "attention/tile/opencl_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "base/float16.h"
#include "base/threads.h"
#include "kv/latent_token.h"

namespace warpweave::tile {
namespace {

constexpr Caps kCaps = {.name = "tile"};
constexpr int kHeads = 6, kKvHeads = 2, kDim = 40, kPage = 16;

// A batch of requests over an f32 pool, with everything a call may carry.
struct Example {
  std::vector<int32_t> q_indptr = {0}, kv_lens, page_table, positions;
  std::vector<uint32_t> tree_mask;
  std::vector<float> q, k, v, sinks, out, lse;
  std::vector<uint16_t> k16, v16;
  std::vector<std::byte> packed;
  ForwardBatch batch;
  AttentionCall call;

  // Keeps K and V as bf16 from here on.
  void store_as_bf16() {
    for (auto [from, to, view] : {std::tuple{&k, &k16, &call.k}, std::tuple{&v, &v16, &call.v}}) {
      for (float value : *from) to->push_back(f32_to_bf16(value));
      view->data = to->data();
      view->format = KvFormat::bf16;
    }
  }

  // Has packed tokens of latent attention in the place of K and V from here on.
  void store_as_packed(KvFormat format) {
    const int stored = kv_stored_dim(format, kPackedTokenDim);
    const int64_t tokens = static_cast<int64_t>(page_table.size()) * kPage;
    packed.resize(tokens * stored);
    std::vector<float> row;
    for (int64_t t = 0; t < tokens; ++t) {
      fill(row, kPackedTokenDim);
      pack_latent_token(format, row.data(), packed.data() + t * stored);
    }
    fill(q, static_cast<size_t>(batch.num_tokens) * kHeads * kPackedTokenDim);
    out.resize(static_cast<size_t>(batch.num_tokens) * kHeads * kPackedLatentDim);
    call.num_kv_heads = 1;
    call.head_dim = kPackedTokenDim;
    call.v_head_dim = kPackedLatentDim;
    call.scale = 0.05f;
    call.q = q.data();
    call.q_token_stride = kHeads * kPackedTokenDim;
    call.out = out.data();
    call.out_token_stride = kHeads * kPackedLatentDim;
    call.k = call.v = {packed.data(), format, int64_t{kPage} * stored, stored, stored};
  }

  Example(const std::vector<std::pair<int, int>>& requests, bool tree) {
    batch.page_size = kPage;
    for (const auto& [q_len, kv_len] : requests) {
      q_indptr.push_back(q_indptr.back() + q_len);
      kv_lens.push_back(kv_len);
      batch.max_q_len = std::max(batch.max_q_len, q_len);
      batch.max_kv_len = std::max(batch.max_kv_len, kv_len);
      for (int i = 0; i < q_len; ++i) {
        positions.push_back(kv_len - q_len + std::min(i, 2));
        // Row i sees the first row, itself, and some of the rows between.
        if (tree) tree_mask.push_back(1u | 1u << i | (random() & ((1u << i) - 1)));
      }
    }
    batch.num_reqs = static_cast<int>(requests.size());
    batch.num_tokens = q_indptr.back();
    batch.page_table_stride = (batch.max_kv_len + kPage - 1) / kPage;
    const int pages = batch.num_reqs * batch.page_table_stride;
    for (int p = 0; p < pages; ++p) page_table.push_back(pages - 1 - p);
    fill(k, static_cast<size_t>(pages) * kPage * kKvHeads * kDim);
    fill(v, k.size());
    fill(q, static_cast<size_t>(batch.num_tokens) * kHeads * kDim);
    fill(sinks, kHeads);
    out.resize(q.size());
    lse.resize(static_cast<size_t>(batch.num_tokens) * kHeads);
    batch.q_indptr = q_indptr;
    batch.kv_lens = kv_lens;
    batch.page_table = page_table;
    batch.positions = positions;
    batch.tree_mask = tree_mask;
    batch.tree_mask_words = tree ? 1 : 0;
    call.num_q_heads = kHeads;
    call.num_kv_heads = kKvHeads;
    call.head_dim = call.v_head_dim = kDim;
    call.scale = 0.2f;
    call.q = q.data();
    call.q_token_stride = call.out_token_stride = kHeads * kDim;
    call.k = {k.data(), KvFormat::f32, kPage * kKvHeads * kDim, kKvHeads * kDim, kDim};
    call.v = call.k;
    call.v.data = v.data();
    call.out = out.data();
    call.lse = lse.data();
  }

 private:
  void fill(std::vector<float>& values, size_t count) {
    values.resize(count);
    for (float& value : values) value = normal(random);
  }

  std::mt19937 random{11};
  std::normal_distribution<float> normal;
};

void run(Example& example, bool decode, const OpenClOptions& options) {
  ThreadTeam team(2);
  BackendContext context;
  context.team = &team;
  const auto backend = create_opencl_attention(context, options);
  const Status status = backend->init_forward_metadata(example.batch);
  ASSERT_TRUE(status.ok()) << status.message();
  const Status ran = decode ? backend->forward_decode(example.batch, example.call)
                            : backend->forward_extend(example.batch, example.call);
  ASSERT_TRUE(ran.ok()) << ran.message();
}

// `options` against the layout for CPUs.
void expect_equal_layouts(Example& example, bool decode, const OpenClOptions& options,
                          float tolerance) {
  if (const Status status = probe_opencl(Probe::thorough); !status.ok()) {
    GTEST_SKIP() << status.message();
  }
  run(example, decode, {.caps = &kCaps});
  const std::vector<float> out = example.out, lse = example.lse;
  run(example, decode, options);
  for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(example.out[i], out[i], tolerance) << i;
  for (size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(example.lse[i], lse[i], tolerance) << i;
}

constexpr OpenClOptions kThreads = {.caps = &kCaps, .threads_as_lanes = true};
constexpr OpenClOptions kMatrix = {.caps = &kCaps, .emulate_matrix = true};
constexpr float kF32Tolerance = 2e-5f;
constexpr float kBf16Tolerance = 0.03f;  // q and probabilities rounded to bf16

TEST(OpenClAttention, ThreadLanesGiveTheSameInPrefill) {
  Example example({{70, 70}, {5, 600}, {1, 33}, {0, 7}}, false);
  example.call.sinks = example.sinks.data();
  example.call.window_left = 90;
  expect_equal_layouts(example, false, kThreads, kF32Tolerance);
}

TEST(OpenClAttention, ThreadLanesGiveTheSameUnderATreeMask) {
  Example example({{9, 70}, {3, 3}, {1, 33}}, true);
  example.call.logit_softcap = 5;
  expect_equal_layouts(example, false, kThreads, kF32Tolerance);
}

// One request of few heads: split over the tokens, then merged.
TEST(OpenClAttention, ThreadLanesGiveTheSameInASplitDecode) {
  Example example({{1, 1700}}, false);
  expect_equal_layouts(example, true, kThreads, kF32Tolerance);
}

TEST(OpenClAttention, MatrixUnitsGiveTheSameInPrefill) {
  Example example({{70, 70}, {5, 300}, {1, 33}}, false);
  example.store_as_bf16();
  example.call.window_left = 60;
  expect_equal_layouts(example, false, kMatrix, kBf16Tolerance);
}

// Matrix units read them by the same code, and their emulation compiles for minutes at these dims.
TEST(OpenClAttention, ThreadLanesReadPackedTokensTheSame) {
  for (const KvFormat format : {KvFormat::fp8_ds_mla, KvFormat::fp4_mla}) {
    SCOPED_TRACE(kv_format_name(format));
    Example example({{3, 70}, {1, 33}}, false);
    example.store_as_packed(format);
    expect_equal_layouts(example, false, kThreads, kF32Tolerance);
  }
}

// A layer that no kernel is built for fails with the reason; the backend goes on.
TEST(OpenClAttention, AFailedForwardIsItsStatusAndTheNextOneRuns) {
  if (const Status status = probe_opencl(Probe::thorough); !status.ok()) GTEST_SKIP() << status.message();
  Example example({{3, 40}}, false);
  ThreadTeam team(2);
  BackendContext context;
  context.team = &team;
  const auto backend = create_opencl_attention(context, kThreads);
  AttentionCall wide = example.call;
  wide.head_dim = wide.v_head_dim = 1 << 20;
  ASSERT_TRUE(backend->init_forward_metadata(example.batch).ok());
  const Status failed = backend->forward_extend(example.batch, wide);
  EXPECT_FALSE(failed.ok());
  EXPECT_TRUE(failed.message().starts_with("tile: ")) << failed.message();
  ASSERT_TRUE(backend->init_forward_metadata(example.batch).ok());
  const Status next = backend->forward_extend(example.batch, example.call);
  EXPECT_TRUE(next.ok()) << next.message();
}

}  // namespace
}  // namespace warpweave::tile
