// The memory of caches at its bounds: the smallest and the largest shapes, moves, and address space that is given back.
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "kv/kv_cache.h"
#include "kv/kv_codec.h"
#include "kv/state_cache.h"

namespace warpweave {
namespace {

constexpr int64_t kAddressSpaceBytes = int64_t{1} << 47;

KvCacheShape one_of_each() {
  KvCacheShape shape;
  shape.num_layers = shape.num_pages = shape.page_size = shape.num_kv_heads = shape.k_head_dim = shape.v_head_dim = 1;
  shape.format = KvFormat::f32;
  return shape;
}

TEST(KvBounds, EverySizeMayBeOneAndNoneLess) {
  EXPECT_TRUE(KvMemoryMap::create(one_of_each(), 64).ok());
  for (int KvCacheShape::*size : {&KvCacheShape::num_layers, &KvCacheShape::num_pages, &KvCacheShape::page_size,
                                  &KvCacheShape::num_kv_heads, &KvCacheShape::k_head_dim}) {
    KvCacheShape shape = one_of_each();
    shape.*size = 0;
    EXPECT_EQ(KvMemoryMap::create(shape, 64).status().code(), StatusCode::invalid_argument);
  }
  KvCacheShape latent = one_of_each();
  latent.v_head_dim = 0;  // V is a part of K
  EXPECT_TRUE(KvMemoryMap::create(latent, 64).ok());
  latent.v_head_dim = -1;
  EXPECT_FALSE(KvMemoryMap::create(latent, 64).ok());
}

TEST(KvBounds, ABlankPageComesOnTopWhereAGroupHasAWindow) {
  KvCacheShape shape = one_of_each();
  shape.num_pages = 5;
  EXPECT_EQ(shape.blank_page(), -1);
  EXPECT_EQ(shape.physical_pages(), 5);
  shape.layout = {.layers_per_page = 1, .groups = {{.window_left = 3}}, .places = {{}}};
  EXPECT_EQ(shape.blank_page(), 5);
  EXPECT_EQ(shape.physical_pages(), 6);
}

TEST(KvBounds, PagesOfGroupsFillTheMemoryFromItsBeginning) {
  KvCacheShape shape = one_of_each();
  shape.num_pages = 5;
  shape.page_size = 16;
  shape.k_head_dim = shape.v_head_dim = 4;
  shape.layout = {.layers_per_page = 1, .groups = {{.window_left = 3}}, .places = {{}}};
  const KvMemoryMap map = std::move(KvMemoryMap::create(shape, 64)).value();
  const std::byte memory{};
  EXPECT_EQ(map.view(0, 0, &memory).data, &memory);
  EXPECT_EQ(map.size_bytes(), 6u * 2 * 16 * 4 * sizeof(float));
}

TEST(KvBounds, ACacheEndsBelowTheAddressSpace) {
  KvCacheShape shape = one_of_each();
  shape.k_head_dim = 1 << 14;
  shape.v_head_dim = 0;
  shape.page_size = 1 << 14;  // pages of 2^30 bytes
  shape.num_pages = static_cast<int>(kAddressSpaceBytes >> 30) - 1;
  EXPECT_TRUE(KvMemoryMap::create(shape, 64).ok());
  ++shape.num_pages;
  EXPECT_EQ(KvMemoryMap::create(shape, 64).status().field(), "--max-total-tokens");
}

TEST(KvBounds, StatesEndBelowTheAddressSpace) {
  StateCacheShape shape = {.num_layers = 1, .num_slots = 1, .recurrent_elements = 1, .conv_elements = 0};
  EXPECT_TRUE(check_state_shape(shape).ok());
  shape = {.num_layers = 1, .num_slots = 1, .recurrent_elements = 0, .conv_elements = 1};
  EXPECT_TRUE(check_state_shape(shape).ok());
  shape.conv_elements = 0;
  EXPECT_FALSE(check_state_shape(shape).ok());
  shape = {.num_layers = 2, .num_slots = 4, .recurrent_elements = int64_t{1} << 39, .conv_elements = 1 << 20};
  EXPECT_TRUE(check_state_shape(shape).ok());  // 2^44 bytes and a little
  shape.num_slots = 32;
  EXPECT_EQ(check_state_shape(shape).field(), "--max-mamba-cache-size");
  shape = {.num_layers = 1, .num_slots = 1, .recurrent_elements = (int64_t{1} << 40) + 1, .conv_elements = 0};
  EXPECT_FALSE(check_state_shape(shape).ok());
  shape = {.num_layers = 1, .num_slots = 32, .recurrent_elements = int64_t{1} << 40, .conv_elements = 0};
  EXPECT_FALSE(check_state_shape(shape).ok());  // just as large
  shape.num_slots = 31;
  EXPECT_TRUE(check_state_shape(shape).ok());
  for (int StateCacheShape::*size : {&StateCacheShape::num_layers, &StateCacheShape::num_slots}) {
    StateCacheShape none = {.num_layers = 1, .num_slots = 1, .recurrent_elements = 1, .conv_elements = 1};
    EXPECT_TRUE(check_state_shape(none).ok());
    none.*size = 0;
    EXPECT_FALSE(check_state_shape(none).ok());
  }
  for (int64_t StateCacheShape::*size : {&StateCacheShape::recurrent_elements, &StateCacheShape::conv_elements}) {
    StateCacheShape negative = {.num_layers = 1, .num_slots = 1, .recurrent_elements = 4, .conv_elements = 4};
    negative.*size = -1;
    EXPECT_FALSE(check_state_shape(negative).ok());
  }
}

#if !defined(__SANITIZE_THREAD__)  // which leaves too little address space for one
// All address space would be gone after eight.
TEST(KvBounds, GiveTheirAddressSpaceBack) {
  KvCacheShape shape = one_of_each();
  shape.k_head_dim = 1 << 14;
  shape.v_head_dim = 0;
  shape.page_size = 1 << 14;
  shape.num_pages = 1 << 14;
  const StateCacheShape states = {
      .num_layers = 1, .num_slots = 4, .recurrent_elements = int64_t{1} << 40, .conv_elements = 0};
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(KvCache::create(shape).ok());
    EXPECT_TRUE(StateCache::create(states).ok());
  }
}
#endif

TEST(KvBounds, AKvCacheTakesAllOfAnother) {
  KvCacheShape small = one_of_each(), large = one_of_each();
  large.num_layers = 2;
  large.num_pages = 9;
  large.k_head_dim = 16;
  large.format = KvFormat::fp8_e4m3;
  KvCache to = std::move(KvCache::create(small)).value();
  KvCache from = std::move(KvCache::create(large, {.k = {2, 3}, .v = {4, 5}})).value();
  from.fill_page(8, std::byte{7});
  const size_t bytes = from.size_bytes();
  to = std::move(from);
  EXPECT_EQ(to.size_bytes(), bytes);
  EXPECT_EQ(to.shape().num_pages, 9);
  EXPECT_EQ(to.k(1).head_stride, 16);
  ASSERT_NE(to.v(1).head_scales, nullptr);
  EXPECT_EQ(*to.v(1).head_scales, 5);
  EXPECT_TRUE(to.page_is_filled(8, std::byte{7}));
  EXPECT_FALSE(to.page_is_filled(7, std::byte{7}));
}

TEST(KvBounds, AStateCacheTakesAllOfAnother) {
  const StateCacheShape small = {.num_layers = 1, .num_slots = 2, .recurrent_elements = 3, .conv_elements = 2};
  const StateCacheShape large = {.num_layers = 3, .num_slots = 5, .recurrent_elements = 40, .conv_elements = 24,
                                 .recurrent_dtype = DType::bf16};
  StateCache to = std::move(StateCache::create(small)).value();
  StateCache from = std::move(StateCache::create(large)).value();
  const StateCache twin = std::move(StateCache::create(large)).value();
  for (int slot = 0; slot < large.num_slots; ++slot) from.fill(slot, static_cast<std::byte>(slot + 1));
  const auto* const base = static_cast<const std::byte*>(from.recurrent(0).data);
  to = std::move(from);
  EXPECT_EQ(to.size_bytes(), twin.size_bytes());
  EXPECT_EQ(to.shape().num_slots, 5);
  const auto place = [](const StateCache& cache, const StateLayerView& view) {
    return static_cast<const std::byte*>(view.data) - static_cast<const std::byte*>(cache.recurrent(0).data);
  };
  EXPECT_EQ(to.recurrent(0).data, base);
  EXPECT_EQ(place(to, to.recurrent(2)), place(twin, twin.recurrent(2)));
  EXPECT_EQ(place(to, to.conv(1)), place(twin, twin.conv(1)));
  EXPECT_EQ(to.conv(1).slot_stride, 24);
  for (int slot = 0; slot < large.num_slots; ++slot) EXPECT_TRUE(to.is_filled(slot, static_cast<std::byte>(slot + 1)));
}

// The page behind each cache may not be touched; where another mapping stands there already nothing is tested.
TEST(KvBounds, WriteNothingBehindTheirEnd) {
  const size_t page = sysconf(_SC_PAGESIZE);
  const auto guard = [&](void* end) {
    void* const at = mmap(end, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    return at == MAP_FAILED ? nullptr : at;
  };
  const StateCacheShape states = {.num_layers = 2, .num_slots = 4, .recurrent_elements = 1024, .conv_elements = 1024};
  StateCache state_cache = std::move(StateCache::create(states)).value();
  ASSERT_EQ(state_cache.size_bytes() % page, 0u);
  void* const behind_states = guard(static_cast<std::byte*>(state_cache.recurrent(0).data) + state_cache.size_bytes());
  for (int slot = 0; slot < states.num_slots; ++slot) state_cache.fill(slot, std::byte{1});
  for (int slot = 1; slot < states.num_slots; ++slot) state_cache.copy({.from = slot, .to = slot - 1});
  KvCacheShape shape = one_of_each();
  shape.num_layers = 2;
  shape.num_pages = 4;
  shape.page_size = 16;
  shape.k_head_dim = shape.v_head_dim = 64;
  KvCache kv = std::move(KvCache::create(shape)).value();
  ASSERT_EQ(kv.size_bytes() % page, 0u);
  auto* const base = static_cast<std::byte*>(const_cast<void*>(kv.k(0).data));
  void* const behind_kv = guard(base + kv.size_bytes());
  for (int i = 0; i < shape.num_pages; ++i) kv.fill_page(i, std::byte{1});
  for (int i = 1; i < shape.num_pages; ++i) kv.copy_tokens(i * 16, (i - 1) * 16, 16);
  for (void* const at : {behind_states, behind_kv}) {
    if (at != nullptr) munmap(at, page);
  }
}

}  // namespace
}  // namespace warpweave
