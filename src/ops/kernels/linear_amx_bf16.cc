// bf16 x bf16 products on AMX tiles: up to 32 rows x 2 panels, or 16 rows x 4 panels, of C stay in
// tile registers while 32 values of k go by per step. One row runs through the same instruction,
// so a row's bits do not depend on how many rows there are.
#if defined(__x86_64__)
#include <immintrin.h>

#include "device/cpu/amx_tile_config.h"
#include "ops/kernels/linear_kernels.h"

namespace warpweave {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileK = 32;            // bf16 values in one tile row of 64 bytes
constexpr int kStepBytes = kTileK * 32;  // of one panel

// Tiles 0-3: C. Two row blocks: C[block][panel] in 0-3, A in 4-5, B in 6-7. One row block: C per
// panel in 0-3, A in 4, B in 6.
void configure(int rows) {
  AmxTileConfig config;
  const int first = rows < kTileRows ? rows : kTileRows;
  const int second = rows - first;
  const int tile_rows[8] = {first, first, second ? second : first, second ? second : first,
                            first, second ? second : first, kTileRows, kTileRows};
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = static_cast<uint8_t>(tile_rows[i]);
  }
  _tile_loadconfig(&config);
}

#define WW_LOAD_C(tile, at) \
  if (t.load_acc) _tile_loadd(tile, at, acc_bytes); else _tile_zero(tile)

// 17..32 rows x 2 panels.
void two_row_blocks(const GemmTile& t, const uint16_t* x, const unsigned char* w, float* acc) {
  const int64_t acc_bytes = t.acc_stride * 4, x_bytes = t.x_stride * 2;
  float* const acc_second = acc + kTileRows * t.acc_stride;
  const uint16_t* const x_second = x + kTileRows * t.x_stride;
  WW_LOAD_C(0, acc);
  WW_LOAD_C(1, acc + kPanelCols);
  WW_LOAD_C(2, acc_second);
  WW_LOAD_C(3, acc_second + kPanelCols);
  for (int k = 0; k < t.k; k += kTileK, w += kStepBytes) {
    _tile_loadd(6, w, 64);
    _tile_loadd(4, x + k, x_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + t.panel_bytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x_second + k, x_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, acc, acc_bytes);
  _tile_stored(1, acc + kPanelCols, acc_bytes);
  _tile_stored(2, acc_second, acc_bytes);
  _tile_stored(3, acc_second + kPanelCols, acc_bytes);
}

// 1..16 rows x 4 panels.
void four_panels(const GemmTile& t, const uint16_t* x, const unsigned char* w, float* acc) {
  const int64_t acc_bytes = t.acc_stride * 4, x_bytes = t.x_stride * 2;
  WW_LOAD_C(0, acc);
  WW_LOAD_C(1, acc + kPanelCols);
  WW_LOAD_C(2, acc + 2 * kPanelCols);
  WW_LOAD_C(3, acc + 3 * kPanelCols);
  for (int k = 0; k < t.k; k += kTileK, w += kStepBytes) {
    _tile_loadd(4, x + k, x_bytes);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + t.panel_bytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, w + 2 * t.panel_bytes, 64);
    _tile_dpbf16ps(2, 4, 6);
    _tile_loadd(7, w + 3 * t.panel_bytes, 64);
    _tile_dpbf16ps(3, 4, 7);
  }
  _tile_stored(0, acc, acc_bytes);
  _tile_stored(1, acc + kPanelCols, acc_bytes);
  _tile_stored(2, acc + 2 * kPanelCols, acc_bytes);
  _tile_stored(3, acc + 3 * kPanelCols, acc_bytes);
}

// 1..16 rows x 1 panel.
void one_panel(const GemmTile& t, const uint16_t* x, const unsigned char* w, float* acc) {
  const int64_t acc_bytes = t.acc_stride * 4, x_bytes = t.x_stride * 2;
  WW_LOAD_C(0, acc);
  for (int k = 0; k < t.k; k += kTileK, w += kStepBytes) {
    _tile_loadd(4, x + k, x_bytes);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, acc, acc_bytes);
}
#undef WW_LOAD_C

void row_group(const GemmTile& t, int row, int rows) {
  const uint16_t* const x = static_cast<const uint16_t*>(t.x) + row * t.x_stride;
  float* const acc = t.acc + row * t.acc_stride;
  int p = 0;
  if (rows > kTileRows) {
    for (; p + 2 <= t.panels; p += 2) {
      two_row_blocks(t, x, t.weights + p * t.panel_bytes, acc + p * kPanelCols);
    }
  } else {
    for (; p + 4 <= t.panels; p += 4) {
      four_panels(t, x, t.weights + p * t.panel_bytes, acc + p * kPanelCols);
    }
  }
  for (; p < t.panels; ++p) {
    for (int first = 0; first < rows; first += kTileRows) {
      const int count = rows - first < kTileRows ? rows - first : kTileRows;
      if (rows > kTileRows) configure(count);
      one_panel(t, x + first * t.x_stride, t.weights + p * t.panel_bytes,
                acc + first * t.acc_stride + p * kPanelCols);
    }
    if (rows > kTileRows) configure(rows);
  }
}

}  // namespace

void gemm_bf16_dot_amx(const GemmTile& t) {
  constexpr int kGroupRows = 2 * kTileRows;
  int configured = 0;
  for (int row = 0; row < t.rows; row += kGroupRows) {
    const int rows = t.rows - row < kGroupRows ? t.rows - row : kGroupRows;
    if (rows != configured) configure(rows);
    configured = rows;
    row_group(t, row, rows);
  }
  _tile_release();
}

}  // namespace warpweave
#endif
