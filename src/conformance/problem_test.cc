// The truth behind the suite: the reference by hand-made numbers, and that problems are what their
// case lines say. A mistake here would pass every backend that shares it.
#include "conformance/problem.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <tuple>

#include "attention/registry.h"
#include "base/threads.h"
#include "conformance/naive.h"
#include "kv/kv_codec.h"

namespace warpweave::conformance {
namespace {

constexpr KvFormat kAllFormats[] = {KvFormat::f32,      KvFormat::bf16,     KvFormat::f16,
                                    KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::fp4_e2m1};

std::unique_ptr<AttentionBackend> make(const std::string& name) {
  static ThreadTeam team(1);
  auto backend = create_backend(name, {&team, 0, 1});
  EXPECT_TRUE(backend.ok()) << backend.status().message();
  return std::move(backend).value();
}

Case one_case(const std::string& line) { return parse_cases(line, "test").at(0); }

double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    square += b[i] * b[i];
  }
  return std::sqrt(difference / square);
}

// One head of dim 16 in a pool of single-token pages; K is (k, 0, ...), V is (v, 0, ...) in every
// format, with head scale 2 where the format has one. q = (1, 0, ...), scale 1: scores are the k.
struct HandMade {
  std::vector<float> k, v;
  std::vector<uint8_t> k_bytes, v_bytes, k_blocks, v_blocks;
  float head_scale = 2.0f;
  std::vector<float> q, out, lse;
  std::vector<int32_t> pages, q_indptr, kv_lens, positions, slots;
  ForwardBatch batch;
  AttentionCall call;

  HandMade(KvFormat format, std::vector<float> keys, std::vector<float> values, int q_len)
      : k(std::move(keys)), v(std::move(values)) {
    const int tokens = static_cast<int>(k.size());
    for (auto [from, bytes, blocks, view] :
         {std::tuple(&k, &k_bytes, &k_blocks, &call.k), {&v, &v_bytes, &v_blocks, &call.v}}) {
      bytes->assign(tokens * 64, 0);
      blocks->assign(tokens, 0x38);  // e4m3 1
      view->data = bytes->data();
      view->format = format;
      view->page_stride = view->token_stride = view->head_stride = 16;
      if (format == KvFormat::fp4_e2m1) view->block_scales = blocks->data();
      if (kv_format_is_scaled(format)) view->head_scales = &head_scale;
      for (int t = 0; t < tokens; ++t) write(format, *bytes, t, (*from)[t]);
    }
    for (int t = 0; t < tokens; ++t) pages.push_back(t);
    q.assign(q_len * 16, 0.0f);
    for (int i = 0; i < q_len; ++i) q[i * 16] = 1;
    out.assign(q_len * 16, -1.0f);
    lse.assign(q_len, -1.0f);
    q_indptr = {0, q_len};
    kv_lens = {tokens};
    batch.num_reqs = 1;
    batch.num_tokens = batch.max_q_len = q_len;
    batch.max_kv_len = tokens;
    batch.q_indptr = q_indptr;
    batch.kv_lens = kv_lens;
    batch.page_table = pages;
    batch.page_table_stride = tokens;
    call.num_q_heads = call.num_kv_heads = 1;
    call.head_dim = call.v_head_dim = 16;
    call.q = q.data();
    call.q_token_stride = call.out_token_stride = 16;
    call.out = out.data();
    call.lse = lse.data();
  }

