#include "kv/kv_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <limits>

namespace warpweave {
namespace {

KvCacheShape small_shape() {
  KvCacheShape shape;
  shape.num_layers = 3;
  shape.num_pages = 7;
  shape.page_size = 5;
  shape.num_kv_heads = 2;
  shape.k_head_dim = 6;
  shape.v_head_dim = 4;
  shape.format = KvFormat::f32;
  return shape;
}

size_t resident_bytes() {
  long pages = 0, resident = 0;
  FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
  if (file != nullptr) std::fclose(file);
  return static_cast<size_t>(resident) * sysconf(_SC_PAGESIZE);
}

TEST(KvCache, SlotsAreDistinctAndMatchTheView) {
  Result<KvCache> cache = KvCache::create(small_shape());
  ASSERT_TRUE(cache.ok()) << cache.status().message();
  const KvCacheShape& shape = cache->shape();
  float next = 1;
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    for (int slot = 0; slot < shape.num_pages * shape.page_size; ++slot) {
      auto* k = static_cast<float*>(cache->k_slot(layer, slot));
      for (int i = 0; i < shape.num_kv_heads * shape.k_head_dim; ++i) k[i] = next++;
      auto* v = static_cast<float*>(cache->v_slot(layer, slot));
      for (int i = 0; i < shape.num_kv_heads * shape.v_head_dim; ++i) v[i] = next++;
    }
  }
  next = 1;
  const auto at = [](const KvPoolView& view, int page, int offset, int head, int i) {
    return static_cast<const float*>(view.data)[page * view.page_stride +
                                                offset * view.token_stride +
                                                head * view.head_stride + i];
  };
  for (int layer = 0; layer < shape.num_layers; ++layer) {
    const KvPoolView k = cache->k(layer), v = cache->v(layer);
    for (int page = 0; page < shape.num_pages; ++page) {
      for (int offset = 0; offset < shape.page_size; ++offset) {
        for (int head = 0; head < shape.num_kv_heads; ++head) {
          for (int i = 0; i < shape.k_head_dim; ++i) {
            ASSERT_EQ(at(k, page, offset, head, i), next++);
          }
        }
        for (int head = 0; head < shape.num_kv_heads; ++head) {
          for (int i = 0; i < shape.v_head_dim; ++i) {
            ASSERT_EQ(at(v, page, offset, head, i), next++);
          }
        }
      }
    }
  }
}

TEST(KvCache, CopiesTokensInAllLayersAndNothingElse) {
  Result<KvCache> cache = KvCache::create(small_shape());
  ASSERT_TRUE(cache.ok());
  const int page_size = cache->shape().page_size;
  for (int layer = 0; layer < 3; ++layer) {
    for (int slot = 0; slot < 7 * page_size; ++slot) {
      *static_cast<float*>(cache->k_slot(layer, slot)) = 100.f * layer + slot;
      *static_cast<float*>(cache->v_slot(layer, slot)) = -100.f * layer - slot;
    }
  }
  cache->copy_tokens(1 * page_size, 4 * page_size, 3);
  for (int layer = 0; layer < 3; ++layer) {
    for (int slot = 0; slot < 7 * page_size; ++slot) {
      const int from = slot >= 20 && slot < 23 ? slot - 15 : slot;
      EXPECT_EQ(*static_cast<float*>(cache->k_slot(layer, slot)), 100.f * layer + from);
      EXPECT_EQ(*static_cast<float*>(cache->v_slot(layer, slot)), -100.f * layer - from);
    }
  }
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
  EXPECT_EQ(cache->size_bytes() / (int64_t{shape.num_pages} * shape.page_size),
            KvCache::bytes_per_token(shape));
  EXPECT_LT(resident_bytes(), before + (64 << 20));
}

TEST(KvCache, MovesWithoutFreeing) {
  Result<KvCache> created = KvCache::create(small_shape());
  ASSERT_TRUE(created.ok());
  KvCache first = std::move(created).value();
  *static_cast<float*>(first.k_slot(1, 3)) = 42;
  KvCache second = std::move(first);
  EXPECT_EQ(*static_cast<float*>(second.k_slot(1, 3)), 42);
}

TEST(KvCache, RefusesShapesThatCannotBe) {
  KvCacheShape shape = small_shape();
  shape.format = KvFormat::fp4_e2m1;
  EXPECT_EQ(KvCache::create(shape).status().code(), StatusCode::unsupported);
  shape = small_shape();
  shape.num_pages = 0;
  EXPECT_EQ(KvCache::create(shape).status().code(), StatusCode::invalid_argument);
  shape = small_shape();
  shape.num_pages = shape.page_size = std::numeric_limits<int>::max();
  EXPECT_EQ(KvCache::create(shape).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace warpweave
