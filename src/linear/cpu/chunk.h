// GEMMs and triangular solves of the chunk form. Included by kernels_<tier>.cc once.
#pragma once

#include "linear/cpu/rows.h"

namespace {

// Rows of a tile: 6 where there are as many, since all sums, a row of columns and a factor then fill the registers
// (AVX-512 24 + 4 + 1 of 32, AVX2 12 + 2 + 1 of 16); 4 for the rest.
constexpr int kWideRows = 6;
constexpr int kTileRows = 4;
#if defined(__AVX512F__)
constexpr int kTileVecs = 4;
#else
constexpr int kTileVecs = 1;
#endif

WW_INLINE int min_of(int a, int b) { return a < b ? a : b; }

// c[row .. row + kRows, col .. col + 16 kVecs]
template <int kRows, int kVecs>
WW_INLINE void gemm_tile(const LinearGemm& p, int row, int col) {
  Vec sums[kRows][kVecs];
  float* c = p.c + row * p.c_row + col;
  for (int r = 0; r < kRows; ++r) {
    const Vec scale = vset1(p.scale_c != nullptr ? p.scale_c[row + r] : 1.0f);
    for (int v = 0; v < kVecs; ++v) {
      sums[r][v] = p.keep_c ? vmul(vload(c + r * p.c_row + v * kLanes), scale) : vzero();
    }
  }
  const int depth = p.lower_a ? min_of(p.depth, row + kRows) : p.depth;
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + col;
  for (int k = 0; k < depth; ++k, a += p.a_depth, b += p.b_row) {
    Vec columns[kVecs];
    for (int v = 0; v < kVecs; ++v) columns[v] = vload(b + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const Vec factor = vset1(a[r * p.a_row]);
      for (int v = 0; v < kVecs; ++v) sums[r][v] = vfma(factor, columns[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) vstore(c + r * p.c_row + v * kLanes, sums[r][v]);
  }
}

template <int kVecs>
WW_INLINE void gemm_columns(const LinearGemm& p, int col) {
  // The first row that reaches this column, when only the lower triangle is wanted.
  int row = p.lower_c ? col : 0;
  while (row < p.rows) {
    // Rows are a multiple of 4: sixes until the rest is 0, 4 or 8.
    const int left = p.rows - row;
    if (left % kWideRows == 0 || left > 2 * kTileRows) {
      gemm_tile<kWideRows, kVecs>(p, row, col);
      row += kWideRows;
    } else {
      gemm_tile<kTileRows, kVecs>(p, row, col);
      row += kTileRows;
    }
  }
}

void gemm(const LinearGemm& p) {
  for (int col = 0; col < p.cols;) {
    const bool wide = col + kTileVecs * kLanes <= p.cols;
    wide ? gemm_columns<kTileVecs>(p, col) : gemm_columns<1>(p, col);
    col += wide ? kTileVecs * kLanes : kLanes;
  }
}

// Four rows of u at once: what earlier rows give, then the triangle among the four.
template <int kVecs>
WW_INLINE void solve_tile(const float* minus_a, int64_t a_row, int row, float* u, int64_t u_row) {
  Vec sums[kTileRows][kVecs];
  for (int r = 0; r < kTileRows; ++r) {
    for (int v = 0; v < kVecs; ++v) sums[r][v] = vload(u + (row + r) * u_row + v * kLanes);
  }
  const float* a = minus_a + row * a_row;
  for (int k = 0; k < row; ++k) {
    Vec columns[kVecs];
    for (int v = 0; v < kVecs; ++v) columns[v] = vload(u + k * u_row + v * kLanes);
    for (int r = 0; r < kTileRows; ++r) {
      const Vec factor = vset1(a[r * a_row + k]);
      for (int v = 0; v < kVecs; ++v) sums[r][v] = vfma(factor, columns[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    for (int before = 0; before < r; ++before) {
      const Vec factor = vset1(a[r * a_row + row + before]);
      for (int v = 0; v < kVecs; ++v) sums[r][v] = vfma(factor, sums[before][v], sums[r][v]);
    }
    for (int v = 0; v < kVecs; ++v) vstore(u + (row + r) * u_row + v * kLanes, sums[r][v]);
  }
}

void solve(const float* minus_a, int64_t a_row, const LinearMatrix& u) {
  for (int col = 0; col < u.cols;) {
    const bool wide = col + kTileVecs * kLanes <= u.cols;
    for (int row = 0; row < u.rows; row += kTileRows) {
      wide ? solve_tile<kTileVecs>(minus_a, a_row, row, u.x + col, u.stride)
           : solve_tile<1>(minus_a, a_row, row, u.x + col, u.stride);
    }
    col += wide ? kTileVecs * kLanes : kLanes;
  }
}

void remainder(const float* v, const float* beta, const float* scale_x, const LinearMatrix& to) {
  float* x = to.x;
  for (int i = 0; i < to.rows; ++i, v += to.stride, x += to.stride) {
    const Vec by = vset1(beta[i]), minus = vset1(scale_x != nullptr ? -scale_x[i] : -1.0f);
    for (int c = 0; c < to.cols; c += kLanes) vstore(x + c, vmul(by, vfma(minus, vload(x + c), vload(v + c))));
  }
}

// Blocks of 16 x 16 through the cache: the compiler's shuffles do the rest.
void transpose(const LinearMatrix& from, float* out, int64_t out_stride) {
  for (int r = 0; r < from.rows; r += kLanes) {
    for (int c = 0; c < from.cols; c += kLanes) {
      const float* const x = from.x + r * from.stride + c;
      for (int i = 0; i < kLanes; ++i) {
        for (int j = 0; j < kLanes; ++j) out[(c + i) * out_stride + r + j] = x[j * from.stride + i];
      }
    }
  }
}

void scalar_pairs(const LinearScalarPairs& s) {
  for (int i = 0; i < s.rows; ++i) {
    float* weights = s.weights + i * s.stride;
    float* minus_a = s.minus_a + i * s.stride;
    float* p = s.p + i * s.stride;
    const int width = (s.rows + kLanes - 1) / kLanes * kLanes;
    for (int j = 0; j < width; ++j) weights[j] = minus_a[j] = p[j] = 0.0f;
    s.since_start[i] = 0.0f;
    if (i >= s.tokens) continue;
    const int parent = s.parents != nullptr ? s.parents[i] : i - 1;
    const float decay = s.decay[i];
    // Products of decays, each at most 1: nothing here can overflow.
    if (parent >= 0) scale(s.weights + parent * s.stride, decay, width, weights);
    s.since_start[i] = parent >= 0 ? s.since_start[parent] * decay : decay;
    const Vec minus_beta = vset1(-s.beta[i]);
    for (int j = 0; j < width && j <= i; j += kLanes) {
      const Vec w = vload(weights + j);
      vstore(minus_a + j, vmul(minus_beta, vmul(w, vload(s.kk + i * s.stride + j))));
      vstore(p + j, vmul(w, vload(s.qk + i * s.stride + j)));
    }
    weights[i] = 1.0f;
    p[i] = s.qk[i * s.stride + i];
  }
}

void channel_pairs(const LinearChannelPairs& s) {
  alignas(64) float kw[256], qw[256];
  for (int i = s.first; i < s.end; ++i) {
    const float* k = s.k + i * s.stride;
    const float* q = s.q + i * s.stride;
    s.p[i * s.pair_stride + i] = dot(q, k, s.k_dim);
    for (int c = 0; c < s.k_dim; c += kLanes) {
      vstore(kw + c, vload(k + c));
      vstore(qw + c, vload(q + c));
    }
    // Up the path of parents; k_i and q_i gather the decay of every node that they leave.
    for (int at = i;;) {
      const float* decay = s.decay + at * s.stride;
      at = s.parents != nullptr ? s.parents[at] : at - 1;
      if (at < s.first) break;
      const float* other = s.k + at * s.stride;
      Vec kk = vzero(), qk = vzero();
      for (int c = 0; c < s.k_dim; c += kLanes) {
        const Vec a = vload(decay + c), there = vload(other + c);
        const Vec kc = vmul(vload(kw + c), a), qc = vmul(vload(qw + c), a);
        vstore(kw + c, kc);
        vstore(qw + c, qc);
        kk = vfma(kc, there, kk);
        qk = vfma(qc, there, qk);
      }
      s.minus_a[i * s.pair_stride + at] = -s.beta[i] * vreduce_add(kk);
      s.p[i * s.pair_stride + at] = vreduce_add(qk);
    }
  }
}

}  // namespace