  // The bits of 0, 1, 2, 4 and 6 as the format documents write them.
  static void write(KvFormat format, std::vector<uint8_t>& bytes, int token, float value) {
    const auto put16 = [&](uint16_t bits) {
      bytes[token * 32] = static_cast<uint8_t>(bits);
      bytes[token * 32 + 1] = static_cast<uint8_t>(bits >> 8);
    };
    const int which = value == 0 ? 0 : value == 1 ? 1 : value == 2 ? 2 : value == 4 ? 3 : 4;
    const int scaled = which - 1;  // stored is half the value: 0.5, 1, 2, 3
    switch (format) {
      case KvFormat::f32: std::memcpy(&bytes[token * 64], &value, 4); break;
      case KvFormat::bf16: put16((const uint16_t[]){0, 0x3f80, 0x4000, 0x4080, 0x40c0}[which]); break;
      case KvFormat::f16: put16((const uint16_t[]){0, 0x3c00, 0x4000, 0x4400, 0x4600}[which]); break;
      case KvFormat::fp8_e4m3: bytes[token * 16] = (const uint8_t[]){0, 0x30, 0x38, 0x40, 0x44}[scaled + 1]; break;
      case KvFormat::fp8_e5m2: bytes[token * 16] = (const uint8_t[]){0, 0x38, 0x3c, 0x40, 0x42}[scaled + 1]; break;
      case KvFormat::fp4_e2m1: bytes[token * 8] = (const uint8_t[]){0, 1, 2, 4, 5}[scaled + 1]; break;
      case KvFormat::fp8_ds_mla:
      case KvFormat::fp4_mla: FAIL() << "rows of latent attention, not of K and V";
    }
  }
};

TEST(Reference, ReadsEveryFormatAsDocumented) {
  const auto reference = make("reference");
  for (const KvFormat format : kAllFormats) {
    HandMade hand(format, {0, 2, 1}, {1, 4, 6}, 1);
    ASSERT_TRUE(reference->init_forward_metadata(hand.batch).ok());
    ASSERT_TRUE(reference->forward_decode(hand.batch, hand.call).ok());
    const double a = 1, b = std::exp(2), c = std::exp(1);
    EXPECT_NEAR(hand.out[0], (a * 1 + b * 4 + c * 6) / (a + b + c), 1e-6) << kv_format_name(format);
    EXPECT_NEAR(hand.lse[0], std::log(a + b + c), 1e-6);
    EXPECT_EQ(hand.out[1], 0.0f);
  }
}

