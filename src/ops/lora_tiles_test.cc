#include "ops/lora_tiles.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace warpweave {
namespace {

TEST(LoraTiles, RowsOfAnAdapterShareTilesWhereverTheyStand) {
  std::vector<int32_t> slots(40, 7);
  slots[1] = slots[20] = -1;
  slots[3] = slots[39] = 2;
  std::vector<LoraTile> tiles(max_lora_tiles(40, 2));
  std::vector<int32_t> places(40);
  fill_lora_tiles(slots, tiles, places);
  EXPECT_EQ(places[1], -1);
  EXPECT_EQ(places[39], 17);
  EXPECT_EQ(tiles[0].slot, 7);
  EXPECT_EQ(tiles[0].rows[1], 2);
  EXPECT_EQ(tiles[0].rows[15], 17);
  EXPECT_EQ(tiles[1].slot, 2);
  EXPECT_EQ(tiles[1].rows[1], 39);
  EXPECT_EQ(tiles[1].rows[2], -1);
  EXPECT_EQ(tiles[2].slot, 7);
  EXPECT_EQ(tiles[3].slot, 7);
  EXPECT_EQ(tiles[3].rows[3], 38);
  EXPECT_EQ(tiles[3].rows[4], -1);
  const int adapters[] = {0, 1, 0, 0};
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(tiles[t].adapter, adapters[t]);
    EXPECT_EQ(tiles[t].first, t < 2);
    EXPECT_EQ(tiles[t].num_adapters, 2);
    EXPECT_EQ(tiles[t].num_tiles, 4);
  }
}

TEST(LoraTiles, EveryRowStandsInOneTileOfItsAdapterAndTheBoundHolds) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 2000; ++trial) {
    const int rows = static_cast<int>(random() % 200), adapters = 1 + static_cast<int>(random() % 9);
    std::vector<int32_t> slots(rows);
    for (int32_t& slot : slots) slot = static_cast<int32_t>(random() % (adapters + 1)) - 1;
    std::vector<LoraTile> tiles(max_lora_tiles(rows, adapters));
    std::vector<int32_t> places(rows, 12345);
    fill_lora_tiles(slots, tiles, places);
    std::set<int32_t> seen;
    for (size_t t = 0; t < tiles.size(); ++t) {
      const LoraTile& tile = tiles[t];
      for (int i = 0; i < kLoraTileRows; ++i) {
        const int32_t row = tile.rows[i];
        if (row < 0) continue;
        EXPECT_EQ(places[row], static_cast<int32_t>(t) * kLoraTileRows + i);
        EXPECT_EQ(slots[row], tile.slot);
        EXPECT_TRUE(seen.insert(row).second);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), rows - std::count(slots.begin(), slots.end(), -1));
    EXPECT_EQ(std::count(places.begin(), places.end(), -1), std::count(slots.begin(), slots.end(), -1));
  }
}

TEST(LoraTiles, NoRowsLeaveEmptyTiles) {
  std::vector<LoraTile> tiles(3);
  std::vector<int32_t> places(8);
  fill_lora_tiles(std::vector<int32_t>(8, -1), tiles, places);
  for (const LoraTile& tile : tiles) {
    EXPECT_EQ(tile.slot, -1);
    EXPECT_EQ(tile.rows[0], -1);
  }
}

}  // namespace
}  // namespace warpweave
