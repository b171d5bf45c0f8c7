#include "kv/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/huge_pages.h"
#include "base/resident_memory.h"
#include "kv/kv_codec.h"

namespace warpweave {
namespace {

constexpr KvFormat kAllFormats[] = {KvFormat::f32,      KvFormat::bf16,     KvFormat::f16,
                                    KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::fp4_e2m1};

KvCacheShape small_shape(KvFormat format = KvFormat::f32) {
  KvCacheShape shape;
  shape.num_layers = 3;
  shape.num_pages = 7;
  shape.page_size = 5;
  shape.num_kv_heads = 2;
  shape.k_head_dim = 48;
  shape.v_head_dim = 32;
  shape.format = format;
  return shape;
}

KvHeadScales some_scales(const KvCacheShape& shape) {
  KvHeadScales scales;
  for (int i = 0; i < shape.num_layers * shape.num_kv_heads; ++i) {
    scales.k.push_back(0.5f + 0.25f * i);
    scales.v.push_back(2.0f - 0.125f * i);
  }
  return scales;
}

size_t resident_bytes() { return static_cast<size_t>(resident_memory().bytes); }

int64_t index_of(const KvCache& cache, const KvPoolView& view, int slot, int head) {
  const int page_size = cache.shape().page_size;
  return slot / page_size * view.page_stride + slot % page_size * view.token_stride +
         head * view.head_stride;
}

using Values = std::vector<float>;

Values read(const KvCache& cache, int layer, bool is_v, int slot, int head) {
  const KvPoolView view = is_v ? cache.v(layer) : cache.k(layer);
  Values out(is_v ? cache.shape().v_head_dim : cache.shape().k_head_dim);
  kv_decode_run(view, head, index_of(cache, view, slot, head), static_cast<int>(out.size()), out.data());
  return out;
}

struct Place {
  int layer;
  bool is_v;
  int slot, head;
};

void write(KvCache& cache, const Place& at, const Values& values) {
  const KvPoolView view = at.is_v ? cache.v(at.layer) : cache.k(at.layer);
  kv_encode_run(view, at.head, index_of(cache, view, at.slot, at.head), static_cast<int>(values.size()),
                values.data());
}

// Everything the cache holds, in one order.
std::vector<Values> snapshot(const KvCache& cache) {
  std::vector<Values> all;
  const KvCacheShape& shape = cache.shape();
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int slot = 0; slot < shape.num_pages * shape.page_size; ++slot) {
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        for (const bool is_v : {false, true}) all.push_back(read(cache, layer, is_v, slot, head));
      }
    }
  }
  return all;
}

// Random values in every slot, written through the views; returns what was written.
std::vector<Values> fill(KvCache& cache) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<Values> all;
  const KvCacheShape& shape = cache.shape();
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int slot = 0; slot < shape.num_pages * shape.page_size; ++slot) {
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        for (const bool is_v : {false, true}) {
          Values& values = all.emplace_back(is_v ? shape.v_head_dim : shape.k_head_dim);
          for (float& value : values) value = normal(random);
          write(cache, {layer, is_v, slot, head}, values);
        }
      }
    }
  }
  return all;
}

class EachFormat : public testing::TestWithParam<KvFormat> {};
INSTANTIATE_TEST_SUITE_P(All, EachFormat, testing::ValuesIn(kAllFormats), [](const auto& info) {
  return std::string(kv_format_name(info.param));
});

// Were two slots, heads, sides or block scales to overlap, the later write would change the earlier.
TEST_P(EachFormat, SlotsAreDistinct) {
  const KvCacheShape shape = small_shape(GetParam());
  Result<KvCache> cache = KvCache::create(shape, some_scales(shape));
  ASSERT_TRUE(cache.ok()) << cache.status().message();
  const std::vector<Values> written = fill(*cache), stored = snapshot(*cache);
  ASSERT_EQ(stored.size(), written.size());
  // Half a step of the format, relative to the value or to the block's largest one.
  const double step = GetParam() == KvFormat::f32        ? 0
                      : GetParam() == KvFormat::bf16     ? 0x1p-8
                      : GetParam() == KvFormat::f16      ? 0x1p-11
                      : GetParam() == KvFormat::fp8_e4m3 ? 0x1p-4
                      : GetParam() == KvFormat::fp8_e5m2 ? 0x1p-3
                                                         : 0.25;
  for (size_t i = 0; i < stored.size(); ++i) {
    for (size_t j = 0; j < stored[i].size(); ++j) {
      float top = std::fabs(written[i][j]);
      if (GetParam() == KvFormat::fp4_e2m1) {
        for (size_t b = j / 16 * 16; b < j / 16 * 16 + 16; ++b) top = std::max(top, std::fabs(written[i][b]));
      }
      ASSERT_NEAR(stored[i][j], written[i][j], step * top + 0.004 * (step > 0)) << i << " " << j;
    }
  }
}