// A prefix of two tokens and the tree 0 <- 1, 0 <- 2: node 2 does not see node 1.
TEST(Reference, FollowsTheTreeMaskAndDepthsInTheWindow) {
  const auto reference = make("reference");
  HandMade hand(KvFormat::f32, {1, 1, 1, 1, 1}, {1, 2, 4, 6, 0}, 3);
  const std::vector<uint32_t> mask = {0b001, 0xffff'fff0u | 0b011, 0b101};
  hand.positions = {2, 3, 3};
  hand.batch.positions = hand.positions;
  hand.batch.tree_mask = mask;
  hand.batch.tree_mask_words = 1;
  const auto row = [&](int i) { return hand.out[i * 16]; };
  ASSERT_TRUE(reference->forward_extend(hand.batch, hand.call).ok());
  EXPECT_NEAR(row(0), (1 + 2 + 4) / 3.0, 1e-6);
  EXPECT_NEAR(row(1), (1 + 2 + 4 + 6) / 4.0, 1e-6);
  EXPECT_NEAR(row(2), (1 + 2 + 4 + 0) / 4.0, 1e-6);
  hand.call.window_left = 2;  // positions 2 and 3: prefix tokens from 0, and from 1
  ASSERT_TRUE(reference->forward_extend(hand.batch, hand.call).ok());
  EXPECT_NEAR(row(0), (1 + 2 + 4) / 3.0, 1e-6);
  EXPECT_NEAR(row(1), (2 + 4 + 6) / 3.0, 1e-6);
  EXPECT_NEAR(row(2), (2 + 4 + 0) / 3.0, 1e-6);
  hand.call.window_left = 0;  // the mask alone decides within the tree
  ASSERT_TRUE(reference->forward_extend(hand.batch, hand.call).ok());
  EXPECT_NEAR(row(1), (4 + 6) / 2.0, 1e-6);
}

TEST(Reference, SoftcapAndSinks) {
  const auto reference = make("reference");
  HandMade hand(KvFormat::f32, {2, 4}, {1, 6}, 1);
  const float sink = 1.5f;
  hand.call.sinks = &sink;
  hand.call.logit_softcap = 3;
  ASSERT_TRUE(reference->forward_decode(hand.batch, hand.call).ok());
  const double a = std::exp(3 * std::tanh(2 / 3.0)), b = std::exp(3 * std::tanh(4 / 3.0)), s = std::exp(1.5);
  EXPECT_NEAR(hand.out[0], (a * 1 + b * 6) / (a + b + s), 1e-6);
  EXPECT_NEAR(hand.lse[0], std::log(a + b + s), 1e-6);
}

TEST(Naive, StaysNearTheReferenceInEveryFormat) {
  const auto reference = make("reference");
  for (const char* line :
       {"a reqs=20:70,1:130 heads=4/2 d=64", "b reqs=20:70,9:9 heads=4/2 d=64 tree=random window=20",
        "c reqs=7:50 heads=4/2 d=64 sinks=1 softcap=5 gap=3", "d reqs=9:5,1:20 heads=2/1 d=64 causal=0"}) {
    for (const KvFormat format : kAllFormats) {
      const Problem problem(one_case(line), format, 11, 16);
      const Output want = problem.run(*reference), naive = naive_attention(problem);
      ASSERT_TRUE(want.error.empty()) << want.error;
      EXPECT_LT(relative_difference(naive.out, want.out), format == KvFormat::f32 ? 1e-6 : 0.01)
          << line << " " << kv_format_name(format);
    }
  }
}

TEST(Problem, ReportsTheQuantisationErrorApart) {
  const Case c = one_case("a reqs=1:200 heads=4/2 d=64");
  const double lowest[] = {0, 1e-3, 1e-4, 0.02, 0.04, 0.07}, highest[] = {0, 3e-3, 4e-4, 0.03, 0.06, 0.12};
  for (size_t i = 0; i < std::size(kAllFormats); ++i) {
    const double error = Problem(c, kAllFormats[i], 3, 16).quantisation_error();
    EXPECT_GE(error, lowest[i]) << kv_format_name(kAllFormats[i]);
    EXPECT_LE(error, highest[i]) << kv_format_name(kAllFormats[i]);
  }
}

// Reads the pool through the page table of the last request: first what is stored, then the tail.
TEST(Problem, PoisonsStaleTailsInEveryFormat) {
  for (const KvFormat format : kAllFormats) {
    const Problem problem(one_case("a reqs=1:37 heads=2/2 d=32 gap=3"), format, 5, 16);
    const Forward forward = problem.prepare(problem.all(), true);
    for (const KvPoolView& view : {forward.call.k, forward.call.v}) {
      std::vector<float> values(32);
      for (int kv : {36, 37, 47}) {
        const int64_t page = forward.page_table[kv / 16];
        kv_decode_run(view, 1, page * view.page_stride + kv % 16 * view.token_stride + view.head_stride, 32,
                      values.data());
        for (const float value : values) {
          EXPECT_EQ(std::isnan(value), kv >= 37) << kv_format_name(format) << " token " << kv;
        }
      }
    }
  }
}

// A device copies each pool by its own size: the one of narrower heads ends earlier.
TEST(Problem, SaysHowManyBytesEachPoolHas) {
  for (KvFormat format : kAllFormats) {
    const Problem problem(one_case("c reqs=65:66,1:70 heads=2/1 d=192 dv=128"), format, 1, 16);
    const Forward forward = problem.prepare(problem.all(), false);
    EXPECT_GT(forward.v_bytes.data, 0u);
    EXPECT_GT(forward.k_bytes.data, forward.v_bytes.data);
    EXPECT_EQ(forward.v_bytes.block_scales > 0, format == KvFormat::fp4_e2m1);
    const auto* last = static_cast<const char*>(forward.call.v.data) + forward.v_bytes.data - 1;
    EXPECT_EQ(*last, *static_cast<const volatile char*>(last));  // readable to the end
  }
}

TEST(Problem, SharedPrefixesShareFullPagesAndValues) {
  const Problem problem(one_case("a reqs=1:100,5:60,1:20 heads=1/1 d=16 shared=40"), KvFormat::f32, 5, 16);
  const Forward forward = problem.prepare(problem.all(), false);
  const int stride = forward.batch.page_table_stride;
  for (int page = 0; page < 3; ++page) {
    EXPECT_EQ(forward.page_table[page] == forward.page_table[stride + page], page < 2);
    EXPECT_EQ(forward.page_table[page] == forward.page_table[2 * stride + page], page < 1);
  }
  std::vector<float> a(16), b(16);
  for (const int kv : {0, 33, 39, 40}) {
    problem.read_k(0, kv, 0, a.data());
    problem.read_k(1, kv, 0, b.data());
    EXPECT_EQ(a == b, kv < 40) << kv;
  }
}

TEST(Problem, RandomTreesHaveAncestorsAndDepths) {
  const Problem problem(one_case("a reqs=40:100 heads=1/1 d=16 tree=random"), KvFormat::f32, 5, 16);
  const Forward forward = problem.prepare(problem.all(), false);
  EXPECT_EQ(forward.batch.mode, ForwardMode::target_verify);
  EXPECT_GE(forward.batch.tree_mask_words, 2);
  int deepest = 0, roots = 0;
  for (int row = 0; row < 40; ++row) {
    int ancestors = 0;
    for (int other = 0; other < 40; ++other) {
      const bool bit = forward.tree_mask[row * forward.batch.tree_mask_words + other / 32] >> other % 32 & 1;
      EXPECT_EQ(bit, problem.sees(0, row, 60 + other));
      EXPECT_TRUE(!bit || other <= row);
      ancestors += bit;
    }
    EXPECT_EQ(forward.positions[row], 60 + ancestors - 1) << "depth is the number of ancestors";
    deepest = std::max(deepest, ancestors);
    roots += ancestors == 1;
  }
  EXPECT_GT(deepest, 2);
  EXPECT_GT(roots, 0);
}

// What every backend refuses before it plans.
TEST(BatchCheck, RefusesBatchesThatCannotBe) {
  for (const KnownBackend& known : known_backends()) {
    if (!known.built || !known.caps->archs.has(DeviceArch::cpu_x86_64)) continue;
    if (known.probe && !known.probe(Probe::thorough).ok()) continue;  // no driver here
    SCOPED_TRACE(known.caps->name);
    const auto backend = make(std::string(known.caps->name));
    Forward forward = Problem(one_case("a reqs=3:20,2:9 heads=2/1 d=64"), KvFormat::f32, 5, 16)
                          .prepare({{0, 0, 3}, {1, 0, 2}}, false);
    EXPECT_TRUE(backend->init_forward_metadata(forward.batch).ok());
    const std::vector<int32_t> short_kv = {20, 1};
    forward.batch.kv_lens = short_kv;
    EXPECT_EQ(backend->init_forward_metadata(forward.batch).code(), StatusCode::invalid_argument)
        << "2 rows, 1 token";
    const std::vector<int32_t> long_kv = {20, 500};
    forward.batch.kv_lens = long_kv;
    EXPECT_EQ(backend->init_forward_metadata(forward.batch).code(), StatusCode::invalid_argument)
        << "a page table that is too short";

    if (!known.caps->custom_mask) continue;
    const Problem trees(one_case("a reqs=33:60 heads=2/1 d=64 tree=chain"), KvFormat::f32, 5, 16);
    Forward tree = trees.prepare(trees.all(), false);
    EXPECT_TRUE(backend->init_forward_metadata(tree.batch).ok());
    tree.batch.tree_mask_words = 1;
    EXPECT_EQ(backend->init_forward_metadata(tree.batch).code(), StatusCode::invalid_argument)
        << "33 nodes, 32 bits";
    tree = trees.prepare(trees.all(), false);
    tree.tree_mask[5 * tree.batch.tree_mask_words] &= ~(1u << 5);
    EXPECT_EQ(backend->init_forward_metadata(tree.batch).code(), StatusCode::invalid_argument)
        << "a row that does not see itself";
  }
}

}  // namespace
}  // namespace warpweave::conformance
