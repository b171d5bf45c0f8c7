// Which rows of a batch the kernels of adapters take together: up to 16 rows of one adapter (Punica, Chen et al. 2023).
//
// Rows that share an adapter read its matrices together, whatever their order in the batch. Host code; any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace warpweave {

inline constexpr int kLoraTileRows = 16;

struct LoraTile {
  int32_t slot = -1;           // of the adapter in the device's table; -1: the tile has no rows
  int32_t adapter = -1;        // its place among the adapters of the batch, by their first rows
  int32_t first = 0;           // 1: the adapter's first tile
  int16_t num_adapters = 0;    // of the batch, in every tile
  int16_t num_tiles = 0;       // with rows: the first ones
  int32_t rows[kLoraTileRows]; // of the batch, ascending; -1 behind the last
};

// Tiles that hold `rows` rows of at most `adapters` adapters, in any mixture.
inline int max_lora_tiles(int rows, int adapters) { return std::min(rows, rows / kLoraTileRows + adapters); }

// The tiles of rows with `slots` (-1: no adapter), and each row's place: kLoraTileRows * tile + place in the tile, or
// -1. Room for max_lora_tiles() of as many adapters as occur; what is left over is empty.
void fill_lora_tiles(std::span<const int32_t> slots, std::span<LoraTile> tiles, std::span<int32_t> places);

}  // namespace warpweave
