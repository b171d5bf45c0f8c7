// The KV write against the scalar definition of the formats (kv/kv_codec.h): the rounding kernels of
// every tier, bit for bit, then norm_rope_write_kv in every format.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float8.h"
#include "kv/kv_cache.h"
#include "kv/kv_codec.h"
#include "ops/elementwise_testing.h"
#include "ops/rope.h"

namespace warpweave {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

constexpr KvFormat kAllFormats[] = {KvFormat::f32,      KvFormat::bf16,     KvFormat::f16,
                                    KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::fp4_e2m1};

INSTANTIATE_TEST_SUITE_P(All, EachTier, each_tier(), tier_of_test);

// Values, their neighbours and the middles between neighbours of a format; and what lies outside.
std::vector<float> edge_values(const float (&decoded)[256]) {
  std::vector<float> out = {0.0f, -0.0f, kInf, -kInf, kNaN, -kNaN, 1e-30f, -1e-40f, 3e38f, -7e4f};
  for (int code = 0; code < 255; ++code) {
    const float middle = decoded[code] + (decoded[code + 1] - decoded[code]) / 2;
    for (const float center : {decoded[code], middle}) {
      out.insert(out.end(), {center, std::nextafter(center, kInf), std::nextafter(center, -kInf)});
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 4000; ++i) out.push_back(std::ldexp(1.0f + random() * 0x1p-32f, int(random() % 40) - 24));
  return out;
}

TEST_P(EachTier, RoundsToFp8LikeTheScalarConversions) {
  for (const bool e4m3 : {true, false}) {
    const std::vector<float> x = edge_values((e4m3 ? kE4m3Table : kE5m2Table).values);
    for (const float inverse : {1.0f, 0.25f, 1.7f}) {
      for (const size_t begin : {0, 3}) {  // 3: the last run is not full
        const size_t n = x.size() - begin;
        std::vector<uint8_t> out(n + 1, 0xa5);
        (e4m3 ? kernels.f32_to_e4m3 : kernels.f32_to_e5m2)(x.data() + begin, inverse, n, out.data());
        for (size_t i = 0; i < n; ++i) {
          const float value = x[begin + i] * inverse;
          ASSERT_EQ(out[i], e4m3 ? f32_to_e4m3(value) : f32_to_e5m2(value)) << value;
        }
        ASSERT_EQ(out[n], 0xa5);
      }
    }
  }
}

TEST_P(EachTier, RoundsToFp4LikeTheScalarConversions) {
  constexpr int kBlocks = 4000, kCount = 16 * kBlocks;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(kCount);
  for (int i = 0; i < kCount; ++i) {
    x[i] = std::ldexp(normal(random), i / 16 % 40 - 20);
    if (i / 16 % 7 == 0) x[i] = std::ldexp(float(int(random() % 49) - 24) / 4, i / 16 % 5);  // ties
  }
  std::fill_n(x.begin(), 16, 0.0f);
  x[40] = kInf;
  x[90] = -kNaN;
  for (const float scale : {1.0f, 0.5f, 3.3f}) {
    std::vector<uint8_t> bytes(kCount / 2), scales(kBlocks), want_bytes(bytes), want_scales(scales);
    kernels.f32_to_fp4(x.data(), scale, kCount, bytes.data(), scales.data());
    KvPoolView view;
    view.data = want_bytes.data();
    view.format = KvFormat::fp4_e2m1;
    view.block_scales = want_scales.data();
    view.head_scales = &scale;
    kv_encode_run(view, 0, 0, kCount, x.data());
    ASSERT_EQ(scales, want_scales);
    for (int i = 0; i < kCount / 2; ++i) {
      if (i / 8 == 90 / 16) continue;  // the NaN block
      ASSERT_EQ(bytes[i], want_bytes[i]) << x[2 * i] << " " << x[2 * i + 1];
    }
    EXPECT_EQ(scales[90 / 16], 0x7f);
  }
}

// K after its rotation, and V, as the codec writes them; nothing else in the pool changes.
TEST(KvWrite, WritesEveryFormatAsDefined) {
  constexpr int kRows = 5, kHeads = 3, kKDim = 48, kVDim = 32, kPage = 4;
  constexpr int kStride = kHeads * (2 * kKDim + kVDim);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> qkv(kRows * kStride);
  for (float& value : qkv) value = normal(random);
  const RopeTable rope = RopeTable::make({1, 0.3, 0.1, 0.03}, 32);
  const std::vector<int32_t> positions = {7, 0, 3, 30, 2}, slots = {5, -1, 0, 11, 6};
  ThreadTeam team(2);
  for (const KvFormat format : kAllFormats) {
    SCOPED_TRACE(kv_format_name(format));
    const KvCacheShape shape = {.num_layers = 1, .num_pages = 3, .page_size = kPage,
                                .num_kv_heads = kHeads, .k_head_dim = kKDim, .v_head_dim = kVDim,
                                .format = format};
    const KvHeadScales scales = {{1.0f, 0.5f, 0.01f}, {0.7f, 2.0f, 0.003f}};
    Result<KvCache> written = KvCache::create(shape, scales), wanted = KvCache::create(shape, scales);
    ASSERT_TRUE(written.ok() && wanted.ok());
    std::vector<float> rows = qkv;
    QkvRowsCall call;
    call.rows = kRows;
    call.num_q_heads = call.num_kv_heads = kHeads;
    call.head_dim = kKDim;
    call.v_head_dim = kVDim;
    call.q = rows.data();
    call.k = call.q + kHeads * kKDim;
    call.v = call.k + kHeads * kKDim;
    call.q_stride = call.k_stride = call.v_stride = kStride;
    call.rope = &rope;
    call.positions = positions.data();
    call.kv_slots = slots.data();
    call.page_size = kPage;
    call.k_out = written->k(0);
    call.v_out = written->v(0);
    norm_rope_write_kv(call, team);
    for (int r = 0; r < kRows; ++r) {
      if (slots[r] < 0) continue;
      for (int h = 0; h < kHeads; ++h) {
        for (const bool is_v : {false, true}) {
          const KvPoolView view = is_v ? wanted->v(0) : wanted->k(0);
          const int dim = is_v ? kVDim : kKDim;
          const float* from = (is_v ? call.v : call.k) + r * kStride + h * dim;
          kv_encode_run(view, h, slots[r] / kPage * view.page_stride +
                                     slots[r] % kPage * view.token_stride + h * view.head_stride,
                        dim, from);
        }
      }
    }
    // Both caches began as zeros: equal bytes everywhere, so no write outside the slots either.
    EXPECT_EQ(std::memcmp(written->k(0).data, wanted->k(0).data, written->size_bytes()), 0);
  }
}

}  // namespace
}  // namespace warpweave
