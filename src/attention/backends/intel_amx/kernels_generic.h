// The kernels of kernels.h written once over a vector type V. Each tier's file defines its V (lane
// arithmetic, exp, transposition) in an unnamed namespace, so that every tier keeps its own copy of
// these templates. Mac says how two packed units are multiplied: f32, or a pair of bf16.
#pragma once

#include <stdint.h>
#include <string.h>

#include "attention/backends/intel_amx/kernels.h"

namespace warpweave::intel_amx {
namespace {

constexpr float kNegativeInfinity = -__builtin_huge_valf();

inline int element_bytes(Element element) { return element == Element::f32 ? 4 : 2; }

inline int padded_tokens(int count) {
  return (count + kTokenPadding - 1) / kTokenPadding * kTokenPadding;
}

inline const char* row_of(const BlockRows& block, int token) {
  return block.rows[token] + block.head_offset;
}

inline void prefetch_row(Prefetch& prefetch) {
  if (prefetch.list > 1) return;
  const Prefetch::Rows& rows = prefetch.rows[prefetch.list];
  const char* row = rows.tokens[prefetch.token] + rows.head_offset;
  for (int i = 0; i < rows.bytes; i += 64) __builtin_prefetch(row + i, 0, 2);
  if (++prefetch.token >= prefetch.count) {
    prefetch.token = 0;
    ++prefetch.list;
  }
}

// V::kWidth elements of a row as f32 from element d on; zeros past the row's or the block's end.
template <typename V>
V load_row(const BlockRows& block, int token, int d) {
  if (token >= block.count || d >= block.dim) return V::zero();
  const char* src = row_of(block, token) + d * element_bytes(block.element);
  if (d + V::kWidth <= block.dim) return V::load_as(block.element, src);
  alignas(64) char copy[V::kWidth * 4] = {};
  memcpy(copy, src, static_cast<size_t>(block.dim - d) * element_bytes(block.element));
  return V::load_as(block.element, copy);
}

template <typename V>
void pack_query_f32(const QueryArgs& args) {
  float* out = reinterpret_cast<float*>(args.out);
  for (int i = 0; i < args.dim; ++i) out[i] = args.src[i] * args.scale;
  for (int i = args.dim; i < args.padded_dim; ++i) out[i] = 0;
}

// How f32 operands are read: one unit is one element, one token.
template <typename V>
struct LoadF32 {
  static constexpr int kElementsPerUnit = 1;
  static constexpr int kValueVectors = 1;  // vectors that one load of V rows fills
  static int units(const BlockRows& block) { return block.padded_dim; }
  static V k_units(const BlockRows& block, int token, int unit) {
    return load_row<V>(block, token, unit);
  }
  static void v_units(const BlockRows& block, int token, int d, V* out) {
    out[0] = load_row<V>(block, token, d);
  }
};

// Transposes kWidth tokens x kWidth units at a time.
template <typename V, typename Load>
void pack_k(const BlockRows& block, uint32_t* packed) {
  constexpr int W = V::kWidth;
  float* out = reinterpret_cast<float*>(packed);
  const int tokens = padded_tokens(block.count), units = Load::units(block);
  for (int t = 0; t < tokens; t += W) {
    for (int u = 0; u < units; u += W) {
      prefetch_row(*block.prefetch);
      prefetch_row(*block.prefetch);
      V rows[W];
      for (int i = 0; i < W; ++i) rows[i] = Load::k_units(block, t + i, u);
      V::transpose(rows);
      for (int i = 0; i < W; ++i) V::store(out + (u + i) * kBlockTokens + t, rows[i]);
    }
  }
}

template <typename V, typename Load>
void pack_v(const BlockRows& block, uint32_t* packed) {
  constexpr int W = V::kWidth, N = Load::kValueVectors;
  float* out = reinterpret_cast<float*>(packed);
  const int units = padded_tokens(block.count) / Load::kElementsPerUnit;
  for (int t = 0; t < units; ++t, out += block.padded_dim) {
    prefetch_row(*block.prefetch);
    for (int d = 0; d < block.padded_dim; d += N * W) {
      V row[N];
      Load::v_units(block, t, d, row);
      for (int i = 0; i < N; ++i) V::store(out + d + i * W, row[i]);
    }
  }
}

template <typename V, typename Mac, int R, int C>
void gemm_tile(const GemmArgs& g, int row, int col) {
  constexpr int W = V::kWidth;
  V acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      acc[r][c] = g.row_scale ? V::load(g.c + (row + r) * g.ldc + col + c * W) *
                                    V::set1(g.row_scale[row + r])
                              : V::zero();
    }
  }
  const uint32_t* a = g.a + row * g.lda;
  const float* b = reinterpret_cast<const float*>(g.b) + col;
  for (int k = 0; k < g.k; ++k, b += g.ldb) {
    if (k % 2 == 0) prefetch_row(*g.prefetch);
    V column[C];
    for (int c = 0; c < C; ++c) column[c] = V::load(b + c * W);
    for (int r = 0; r < R; ++r) {
      const V unit = Mac::broadcast(a + r * g.lda + k);
      for (int c = 0; c < C; ++c) acc[r][c] = Mac::mac(unit, column[c], acc[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) V::store(g.c + (row + r) * g.ldc + col + c * W, acc[r][c]);
  }
}

template <typename V, typename Mac, int C>
void gemm_columns(const GemmArgs& g, int col) {
  int row = 0;
  for (; row + 6 <= g.m; row += 6) gemm_tile<V, Mac, 6, C>(g, row, col);
  switch (g.m - row) {
    case 5: gemm_tile<V, Mac, 5, C>(g, row, col); break;
    case 4: gemm_tile<V, Mac, 4, C>(g, row, col); break;
    case 3: gemm_tile<V, Mac, 3, C>(g, row, col); break;
    case 2: gemm_tile<V, Mac, 2, C>(g, row, col); break;
    case 1: gemm_tile<V, Mac, 1, C>(g, row, col); break;
    default: break;
  }
}

// kMaxColumns vectors of columns at a time: what the tier's registers hold beside 6 rows.
template <typename V, typename Mac, int kMaxColumns>
void gemm(const GemmArgs& g) {
  constexpr int W = V::kWidth;
  int col = 0;
  for (; col + kMaxColumns * W <= g.n; col += kMaxColumns * W) {
    gemm_columns<V, Mac, kMaxColumns>(g, col);
  }
  if constexpr (kMaxColumns > 2) {
    for (; col + 2 * W <= g.n; col += 2 * W) gemm_columns<V, Mac, 2>(g, col);
  }
  for (; col + W <= g.n; col += W) gemm_columns<V, Mac, 1>(g, col);
}

// cap * tanh(s / cap). Near 0 an odd polynomial, else 1 - 2 / (exp(2y) + 1): both keep the relative
// error near one ulp, where the exponential form alone would lose digits for small s.
template <typename V>
V soft_cap(V s, V cap, V inverse_cap) {
  const V y = s * inverse_cap;
  const V a = V::abs(y);
  const V z = y * y;
  V poly = V::set1(-5.70498872745e-3f);
  poly = V::fma(poly, z, V::set1(2.06390887954e-2f));
  poly = V::fma(poly, z, V::set1(-5.37397155531e-2f));
  poly = V::fma(poly, z, V::set1(1.33314422036e-1f));
  poly = V::fma(poly, z, V::set1(-3.33332819422e-1f));
  const V small = V::fma(poly * z, y, y);
  const V limit = V::set1(20);  // tanh is 1 there, and exp stays finite
  const V bounded = V::select_less(a, limit, a, limit);
  const V e = V::exp(bounded + bounded);
  const V large = V::copysign(V::set1(1) - V::set1(2) / (e + V::set1(1)), y);
  return V::select_less(a, V::set1(0.625f), small, large) * cap;
}

// Caps and masks one row in place; returns its maximum.
template <typename V>
float prepare_row(const SoftmaxArgs& args, int row) {
  constexpr int W = V::kWidth;
  float* s = args.s + row * kBlockTokens;
  if (args.softcap > 0) {
    const V cap = V::set1(args.softcap), inverse_cap = V::set1(1 / args.softcap);
    for (int c = 0; c < args.cols; c += W) V::store(s + c, soft_cap(V::load(s + c), cap, inverse_cap));
  }
  const int first = args.first[row], last = args.last[row];
  for (int c = 0; c < first && c < args.cols; ++c) s[c] = kNegativeInfinity;
  for (int c = last > 0 ? last : 0; c < args.cols; ++c) s[c] = kNegativeInfinity;
  V top = V::load(s);
  for (int c = W; c < args.cols; c += W) top = V::max(top, V::load(s + c));
  return V::reduce_max(top);
}

// StorePairs: void(const float* s, uint32_t* p, int cols), or null when p is not wanted.
template <typename V>
void softmax(const SoftmaxArgs& args, void (*store_pairs)(const float*, uint32_t*, int)) {
  constexpr int W = V::kWidth;
  for (int row = 0; row < args.rows; ++row) {
    float* s = args.s + row * kBlockTokens;
    const float block_max = prepare_row<V>(args, row);
    const float old_max = args.m[row];
    const float new_max = block_max > old_max ? block_max : old_max;
    if (block_max == kNegativeInfinity) {
      // Nothing visible here; also keeps -inf - -inf out of exp.
      for (int c = 0; c < args.cols; c += W) V::store(s + c, V::zero());
      args.rescale[row] = 1;
    } else {
      const V offset = V::set1(new_max);
      V sum = V::zero();
      for (int c = 0; c < args.cols; c += W) {
        const V e = V::exp(V::load(s + c) - offset);
        sum = sum + e;
        V::store(s + c, e);
      }
      const float rescale =
          old_max == kNegativeInfinity ? 0.0f : V::first(V::exp(V::set1(old_max) - offset));
      args.rescale[row] = rescale;
      args.l[row] = args.l[row] * rescale + V::reduce_add(sum);
      args.m[row] = new_max;
    }
    if (store_pairs) store_pairs(s, args.p + row * (kBlockTokens / 2), args.cols);
  }
}

template <typename V>
void merge(const MergeArgs& args) {
  constexpr int W = V::kWidth;
  for (int row = 0; row < args.rows; ++row) {
    const float m = args.m[row], total_m = args.total_m[row];
    if (m == kNegativeInfinity) continue;
    const float top = m > total_m ? m : total_m;
    const float from_chunk = V::first(V::exp(V::set1(m) - V::set1(top)));
    const float from_total = total_m == kNegativeInfinity
                                 ? 0.0f
                                 : V::first(V::exp(V::set1(total_m) - V::set1(top)));
    args.total_m[row] = top;
    args.total_l[row] = args.total_l[row] * from_total + args.l[row] * from_chunk;
    float* total_o = args.total_o + row * args.v_dim;
    const float* o = args.o + row * args.v_dim;
    for (int d = 0; d < args.v_dim; d += W) {
      V::store(total_o + d,
               V::fma(V::load(o + d), V::set1(from_chunk), V::load(total_o + d) * V::set1(from_total)));
    }
  }
}

inline void finish_row(const FinishArgs& args) {
  for (int d = 0; d < args.v_dim; ++d) args.out[d] = args.o[d] * args.scale;
}

inline void no_thread_state() {}

}  // namespace
}  // namespace warpweave::intel_amx
