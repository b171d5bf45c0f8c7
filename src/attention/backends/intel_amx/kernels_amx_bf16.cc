// AMX: the two matrix products in 16 x 16 tiles of TDPBF16PS, everything else as AVX512-BF16.
// Tiles 0-3 accumulate, 4-5 hold rows (a), 6-7 columns (b). All tiles are full 16 x 64 bytes: row
// buffers are padded to kRowPadding, tokens to kTokenPadding and head dims to kHeadDimPadding.
#include "attention/backends/intel_amx/pack_bf16.h"

namespace warpweave::intel_amx {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

constexpr TileConfig kTileConfig;

void load_tile_config() { _tile_loadconfig(&kTileConfig); }

void release_tiles() { _tile_release(); }

void scale_rows(const GemmArgs& g) {
  for (int row = 0; row < g.m; ++row) {
    const __m512 scale = _mm512_set1_ps(g.row_scale[row]);
    float* c = g.c + row * g.ldc;
    for (int i = 0; i < g.n; i += 16) {
      _mm512_storeu_ps(c + i, _mm512_mul_ps(_mm512_loadu_ps(c + i), scale));
    }
  }
}

// 32 rows x 32 columns: two loads of each operand feed four products.
void gemm_2x2(const GemmArgs& g, int row, int col) {
  float* c = g.c + row * g.ldc + col;
  const int c_bytes = g.ldc * 4, a_bytes = g.lda * 4, b_bytes = g.ldb * 4;
  if (g.row_scale) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
    _tile_loadd(2, c + 16 * g.ldc, c_bytes);
    _tile_loadd(3, c + 16 * g.ldc + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int k = 0; k < g.k; k += 16) {
    const uint32_t* a = g.a + row * g.lda + k;
    const uint32_t* b = g.b + k * g.ldb + col;
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_loadd(7, b + 16, b_bytes);
    _tile_loadd(5, a + 16 * g.lda, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
  _tile_stored(2, c + 16 * g.ldc, c_bytes);
  _tile_stored(3, c + 16 * g.ldc + 16, c_bytes);
}

// 16 rows x 32 columns, for the last rows.
void gemm_1x2(const GemmArgs& g, int row, int col) {
  float* c = g.c + row * g.ldc + col;
  const int c_bytes = g.ldc * 4, a_bytes = g.lda * 4, b_bytes = g.ldb * 4;
  if (g.row_scale) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  for (int k = 0; k < g.k; k += 16) {
    const uint32_t* b = g.b + k * g.ldb + col;
    _tile_loadd(4, g.a + row * g.lda + k, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_loadd(7, b + 16, b_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
}

void gemm_tiles(const GemmArgs& g) {
  if (g.row_scale) scale_rows(g);
  for (int col = 0; col < g.n; col += 32) {
    int row = 0;
    for (; row + 16 < g.m; row += 32) gemm_2x2(g, row, col);
    if (row < g.m) gemm_1x2(g, row, col);
  }
}

}  // namespace

const KernelSet kAmxBf16Kernels = {
    "amx_bf16",
    true,
    16,
    pack_query_pairs,
    pack_k<Vec, LoadPairs>,
    pack_v<Vec, LoadPairs>,
    gemm_tiles,
    softmax_pairs,
    merge<Vec>,
    finish_row,
    load_tile_config,
    release_tiles};

}  // namespace warpweave::intel_amx