TEST_P(EachFormat, CopiesTokensInAllLayersAndNothingElse) {
  const KvCacheShape shape = small_shape(GetParam());
  Result<KvCache> cache = KvCache::create(shape, some_scales(shape));
  ASSERT_TRUE(cache.ok());
  fill(*cache);
  const std::vector<Values> before = snapshot(*cache);
  cache->copy_tokens(1 * shape.page_size, 4 * shape.page_size, 3);
  const std::vector<Values> after = snapshot(*cache);
  const int runs = 2 * shape.num_kv_heads;  // snapshot entries of one slot
  const int slots = shape.num_pages * shape.page_size;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int slot = 0; slot < slots; ++slot) {
      const int from = slot >= 20 && slot < 23 ? slot - 15 : slot;
      for (int run = 0; run < runs; ++run) {
        ASSERT_EQ(after[(layer * slots + slot) * runs + run], before[(layer * slots + from) * runs + run])
            << "layer " << layer << " slot " << slot;
      }
    }
  }
}

TEST_P(EachFormat, CountsItsBytes) {
  KvCacheShape shape = small_shape(GetParam());
  const size_t elements = 3 * 2 * (48 + 32);
  const size_t block_scales = GetParam() == KvFormat::fp4_e2m1 ? elements / 16 : 0;
  const size_t token_bytes = elements * kv_format_bits(GetParam()) / 8 + block_scales;
  EXPECT_EQ(KvCache::page_bytes(shape), 5 * token_bytes);
  shape.num_pages = 1024;
  Result<KvCache> cache = KvCache::create(shape);
  ASSERT_TRUE(cache.ok());
  const size_t tokens = 1024 * 5, padding = 3 * 4 * 64;
  EXPECT_GE(cache->size_bytes(), tokens * token_bytes);
  EXPECT_LE(cache->size_bytes(), tokens * token_bytes + padding);
}

TEST_P(EachFormat, ShowsScalesInTheViewsOfScaledFormatsAlone) {
  const KvCacheShape shape = small_shape(GetParam());
  const KvHeadScales scales = some_scales(shape);
  Result<KvCache> cache = KvCache::create(shape, scales);
  ASSERT_TRUE(cache.ok());
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const KvPoolView k = cache->k(layer), v = cache->v(layer);
    EXPECT_EQ(k.block_scales != nullptr, GetParam() == KvFormat::fp4_e2m1);
    EXPECT_EQ(v.block_scales != nullptr, GetParam() == KvFormat::fp4_e2m1);
    EXPECT_EQ(k.head_scales != nullptr, kv_format_is_scaled(GetParam()));
    for (int head = 0; k.head_scales != nullptr && head < shape.num_kv_heads; ++head) {
      EXPECT_EQ(k.head_scales[head], scales.k[layer * shape.num_kv_heads + head]);
      EXPECT_EQ(v.head_scales[head], scales.v[layer * shape.num_kv_heads + head]);
    }
  }
  Result<KvCache> plain = KvCache::create(shape);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->k(0).head_scales, nullptr);
}

TEST(KvCache, CommitsMemoryOnlyWhenWritten) {
  KvCacheShape shape = small_shape();
  shape.num_layers = 2;
  shape.page_size = 16;
  shape.num_kv_heads = 8;
  shape.k_head_dim = shape.v_head_dim = 128;
  shape.num_pages = 16384;
  const size_t before = resident_bytes();
  Result<KvCache> cache = KvCache::create(shape);
  ASSERT_TRUE(cache.ok()) << cache.status().message();
  EXPECT_GE(cache->size_bytes(), size_t{4} << 30);
  EXPECT_LT(resident_bytes(), before + (64 << 20));
}

// So that few tokens touch one huge page of each.
TEST(KvCache, KAndVOfLargeLayersBeginAtHugePages) {
  KvCacheShape shape = small_shape();
  const auto offset = [](const KvPoolView& view) { return reinterpret_cast<uintptr_t>(view.data) % kHugePageBytes; };
  for (const bool large : {true, false}) {
    shape.num_pages = large ? 50'000 : 1'000;
    auto cache = KvCache::create(shape);
    ASSERT_TRUE(cache.ok());
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      EXPECT_EQ(offset(cache->k(layer)) == 0 && offset(cache->v(layer)) == 0, large) << layer;
    }
    EXPECT_LT(cache->size_bytes(), KvCache::page_bytes(shape) * shape.num_pages + 6 * kHugePageBytes);
  }
}

