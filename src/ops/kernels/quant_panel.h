// Compressed panels: the GGUF blocks of 16 weight rows, re-ordered so that one load fetches the
// same positions of all 16 rows. Values and sizes are those of the blocks (q4_k: 148 instead of 144
// bytes per row, q5_k 180 for 176, iq4_xs 138 for 136: packed 6-bit scales are spread to bytes).
//
// Four codes of a row stand side by side, as products of bytes want them. A word is 16 rows x 4 bytes; byte b of it:
//   q8_0           code of k = 4j + b, plus 128, so that all codes are unsigned
//   nibbles        low half: k = 8j + b; high half: k = 8j + 4 + b
//   q5_k high      bit t: the top of k = 32j + 4t + b
//   q6_k high      bits 2t and 2t + 1: the top of k = 16j + 4t + b
// A panel is [K / block elements] of its struct.
#pragma once

#include <stdint.h>

namespace warpweave {

using PanelWord = uint8_t[16][4];

struct PanelQ8_0 {            // w = d * (code - 128)
  static constexpr int kElements = 32;
  uint16_t d[16];             // f16
  PanelWord codes[8];
};
struct PanelQ4_0 {            // w = d * (code - 8)
  static constexpr int kElements = 32;
  uint16_t d[16];
  PanelWord codes[4];
};
struct PanelQ4_1 {            // w = d * code + m
  static constexpr int kElements = 32;
  uint16_t d[16];
  uint16_t m[16];
  PanelWord codes[4];
};
struct PanelQ4K {             // w = (d * scale) * code - (dmin * min), per 32 elements
  static constexpr int kElements = 256;
  uint16_t d[16];
  uint16_t dmin[16];
  uint8_t scales[8][16];
  uint8_t mins[8][16];
  PanelWord codes[32];
};
struct PanelQ5K {             // as q4_k
  static constexpr int kElements = 256;
  uint16_t d[16];
  uint16_t dmin[16];
  uint8_t scales[8][16];
  uint8_t mins[8][16];
  PanelWord codes[32];
  PanelWord high[8];
};
struct PanelQ6K {             // w = (d * scale) * (code - 32), per 16 elements
  static constexpr int kElements = 256;
  uint16_t d[16];
  int8_t scales[16][16];
  PanelWord low[32];
  PanelWord high[16];
};

// The values of iq4 codes, which stand closer near zero.
inline constexpr int8_t kIQ4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// The same plus 128, as bytes without a sign.
inline constexpr uint8_t kIQ4Bytes[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

struct PanelIQ4NL {           // w = d * kIQ4Values[code]
  static constexpr int kElements = 32;
  uint16_t d[16];
  PanelWord codes[4];
};
struct PanelIQ4XS {           // w = (d * scale) * kIQ4Values[code], per 32 elements
  static constexpr int kElements = 256;
  uint16_t d[16];
  int8_t scales[8][16];
  PanelWord codes[32];
};

}  // namespace warpweave
