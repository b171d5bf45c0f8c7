// bf16 x bf16 GEMMs with vdpbf16ps: two values of k per instruction and lane.
#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include <algorithm>

#include "ops/kernels/linear_kernels.h"

namespace warpweave {
namespace {

constexpr int kPairBytes = 64;  // of a panel: two values of k of each column
// Ahead, into L2: into L1 panels come from memory slower than without, for few lines can be under way there. Of 1 to
// 9 KiB 2 are the best from memory, and no worse than others from L3 (docs/tuning-history.md).
constexpr int kPrefetchBytes = 2048;

inline __attribute__((always_inline)) __m512bh broadcast_pair(const uint16_t* p) {
  int32_t pair;
  memcpy(&pair, p, sizeof pair);
  return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

template <int kRows, int kPanels>
void register_tile(const GemmTile& t, int first_row, int first_panel) {
  const uint16_t* x[kRows];
  const unsigned char* w[kPanels];
  __m512 acc[kRows][kPanels];
  float* const acc_out = t.acc + first_row * t.acc_stride + first_panel * kPanelCols;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    x[r] = static_cast<const uint16_t*>(t.x) + (first_row + r) * t.x_stride;
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      acc[r][p] = t.load_acc ? _mm512_loadu_ps(acc_out + r * t.acc_stride + p * kPanelCols)
                             : _mm512_setzero_ps();
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p) w[p] = t.weights + (first_panel + p) * t.panel_bytes;
  const auto add = [&](int64_t from, int64_t to, int64_t prefetch_at) __attribute__((always_inline)) {
    for (int64_t k = from; k < to; k += 2) {
      __m512bh b[kPanels];
#pragma GCC unroll 16
      for (int p = 0; p < kPanels; ++p) {
        const unsigned char* at = w[p] + k * kPairBytes / 2;
        _mm_prefetch(reinterpret_cast<const char*>(at + prefetch_at), _MM_HINT_T1);
        b[p] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(at));
        asm("" : "+v"(b[p]));  // else g++ 12 loads it anew for every row where 3 x 4 sums are kept
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const __m512bh broadcast = broadcast_pair(x[r] + k);
#pragma GCC unroll 16
        for (int p = 0; p < kPanels; ++p) acc[r][p] = _mm512_dpbf16_ps(acc[r][p], broadcast, b[p]);
      }
    }
  };
  // What comes behind the end of a panel is another one of this tile; the panels that come next begin behind the tile.
  const int64_t behind = std::max<int64_t>(0, t.k - kPrefetchBytes * 2 / kPairBytes);
  add(0, behind, kPrefetchBytes);
  add(behind, t.k, kPrefetchBytes + (kPanels - 1) * t.panel_bytes);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      _mm512_storeu_ps(acc_out + r * t.acc_stride + p * kPanelCols, acc[r][p]);
    }
  }
}

template <int kRows>
void row_group(const GemmTile& t, int first_row) {
  constexpr int kWide = kRows > 6 ? 3 : 4;
  int p = 0;
  for (; p + kWide <= t.panels; p += kWide) register_tile<kRows, kWide>(t, first_row, p);
  if (p + 2 <= t.panels) {
    register_tile<kRows, 2>(t, first_row, p);
    p += 2;
  }
  if (p < t.panels) register_tile<kRows, 1>(t, first_row, p);
}

}  // namespace

void gemm_bf16_dot_avx512(const GemmTile& t) {
  const int groups = t.rows <= 8 ? 1 : (t.rows + 5) / 6;
  for (int g = 0, row = 0; g < groups; ++g) {
    const int rows = (t.rows - row + groups - g - 1) / (groups - g);
    switch (rows) {
      case 1: row_group<1>(t, row); break;
      case 2: row_group<2>(t, row); break;
      case 3: row_group<3>(t, row); break;
      case 4: row_group<4>(t, row); break;
      case 5: row_group<5>(t, row); break;
      case 6: row_group<6>(t, row); break;
      case 7: row_group<7>(t, row); break;
      case 8: row_group<8>(t, row); break;
    }
    row += rows;
  }
}

}  // namespace warpweave
#endif
