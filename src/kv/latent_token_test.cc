#include "kv/latent_token.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "kv/kv_cache.h"
#include "kv/kv_codec.h"

namespace warpweave {
namespace {

std::vector<float> random_token(unsigned seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> out(kPackedTokenDim);
  for (float& x : out) x = normal(random);
  return out;
}

TEST(LatentToken, ScalesAreTheSmallestPowersOfTwoThatHold) {
  EXPECT_EQ(ds_mla_scale(448), 1);
  EXPECT_EQ(ds_mla_scale(448.001f), 2);
  EXPECT_EQ(ds_mla_scale(224), 0.5f);
  EXPECT_EQ(ds_mla_scale(-1), 1.0f / 256) << "1.75 * 2^8 / 256 is no less than 1";
  EXPECT_EQ(ds_mla_scale(1e9f), 128) << "the largest that kernels take";
  EXPECT_EQ(ds_mla_scale(0), std::ldexp(1.0f, -32));
  for (float largest = 1e-6f; largest < 5e4f; largest *= 1.37f) {
    const float scale = ds_mla_scale(largest);
    EXPECT_GE(448 * scale, largest);
    EXPECT_LT(448 * scale / 2, largest);
  }
}

class PackedToken : public testing::TestWithParam<KvFormat> {
 protected:
  // The token's bytes, with one before and after that must stay.
  std::vector<std::byte> packed(const std::vector<float>& values) {
    std::vector<std::byte> out(kv_stored_dim(GetParam(), kPackedTokenDim) + 2, std::byte{0xee});
    pack_latent_token(GetParam(), values.data(), out.data() + 1);
    EXPECT_EQ(out.front(), std::byte{0xee});
    EXPECT_EQ(out.back(), std::byte{0xee});
    return {out.begin() + 1, out.end() - 1};
  }
  std::vector<float> unpacked(const std::vector<std::byte>& token, int count = kPackedTokenDim) {
    std::vector<uint16_t> bits(count);
    unpack_latent_token(GetParam(), token.data(), count, bits.data());
    std::vector<float> out(count);
    for (int i = 0; i < count; ++i) out[i] = bf16_to_f32(bits[i]);
    return out;
  }
};

TEST_P(PackedToken, KeepsValuesToTheFormatsRounding) {
  const bool fp8 = GetParam() == KvFormat::fp8_ds_mla;
  // Scales of fp4 are e4m3 and reach less far.
  for (const float spread : fp8 ? std::vector<float>{1, 1e-3f, 3000} : std::vector<float>{1, 0.2f, 100}) {
    std::vector<float> values = random_token(1, spread);
    for (int i = 128; i < 256; ++i) values[i] *= fp8 ? 1e-3f : 0.25f;  // each scale is its block's own
    const std::vector<float> got = unpacked(packed(values));
    double error = 0, square = 0;
    for (int i = 0; i < kPackedLatentDim; ++i) {
      error += std::pow(values[i] - got[i], 2);
      square += std::pow(values[i], 2);
    }
    EXPECT_LT(std::sqrt(error / square), fp8 ? 0.03 : 0.12) << spread;
    error = square = 0;
    for (int i = 128; i < 256; ++i) {
      error += std::pow(values[i] - got[i], 2);
      square += std::pow(values[i], 2);
    }
    EXPECT_LT(std::sqrt(error / square), fp8 ? 0.03 : 0.12) << "the small block, " << spread;
    for (int i = kPackedLatentDim; i < kPackedTokenDim; ++i) {
      EXPECT_EQ(got[i], bf16_to_f32(f32_to_bf16(values[i]))) << "the rotated part is bf16";
    }
  }
}

// The codes of a block end where the scales begin.
TEST_P(PackedToken, ScalesStandAsTheyWereMade) {
  if (GetParam() != KvFormat::fp8_ds_mla) GTEST_SKIP() << "its scales are bytes";
  std::vector<float> values = random_token(5, 1);
  for (int i = kPackedLatentDim; i < kPackedTokenDim; ++i) values[i] = 1;
  const std::vector<std::byte> token = packed(values);
  for (int block = 0; block < kPackedLatentDim / kDsMlaScaleDim; ++block) {
    float scale = 0, largest = 0;
    std::memcpy(&scale, token.data() + kDsMlaScaleAt + block * sizeof scale, sizeof scale);
    for (int i = 0; i < kDsMlaScaleDim; ++i) {
      largest = std::max(largest, std::fabs(values[block * kDsMlaScaleDim + i]));
    }
    EXPECT_EQ(scale, ds_mla_scale(largest)) << block;
  }
}

TEST_P(PackedToken, ReadsTheFirstValuesAlone) {
  const std::vector<std::byte> token = packed(random_token(2, 1));
  const std::vector<float> all = unpacked(token);
  for (const int count : {16, 128, 144, 512, 560}) {
    const std::vector<float> some = unpacked(token, count);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin())) << count;
  }
}

TEST_P(PackedToken, PacksWhatItUnpackedAsItWas) {
  const std::vector<float> once = unpacked(packed(random_token(3, 2)));
  EXPECT_EQ(unpacked(packed(once)), once);
}

TEST_P(PackedToken, ANaNStaysOne) {
  std::vector<float> values = random_token(4, 1);
  values[5] = values[kPackedTokenDim - 1] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> got = unpacked(packed(values));
  EXPECT_TRUE(std::isnan(got[5]));
  EXPECT_TRUE(std::isnan(got.back()));
  EXPECT_FALSE(std::isnan(got[300])) << "not beyond its block";
}

// Through the pool: pages, the codec's runs, copies of tokens.
TEST_P(PackedToken, StandsInThePool) {
  KvCacheShape shape = {.num_layers = 2,
                        .num_pages = 3,
                        .page_size = 4,
                        .num_kv_heads = 1,
                        .k_head_dim = kPackedTokenDim,
                        .v_head_dim = 0,
                        .format = GetParam()};
  EXPECT_EQ(KvCache::page_bytes(shape), size_t{2} * 4 * kv_stored_dim(GetParam(), kPackedTokenDim));
  auto cache = KvCache::create(shape);
  ASSERT_TRUE(cache.ok()) << cache.status().message();
  const KvPoolView view = cache->k(1);
  const std::vector<float> values = random_token(5, 1);
  kv_encode_run(view, 0, 2 * view.page_stride + 3 * view.token_stride, kPackedTokenDim, values.data());
  cache->copy_tokens(2 * 4 + 3, 1, 1);
  std::vector<float> got(kPackedTokenDim);
  kv_decode_run(view, 0, view.token_stride, kPackedTokenDim, got.data());
  EXPECT_EQ(got, unpacked(packed(values)));
  shape.v_head_dim = 512;
  EXPECT_FALSE(KvCache::create(shape).ok()) << "latent attention keeps no V";
}

INSTANTIATE_TEST_SUITE_P(Formats, PackedToken, testing::Values(KvFormat::fp8_ds_mla, KvFormat::fp4_mla),
                         [](const auto& info) { return std::string(kv_format_name(info.param)); });

}  // namespace
}  // namespace warpweave
