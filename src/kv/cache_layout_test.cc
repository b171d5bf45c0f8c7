#include "kv/cache_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "kv/kv_cache.h"
#include "kv/kv_codec.h"

namespace warpweave {
namespace {

// `full` layers without a window spread among `windowed` ones.
std::vector<int> windows(int full, int windowed, int window_left) {
  std::vector<int> out(full + windowed, window_left);
  for (int i = 0; i < full; ++i) out[(i + 1) * static_cast<int>(out.size()) / (full + 1)] = -1;
  return out;
}

// Times the tokens of requests of context_len that the same bytes hold, against one pool for all layers.
double gain(const std::vector<int>& window_left, int context_len, int page_size = 64) {
  const CacheLayout layout = plan_cache_layout({window_left, context_len, page_size});
  double kept = 0;
  for (const CacheGroupRule& group : layout.groups) {
    const int tokens = group.windowed() ? std::min(context_len, group.window_left + 2 * page_size) : context_len;
    kept += static_cast<double>(layout.layers_per_page) * tokens;
  }
  return static_cast<double>(window_left.size()) * context_len / kept;
}

TEST(CacheLayout, GivesEveryLayerAPlaceOfItsKind) {
  std::mt19937 rng(1);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int> window_left(1 + rng() % 70);
    for (int& window : window_left) window = rng() % 3 == 0 ? -1 : rng() % 5 == 0 ? 255 : 127;
    const CacheLayout layout = plan_cache_layout({window_left, 4096, 16});
    ASSERT_LE(layout.num_groups(), kMaxCacheGroups);
    std::set<std::pair<int, int>> taken;
    for (size_t layer = 0; layer < window_left.size(); ++layer) {
      const CacheLayout::Place place = layout.places[layer];
      ASSERT_LT(place.index, layout.layers_per_page);
      ASSERT_TRUE(taken.emplace(place.group, place.index).second) << "two layers in one place";
      if (layout.num_groups() > 1 || layout.windowed()) {
        EXPECT_EQ(layout.groups[place.group].window_left, window_left[layer]);
      }
    }
  }
}

TEST(CacheLayout, HoldsManyMoreTokensOfModelsWithWindows) {
  EXPECT_GE(gain(windows(10, 52, 1023), 32768), 4.5);  // Gemma-3-27B
  EXPECT_GE(gain(windows(12, 12, 127), 32768), 1.9);   // gpt-oss-20b
  EXPECT_GE(gain(windows(0, 32, 4095), 32768), 7.0);   // Mistral-7B-v0.1
}

TEST(CacheLayout, StaysWithOneGroupWhereWindowsSaveNothing) {
  EXPECT_EQ(plan_cache_layout({windows(4, 0, 0), 4096, 16}).num_groups(), 1);
  const CacheLayout wide = plan_cache_layout({windows(0, 4, 4095), 4096, 16});
  EXPECT_EQ(wide.num_groups(), 1);
  EXPECT_FALSE(wide.windowed());
  EXPECT_FALSE(plan_cache_layout({windows(31, 1, 127), 4096, 16}).windowed());
}

TEST(CacheLayout, CountsTwoPagesMoreThanTheWindow) {
  // Windows must save a twentieth of 1000 tokens; two pages are 200.
  EXPECT_TRUE(plan_cache_layout({windows(0, 4, 740), 1000, 100}).windowed());
  EXPECT_FALSE(plan_cache_layout({windows(0, 4, 760), 1000, 100}).windowed());
}

class GroupedCache : public testing::TestWithParam<KvFormat> {};

// Two kinds of layers, two of each in a page.
KvCacheShape grouped_shape(KvFormat format) {
  KvCacheShape shape;
  shape.num_layers = 4;
  shape.num_pages = 6;
  shape.page_size = 3;
  shape.num_kv_heads = 2;
  shape.k_head_dim = 48;
  shape.v_head_dim = 32;
  shape.format = format;
  shape.layout.layers_per_page = 2;
  shape.layout.groups = {{-1}, {7}};
  shape.layout.places = {{1, 0}, {0, 0}, {1, 1}, {0, 1}};
  return shape;
}

std::vector<float> read(const KvCache& cache, int layer, int side, int slot) {
  const KvPoolView view = side == 1 ? cache.v(layer) : cache.k(layer);
  const int page_size = cache.shape().page_size, dim = side == 1 ? 32 : 48;
  std::vector<float> out(2 * dim);
  for (int head = 0; head < 2; ++head) {
    kv_decode_run(view, head,
                  slot / page_size * view.page_stride + slot % page_size * view.token_stride + head * view.head_stride,
                  dim, out.data() + head * dim);
  }
  return out;
}

void write(KvCache& cache, int layer, int side, int slot, float value) {
  const KvPoolView view = side == 1 ? cache.v(layer) : cache.k(layer);
  const int page_size = cache.shape().page_size, dim = side == 1 ? 32 : 48;
  const std::vector<float> values(dim, value);
  for (int head = 0; head < 2; ++head) {
    kv_encode_run(view, head,
                  slot / page_size * view.page_stride + slot % page_size * view.token_stride + head * view.head_stride,
                  dim, values.data());
  }
}

TEST_P(GroupedCache, KeepsThePagesOfGroupsApartAndTheBlankOneZero) {
  const KvCacheShape shape = grouped_shape(GetParam());
  Result<KvCache> cache = KvCache::create(shape);
  ASSERT_TRUE(cache.ok()) << cache.status().message();
  ASSERT_EQ(shape.blank_page(), 6);
  // Group g owns the pages of its parity; every value names its place.
  const auto value = [](int layer, int side, int slot) { return 1.0f + layer + 4 * side + (slot % 4) * 8; };
  std::map<std::tuple<int, int, int>, std::vector<float>> written;
  for (int pass = 0; pass < 2; ++pass) {
    for (int layer = 0; layer < 4; ++layer) {
      for (int side = 0; side < 2; ++side) {
        for (int slot = 0; slot < 18; ++slot) {
          if (slot / 3 % 2 != cache->group_of(layer)) continue;
          if (pass == 0) {
            write(*cache, layer, side, slot, value(layer, side, slot));
            written[{layer, side, slot}] = read(*cache, layer, side, slot);
          } else {
            const auto now = read(*cache, layer, side, slot);
            ASSERT_EQ(now, (written[{layer, side, slot}])) << "layer " << layer << " slot " << slot;
            ASSERT_GT(now[0], 0);
          }
        }
      }
    }
  }
  for (int layer = 0; layer < 4; ++layer) {
    for (int side = 0; side < 2; ++side) {
      const auto blank = read(*cache, layer, side, 6 * 3 + 1);
      EXPECT_TRUE(std::all_of(blank.begin(), blank.end(), [](float x) { return x == 0; }));
    }
  }
  cache->copy_tokens(1 * 3 + 1, 5 * 3 + 1, 2);
  for (int layer : {0, 2}) {
    for (int side = 0; side < 2; ++side) {
      EXPECT_EQ(read(*cache, layer, side, 16), (written[{layer, side, 4}]));
      EXPECT_EQ(read(*cache, layer, side, 15), (written[{layer, side, 15}]));
    }
  }
  EXPECT_EQ(read(*cache, 1, 0, 12), (written[{1, 0, 12}]));
}

INSTANTIATE_TEST_SUITE_P(All, GroupedCache,
                         testing::Values(KvFormat::f32, KvFormat::bf16, KvFormat::fp8_e4m3, KvFormat::fp4_e2m1));

TEST(CacheLayout, LayersWhoseRowsSeeThemselvesAloneKeepNearlyNothing) {
  const std::vector<int> windows = {0, 0, 0, 0, 0, -1};
  const CacheLayout layout = plan_cache_layout({.window_left = windows, .context_len = 1024, .page_size = 16});
  EXPECT_EQ(layout.groups[layout.places[0].group].window_left, 0);
  EXPECT_FALSE(layout.groups[layout.places[5].group].windowed());
}

TEST(CacheLayout, APageMayHoldOneLayer) {
  const std::vector<int> windows = {16, -1};
  const CacheLayout layout = plan_cache_layout({.window_left = windows, .context_len = 1024, .page_size = 16});
  EXPECT_EQ(layout.layers_per_page, 1);
  EXPECT_EQ(layout.num_groups(), 2);
}

TEST(CacheLayout, AWindowThatSeesEverythingIsNone) {
  std::vector<int> windows(12, 127);
  windows[0] = -1;
  windows[1] = 4095;
  const CacheLayout layout = plan_cache_layout({.window_left = windows, .context_len = 4096, .page_size = 16});
  ASSERT_TRUE(layout.windowed());
  EXPECT_FALSE(layout.groups[layout.places[1].group].windowed());
  windows[1] = 4094;
  const CacheLayout one_less = plan_cache_layout({.window_left = windows, .context_len = 4096, .page_size = 16});
  EXPECT_TRUE(one_less.groups[one_less.places[1].group].windowed());
}

TEST(CacheLayout, LayersWithoutKvTakeNoRoom) {
  const CacheLayout layout = single_cache_group(5, {true, false, true, true, false});
  EXPECT_EQ(layout.layers_per_page, 2);
  EXPECT_EQ(layout.num_groups(), 1);
  EXPECT_EQ(layout.places[0].index, -1);
  EXPECT_EQ(layout.places[1].index, 0);
  EXPECT_EQ(layout.places[4].index, 1);
}

}  // namespace
}  // namespace warpweave
