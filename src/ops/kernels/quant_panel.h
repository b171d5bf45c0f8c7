// Compressed panels: the GGUF blocks of 16 weight rows, re-ordered so that one load fetches the
// same position of all 16 rows. Values and sizes are those of the blocks (q4_k: 148 instead of 144
// bytes per row, its packed 6-bit scales are spread to bytes).
//
// Nibbles: byte j of `codes` holds k = 2j (low) and 2j + 1 (high). q6_k high bits: byte j holds
// k = 4j .. 4j + 3, two bits each, lowest first. A panel is [K / block elements] of its struct.
#pragma once

#include <stdint.h>

namespace warpweave {

struct PanelQ8_0 {            // w = d * code
  static constexpr int kElements = 32;
  uint16_t d[16];             // f16
  int8_t codes[32][16];
};
struct PanelQ4_0 {            // w = d * (code - 8)
  static constexpr int kElements = 32;
  uint16_t d[16];
  uint8_t codes[16][16];
};
struct PanelQ4_1 {            // w = d * code + m
  static constexpr int kElements = 32;
  uint16_t d[16];
  uint16_t m[16];
  uint8_t codes[16][16];
};
struct PanelQ4K {             // w = (d * scale) * code - (dmin * min), per 32 elements
  static constexpr int kElements = 256;
  uint16_t d[16];
  uint16_t dmin[16];
  uint8_t scales[8][16];
  uint8_t mins[8][16];
  uint8_t codes[128][16];
};
struct PanelQ6K {             // w = (d * scale) * (code - 32), per 16 elements
  static constexpr int kElements = 256;
  uint16_t d[16];
  int8_t scales[16][16];
  uint8_t low[128][16];
  uint8_t high[64][16];
};

}  // namespace warpweave
