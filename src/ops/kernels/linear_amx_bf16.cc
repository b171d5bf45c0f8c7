// bf16 x bf16 GEMMs on AMX tiles: up to 32 rows x 2 panels, or 16 rows x 4 panels, of C stay in
// tile registers while 32 values of k go by per step. One row runs through the same instruction,
// so a row's bits do not depend on how many rows there are.
//
// Rows of x are often a power of two apart, where all of them compete for a few places of the cache; so a range of 32
// rows is copied to where its tiles lie one behind the other, if enough panels meet it.
#if defined(__x86_64__)
#include <immintrin.h>

#include "device/cpu/amx_tile_config.h"
#include "ops/kernels/linear_kernels.h"

namespace warpweave {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileK = 32;            // bf16 values in one tile row of 64 bytes
constexpr int kStepBytes = kTileK * 32;  // of one panel
constexpr int kGroupRows = 2 * kTileRows;
constexpr int kCopiedK = 512;         // of x: 32 KB with the rows of a group
constexpr int kCopiedPanels = 4;      // fewer do not pay for the copy

// Where the tiles of a group's rows are. `step` elements lie from one range of 32 values of k to the next.
struct RowTiles {
  const uint16_t* first;
  const uint16_t* second;               // rows 16 to 31
  int64_t row_bytes;
  int64_t step;
};

// [k / 32][rows][32]
RowTiles copy_rows(const GemmTile& t, int row, int rows, uint16_t* out) {
  const uint16_t* x = static_cast<const uint16_t*>(t.x) + row * t.x_stride;
  const int64_t step = int64_t{kTileK} * rows;
  for (int r = 0; r < rows; ++r, x += t.x_stride) {
    for (int k = 0; k < t.k; k += kTileK) {
      _mm512_store_si512(out + k / kTileK * step + r * kTileK, _mm512_loadu_si512(x + k));
    }
  }
  __asm__ volatile("" ::: "memory");  // g++ does not know that tile loads read this and may drop the stores
  return {.first = out, .second = out + kTileRows * kTileK, .row_bytes = 64, .step = step};
}

RowTiles rows_in_place(const GemmTile& t, int row) {
  const uint16_t* const x = static_cast<const uint16_t*>(t.x) + row * t.x_stride;
  return {.first = x, .second = x + kTileRows * t.x_stride, .row_bytes = t.x_stride * 2, .step = kTileK};
}

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
  // g++ takes the instruction for a reader of 8 bytes and may drop the stores of the others.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

#define WW_LOAD_C(tile, at) \
  if (t.load_acc) _tile_loadd(tile, at, acc_bytes); else _tile_zero(tile)

// 17..32 rows x 2 panels.
void two_row_blocks(const GemmTile& t, const RowTiles& x, const unsigned char* w, float* acc) {
  const int64_t acc_bytes = t.acc_stride * 4;
  float* const acc_second = acc + kTileRows * t.acc_stride;
  const uint16_t *first = x.first, *second = x.second;
  WW_LOAD_C(0, acc);
  WW_LOAD_C(1, acc + kPanelCols);
  WW_LOAD_C(2, acc_second);
  WW_LOAD_C(3, acc_second + kPanelCols);
  for (int k = 0; k < t.k; k += kTileK, w += kStepBytes, first += x.step, second += x.step) {
    _tile_loadd(6, w, 64);
    _tile_loadd(4, first, x.row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + t.panel_bytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, second, x.row_bytes);
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

void panel_by_panel(const GemmTile& t, int row, int rows, int first_panel) {
  const uint16_t* const x = static_cast<const uint16_t*>(t.x) + row * t.x_stride;
  float* const acc = t.acc + row * t.acc_stride;
  for (int p = first_panel; p < t.panels; ++p) {
    for (int first = 0; first < rows; first += kTileRows) {
      const int count = rows - first < kTileRows ? rows - first : kTileRows;
      if (rows > kTileRows) configure(count);
      one_panel(t, x + first * t.x_stride, t.weights + p * t.panel_bytes, acc + first * t.acc_stride + p * kPanelCols);
    }
    if (rows > kTileRows) configure(rows);
  }
}

void row_group(const GemmTile& t, int row, int rows) {
  float* const acc = t.acc + row * t.acc_stride;
  int p = 0;
  if (rows > kTileRows) {
    alignas(64) uint16_t copy[kGroupRows * kCopiedK];
    const bool copies = t.k <= kCopiedK && t.panels >= kCopiedPanels;
    const RowTiles x = copies ? copy_rows(t, row, rows, copy) : rows_in_place(t, row);
    for (; p + 2 <= t.panels; p += 2) two_row_blocks(t, x, t.weights + p * t.panel_bytes, acc + p * kPanelCols);
  } else {
    const uint16_t* const x = static_cast<const uint16_t*>(t.x) + row * t.x_stride;
    for (; p + 4 <= t.panels; p += 4) four_panels(t, x, t.weights + p * t.panel_bytes, acc + p * kPanelCols);
  }
  panel_by_panel(t, row, rows, p);
}

}  // namespace

void gemm_bf16_dot_amx(const GemmTile& t) {
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
