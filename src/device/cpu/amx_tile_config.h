// The shapes of AMX's tiles, as the instruction LDTILECFG reads them. For files of every CPU tier: no code.
// Source: Intel's manual of its instruction set, "LDTILECFG".
#pragma once

#include <stdint.h>

namespace warpweave {

struct alignas(64) AmxTileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};  // by tile, of which there are 8
  uint8_t rows[16] = {};
};

}  // namespace warpweave