TEST(KvCache, MovesWithoutFreeing) {
  const KvCacheShape shape = small_shape(KvFormat::fp8_e4m3);
  Result<KvCache> created = KvCache::create(shape, some_scales(shape));
  ASSERT_TRUE(created.ok());
  KvCache first = std::move(created).value();
  write(first, {1, false, 3, 0}, Values(48, 1.0f));
  KvCache second = std::move(first);
  EXPECT_EQ(read(second, 1, false, 3, 0), Values(48, 1.0f));
}

TEST(KvCache, RefusesShapesThatCannotBe) {
  KvCacheShape shape = small_shape(KvFormat::fp4_e2m1);
  shape.v_head_dim = 40;
  const Status status = KvCache::create(shape).status();
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.field(), "--kv-cache-dtype");
  EXPECT_NE(status.message().find("40"), std::string::npos) << status.message();
  shape.format = KvFormat::fp8_e4m3;
  EXPECT_TRUE(KvCache::create(shape).ok());
  shape = small_shape();
  shape.num_pages = 0;
  EXPECT_EQ(KvCache::create(shape).status().code(), StatusCode::invalid_argument);
  shape = small_shape();
  shape.num_pages = shape.page_size = std::numeric_limits<int>::max();
  EXPECT_EQ(KvCache::create(shape).status().code(), StatusCode::invalid_argument);
}

TEST(KvCache, RefusesScalesThatCannotBe) {
  const KvCacheShape shape = small_shape(KvFormat::fp8_e5m2);
  KvHeadScales scales = some_scales(shape);
  scales.v.pop_back();
  EXPECT_EQ(KvCache::create(shape, scales).status().code(), StatusCode::invalid_argument);
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), 1e-40f}) {
    scales = some_scales(shape);
    scales.k[2] = bad;
    EXPECT_EQ(KvCache::create(shape, scales).status().code(), StatusCode::invalid_argument) << bad;
  }
  const auto refusal = [&](std::vector<float> KvHeadScales::*list, float scale) {
    scales = some_scales(shape);
    (scales.*list)[2] = scale;
    return KvCache::create(shape, scales).status().message();
  };
  EXPECT_NE(refusal(&KvHeadScales::k, -1).find("a k_scale of"), std::string::npos);
  EXPECT_NE(refusal(&KvHeadScales::v, -1).find("a v_scale of"), std::string::npos);
  for (const float bound : {std::numeric_limits<float>::min(), 1e30f}) EXPECT_EQ(refusal(&KvHeadScales::k, bound), "");
  EXPECT_NE(refusal(&KvHeadScales::k, 1.0001e30f), "");
}

TEST(KvFormat, ParsesItsNames) {
  for (const KvFormat format : kAllFormats) EXPECT_EQ(parse_kv_format(kv_format_name(format)), format);
  EXPECT_EQ(parse_kv_format("bfloat16"), KvFormat::bf16);
  EXPECT_EQ(parse_kv_format("float32"), KvFormat::f32);
  EXPECT_EQ(parse_kv_format("int3"), std::nullopt);
  EXPECT_EQ(parse_kv_format("q4_0"), std::nullopt);
}

TEST(KvCache, OnlyLayersThatKeepKvHaveMemoryAndScalesAreFoundByTheModelsLayer) {
  KvCacheShape shape{.num_layers = 2,
                     .num_pages = 3,
                     .page_size = 2,
                     .num_kv_heads = 1,
                     .k_head_dim = 16,
                     .v_head_dim = 16,
                     .format = KvFormat::fp8_e4m3};
  const size_t dense_page = KvCache::page_bytes(shape);
  shape.layout = single_cache_group(4, {true, false, true, false});
  EXPECT_EQ(KvCache::page_bytes(shape), dense_page);
  auto cache = KvCache::create(shape, {.k = {1, 2, 3, 4}, .v = {5, 6, 7, 8}});
  ASSERT_TRUE(cache.ok()) << cache.status().message();
  EXPECT_FALSE(shape.keeps(0));
  EXPECT_EQ(cache->k(1).head_scales[0], 2);
  EXPECT_EQ(cache->v(3).head_scales[0], 8);
  const auto* const first = static_cast<const std::byte*>(cache->k(1).data);
  const auto* const second = static_cast<const std::byte*>(cache->k(3).data);
  EXPECT_EQ(static_cast<size_t>(second - first), cache->size_bytes() / 2);
  EXPECT_FALSE(KvCache::create(shape, {.k = {1, 2}, .v = {5, 6}}).ok());
}

}  // namespace
}  // namespace warpweave
