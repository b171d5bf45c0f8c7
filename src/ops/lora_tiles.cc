#include "ops/lora_tiles.h"

#include <cassert>
#include <unordered_map>

namespace warpweave {

void fill_lora_tiles(std::span<const int32_t> slots, std::span<LoraTile> tiles, std::span<int32_t> places) {
  struct Open {
    int tile;
    int rows;
    int adapter;
  };
  for (LoraTile& tile : tiles) {
    tile = {};
    std::fill(std::begin(tile.rows), std::end(tile.rows), -1);
  }
  std::unordered_map<int32_t, Open> open;  // by slot: the tile that takes its next row
  int used = 0;
  for (size_t row = 0; row < slots.size(); ++row) {
    const int32_t slot = slots[row];
    places[row] = -1;
    if (slot < 0) continue;
    Open& place = open.try_emplace(slot, Open{-1, kLoraTileRows, static_cast<int>(open.size())}).first->second;
    if (place.rows == kLoraTileRows) {
      assert(used < static_cast<int>(tiles.size()));
      tiles[used].slot = slot;
      tiles[used].adapter = place.adapter;
      tiles[used].first = place.tile < 0;
      place = {used++, 0, place.adapter};
    }
    places[row] = place.tile * kLoraTileRows + place.rows;
    tiles[place.tile].rows[place.rows++] = static_cast<int32_t>(row);
  }
  for (LoraTile& tile : tiles) {
    tile.num_adapters = static_cast<int16_t>(open.size());
    tile.num_tiles = static_cast<int16_t>(used);
  }
}

}  // namespace warpweave
