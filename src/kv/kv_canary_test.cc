#include "kv/kv_canary.h"

#include <gtest/gtest.h>

#include "kv/page_pool.h"

namespace warpweave {
namespace {

KvCache make_cache(KvFormat format) {
  Result<KvCache> cache = KvCache::create({.num_layers = 2, .num_pages = 8, .page_size = 4, .num_kv_heads = 2,
                                           .k_head_dim = 32, .v_head_dim = 32, .format = format});
  EXPECT_TRUE(cache.ok());
  return std::move(cache).value();
}

std::vector<int32_t> events_of(PagePool& pool) { return pool.take_events(); }

TEST(KvCanary, FindsAPlantedWriteToAFreePageInEveryFormatAndPlace) {
  for (const KvFormat format : {KvFormat::bf16, KvFormat::f32, KvFormat::fp8_e4m3, KvFormat::fp4_e2m1}) {
    for (const int layer : {0, 1}) {
      for (const bool in_v : {false, true}) {
        KvCache cache = make_cache(format);
        KvCanary canary(cache);
        PagePool pool(8, 4);
        pool.log_events(true);
        const int32_t page = pool.alloc();
        pool.unref(page);
        ASSERT_TRUE(canary.apply(events_of(pool)).ok());
        EXPECT_TRUE(canary.check_all().ok());
        const KvPoolView view = in_v ? cache.v(layer) : cache.k(layer);
        const int64_t element = page * view.page_stride + view.token_stride;  // the page's second token
        auto* bytes = static_cast<std::byte*>(const_cast<void*>(view.data));
        bytes[element * kv_format_bits(format) / 8] ^= std::byte{1};
        EXPECT_FALSE(canary.check_all().ok());
        ASSERT_EQ(pool.alloc(), page);
        const Status status = canary.apply(events_of(pool));
        ASSERT_FALSE(status.ok());
        EXPECT_NE(status.message().find("page " + std::to_string(page)), std::string::npos);
      }
    }
  }
}

TEST(KvCanary, PagesInUseMayBeWritten) {
  KvCache cache = make_cache(KvFormat::bf16);
  KvCanary canary(cache);
  PagePool pool(8, 4);
  pool.log_events(true);
  for (int round = 0; round < 20; ++round) {
    const int32_t page = pool.alloc();
    ASSERT_TRUE(canary.apply(events_of(pool)).ok());
    cache.fill_page(page, std::byte{7});
    pool.ref(page);
    EXPECT_FALSE(pool.unref(page));
    EXPECT_TRUE(events_of(pool).empty());
    pool.unref(page);
    if (round % 2 == 0) continue;  // freed and taken again between two steps
    ASSERT_TRUE(canary.apply(events_of(pool)).ok());
  }
}

}  // namespace
}  // namespace warpweave
