// The GGUF block formats as they stand in a file, and their values: the definition that every
// dequantising kernel is tested against. A block covers consecutive elements of one row.
#pragma once

#include <cstdint>

#include "warpweave/tensor.h"

namespace warpweave {

struct BlockQ8_0 {
  static constexpr int kElements = 32;
  uint16_t d;           // f16
  int8_t codes[32];
};
struct BlockQ4_0 {      // element i < 16: low nibble of codes[i]; i >= 16: high nibble of codes[i-16]
  static constexpr int kElements = 32;
  uint16_t d;
  uint8_t codes[16];
};
struct BlockQ4_1 {
  static constexpr int kElements = 32;
  uint16_t d;
  uint16_t m;
  uint8_t codes[16];
};
struct BlockQ5_0 {      // q4_0 with a fifth bit: bit i of high for element i
  static constexpr int kElements = 32;
  uint16_t d;
  uint8_t high[4];
  uint8_t codes[16];
};
struct BlockQ5_1 {
  static constexpr int kElements = 32;
  uint16_t d;
  uint16_t m;
  uint8_t high[4];
  uint8_t codes[16];
};
struct BlockQ4K {       // elements 64j + i: low nibbles of codes[32j + i], then + 32: high nibbles
  static constexpr int kElements = 256;
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];   // eight 6-bit scales and eight 6-bit mins
  uint8_t codes[128];
};
struct BlockQ5K {       // q4_k with a fifth bit: bit j of high[i] for elements 32j + i
  static constexpr int kElements = 256;
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t high[32];
  uint8_t codes[128];
};
struct BlockQ6K {
  static constexpr int kElements = 256;
  uint8_t low[128];
  uint8_t high[64];
  int8_t scales[16];    // per 16 elements
  uint16_t d;
};
struct BlockIQ4NL {     // nibbles as in q4_0, each the place of a value in kIQ4Values
  static constexpr int kElements = 32;
  uint16_t d;
  uint8_t codes[16];
};
struct BlockIQ4XS {     // eight groups of such nibbles, each with a scale of 6 bits
  static constexpr int kElements = 256;
  uint16_t d;
  uint16_t scales_high;  // two bits a group
  uint8_t scales_low[4];
  uint8_t codes[128];
};
static_assert(sizeof(BlockIQ4NL) == 18 && sizeof(BlockIQ4XS) == 136);
static_assert(sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 &&
              sizeof(BlockQ4K) == 144 && sizeof(BlockQ5K) == 176 && sizeof(BlockQ6K) == 210);

// Blocks in a file are not aligned: these copy out of `data`.
template <typename Block>
Block read_block(const void* data, int64_t index);

// Code of element i, before any offset or table: 0..15, 0..31 for those of five bits, 0..63 for q6_k, or the signed
// byte of q8_0.
int block_code(const BlockQ8_0& block, int i);
int block_code(const BlockQ4_0& block, int i);
int block_code(const BlockQ4_1& block, int i);
int block_code(const BlockQ5_0& block, int i);
int block_code(const BlockQ5_1& block, int i);
int block_code(const BlockQ4K& block, int i);
int block_code(const BlockQ5K& block, int i);
int block_code(const BlockQ6K& block, int i);
int block_code(const BlockIQ4NL& block, int i);
int block_code(const BlockIQ4XS& block, int i);
// Scale of group g (0..7), -32 to 31.
int block_scale(const BlockIQ4XS& block, int g);
// 6-bit scale and min of group g (0..7) of 32 elements.
void block_scale_min(const BlockQ4K& block, int g, int* scale, int* min);
void block_scale_min(const BlockQ5K& block, int g, int* scale, int* min);

// n elements (a multiple of the block) as q8_0, with the same values.
void q5_0_to_q8_0(const void* data, int64_t n, void* out);

// n elements (a multiple of the block) to f32, in plain scalar code.
void dequantize_row_reference(DType dtype, const void* data, int64_t n, float* out);

}  // namespace warpweave
