// The tile instructions that kernels use: AMX's where the file is compiled for it, else the same in plain C++, by which
// tests run those kernels on every CPU. Tile names are literals 0 to 7, as the instructions want.
//
// Tiles are state of the thread: configure before use, release after.
#pragma once

#include <stdint.h>
#include <string.h>

#include "device/cpu/amx_tile_config.h"

#if defined(__AMX_TILE__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AMX_TILE__)
// g++ takes the instruction for a reader of 8 bytes and may drop the stores of the others.
#define WW_TILE_CONFIGURE(config) \
  do { __asm__ volatile("" : : "r"(config) : "memory"); _tile_loadconfig(config); } while (false)
#define WW_TILE_RELEASE() _tile_release()
#define WW_TILE_ZERO(tile) _tile_zero(tile)
// g++ does not know that these instructions read memory; without the barrier it may drop stores before them.
#define WW_TILE_LOAD(tile, at, stride_bytes) \
  do { __asm__ volatile("" ::: "memory"); _tile_loadd(tile, at, stride_bytes); } while (false)
#define WW_TILE_STORE(tile, at, stride_bytes) _tile_stored(tile, at, stride_bytes)
// sums += a * b: bytes with signs, four neighbours of a row of `a` with four of a column of `b`, to 32 bits.
#define WW_TILE_DOT(sums, a, b) _tile_dpbssd(sums, a, b)
// sums += a * b: bf16, two neighbours of a row of `a` with two of a column of `b`, to f32; denormals are zeros.
#define WW_TILE_DOT_BF16(sums, a, b) _tile_dpbf16ps(sums, a, b)
#else

struct EmulatedTiles {
  warpweave::AmxTileConfig config;
  uint8_t bytes[8][16][64] = {};
};
thread_local EmulatedTiles emulated_tiles;

inline void emulated_load(int tile, const void* at, int64_t stride_bytes) {
  const warpweave::AmxTileConfig& config = emulated_tiles.config;
  memset(emulated_tiles.bytes[tile], 0, sizeof emulated_tiles.bytes[tile]);
  for (int r = 0; r < config.rows[tile]; ++r) {
    memcpy(emulated_tiles.bytes[tile][r], static_cast<const char*>(at) + r * stride_bytes, config.row_bytes[tile]);
  }
}

inline void emulated_store(int tile, void* at, int64_t stride_bytes) {
  const warpweave::AmxTileConfig& config = emulated_tiles.config;
  for (int r = 0; r < config.rows[tile]; ++r) {
    memcpy(static_cast<char*>(at) + r * stride_bytes, emulated_tiles.bytes[tile][r], config.row_bytes[tile]);
  }
}

// The processor raises #UD where the shapes do not fit.
inline void check_shapes(int sums, int a, int b) {
  const warpweave::AmxTileConfig& config = emulated_tiles.config;
  if (config.rows[a] != config.rows[sums] || config.row_bytes[b] != config.row_bytes[sums] ||
      config.row_bytes[a] != 4 * config.rows[b]) {
    __builtin_trap();
  }
}

inline void emulated_dot(int sums, int a, int b) {
  const warpweave::AmxTileConfig& config = emulated_tiles.config;
  check_shapes(sums, a, b);
  for (int r = 0; r < config.rows[sums]; ++r) {
    for (int c = 0; c < config.row_bytes[sums] / 4; ++c) {
      int32_t sum;
      memcpy(&sum, &emulated_tiles.bytes[sums][r][4 * c], 4);
      for (int i = 0; i < config.row_bytes[a]; ++i) {
        sum += static_cast<int8_t>(emulated_tiles.bytes[a][r][i]) *
               static_cast<int8_t>(emulated_tiles.bytes[b][i / 4][4 * c + i % 4]);
      }
      memcpy(&emulated_tiles.bytes[sums][r][4 * c], &sum, 4);
    }
  }
}

// In the order of Intel's manual: sums of even and of odd places from zero, then both together to what was there. The
// caller has told the CPU to take denormals for zeros.
inline void emulated_dot_bf16(int sums, int a, int b) {
  const warpweave::AmxTileConfig& config = emulated_tiles.config;
  check_shapes(sums, a, b);
  const auto value_of = [](uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
  };
  for (int r = 0; r < config.rows[sums]; ++r) {
    float even[16] = {}, odd[16] = {}, sum[16];
    uint32_t pair, pairs[16];
    for (int k = 0; k < config.rows[b]; ++k) {
      memcpy(&pair, &emulated_tiles.bytes[a][r][4 * k], 4);
      memcpy(pairs, emulated_tiles.bytes[b][k], 64);
      const float first = value_of(pair << 16), second = value_of(pair & 0xffff0000u);
      for (int c = 0; c < 16; ++c) {
        even[c] += first * value_of(pairs[c] << 16);
        odd[c] += second * value_of(pairs[c] & 0xffff0000u);
      }
    }
    memcpy(sum, emulated_tiles.bytes[sums][r], 64);
    for (int c = 0; c < 16; ++c) sum[c] += even[c] + odd[c];
    memcpy(emulated_tiles.bytes[sums][r], sum, config.row_bytes[sums]);
  }
}

#define WW_TILE_CONFIGURE(from) (emulated_tiles.config = *(from))
#define WW_TILE_RELEASE() (emulated_tiles = EmulatedTiles())
#define WW_TILE_ZERO(tile) memset(emulated_tiles.bytes[tile], 0, sizeof emulated_tiles.bytes[tile])
#define WW_TILE_LOAD(tile, at, stride_bytes) emulated_load(tile, at, stride_bytes)
#define WW_TILE_STORE(tile, at, stride_bytes) emulated_store(tile, at, stride_bytes)
#define WW_TILE_DOT(sums, a, b) emulated_dot(sums, a, b)
#define WW_TILE_DOT_BF16(sums, a, b) emulated_dot_bf16(sums, a, b)
#endif

}  // namespace
