// The kernels of kernels.h written once over a vector type V and a loader of pool elements. Each
// tier's file defines its V (lane arithmetic, transposition) in an unnamed namespace, so that every
// tier keeps its own copy of these templates. Mac says how two packed units are multiplied: f32, or a
// pair of bf16.
//
// A loader reads what a row stores and widens it to units; with kFull it need not look where the row or
// the block ends.
//   k_words<kFull>(block, token, unit, words)   32-bit words of kWidth tokens, transposed: words[i] holds
//                                        each token's word i, which is kUnitsPerWord units; i < kWords
//   K(block, token, unit)                a decoder of such words
//   .expand(word, i, out)                its kUnitsPerWord units, in order
//   v_units<kFull>(block, unit, d, out)  kUnitRows rows of units x kVectors vectors of columns
#pragma once

#include <stdint.h>
#include <string.h>

#include "attention/backends/intel_amx/kernels.h"
#include "attention/backends/intel_amx/softmax_generic.h"

namespace warpweave::intel_amx {
namespace {

inline const char* row_of(const BlockRows& block, int token) {
  return block.rows[token] + block.head_offset;
}

inline const uint8_t* scales_of(const BlockRows& block, int token) {
  return block.scale_rows[token] + block.scale_head_offset;
}

// To the next token that has lines to fetch.
[[gnu::noinline]] inline void next_prefetch_token(Prefetch& prefetch) {
  if (prefetch.token == prefetch.count) {
    prefetch.token = 0;
    if (++prefetch.list == 2) return;
  }
  const int list = prefetch.list;
  prefetch.at = prefetch.tokens[list][prefetch.token++] + prefetch.offset[list];
  prefetch.end = prefetch.at + prefetch.bytes[list];
}

inline void prefetch_step(Prefetch& prefetch) {
  for (int lines = prefetch.lines_per_step; lines > 0; --lines) {
    if (prefetch.at >= prefetch.end) {
      if (prefetch.list == 2) return;
      next_prefetch_token(prefetch);
      if (prefetch.list == 2) return;
    }
    __builtin_prefetch(prefetch.at, 0, 2);
    prefetch.at += 64;
  }
}

// Whether k_words of `tokens` tokens from `token` on, all units, may be called with kFull.
template <typename Load>
bool full_words(const BlockRows& block, int token, int tokens) {
  constexpr int kElements = Load::kWords * Load::kUnitsPerWord * Load::kElementsPerUnit;
  return token + tokens <= block.count && block.dim == block.padded_dim && block.dim % kElements == 0;
}

template <typename V, typename Load, bool kFull>
void pack_k(const BlockRows& block, uint32_t* packed, Prefetch& prefetch) {
  constexpr int W = V::kWidth, N = Load::kUnitsPerWord;
  float* out = reinterpret_cast<float*>(packed);
  const int tokens = padded_tokens(block.count), units = block.padded_dim / Load::kElementsPerUnit;
  for (int t = 0; t < tokens; t += W) {
    for (int u = 0; u < units; u += Load::kWords * N) {
      if (u % 16 == 0) prefetch_step(prefetch);
      V words[Load::kWords];
      Load::template k_words<kFull>(block, t, u, words);
      const typename Load::K decoder(block, t, u);
#pragma GCC unroll 16
      for (int i = 0; i < Load::kWords; ++i) {
        if (u + i * N >= units) break;
        V unit[N];
        decoder.expand(words[i], i, unit);
        for (int j = 0; j < N; ++j) V::store(out + (u + i * N + j) * kBlockTokens + t, unit[j]);
      }
    }
  }
}

template <typename V, typename Load>
void pack_k(const BlockRows& block, uint32_t* packed, Prefetch& prefetch) {
  if (full_words<Load>(block, 0, kBlockTokens)) {
    pack_k<V, Load, true>(block, packed, prefetch);
  } else {
    pack_k<V, Load, false>(block, packed, prefetch);
  }
}

// Whether v_units of all columns of this block may be called with kFull.
template <typename V, typename Load>
bool full_values(const BlockRows& block) {
  return block.count == kBlockTokens && block.dim == block.padded_dim &&
         block.dim % (Load::kVectors * V::kWidth) == 0;
}

template <typename V, typename Load, bool kFull>
void pack_v(const BlockRows& block, uint32_t* packed, Prefetch& prefetch) {
  constexpr int W = V::kWidth, R = Load::kUnitRows, C = Load::kVectors;
  float* out = reinterpret_cast<float*>(packed);
  const int units = padded_tokens(block.count) / Load::kElementsPerUnit;
  for (int u = 0; u < units; u += R) {
    prefetch_step(prefetch);
    for (int d = 0; d < block.padded_dim; d += C * W) {
      V unit[R][C];
      Load::template v_units<kFull>(block, u, d, unit);
      for (int r = 0; r < R; ++r) {
        for (int c = 0; c < C; ++c) V::store(out + (u + r) * block.padded_dim + d + c * W, unit[r][c]);
      }
    }
  }
}

template <typename V, typename Load>
void pack_v(const BlockRows& block, uint32_t* packed, Prefetch& prefetch) {
  if (full_values<V, Load>(block)) {
    pack_v<V, Load, true>(block, packed, prefetch);
  } else {
    pack_v<V, Load, false>(block, packed, prefetch);
  }
}

// c[m][n] += a[m][k] * b[k][n], k in units; with row_scale c is multiplied by it first. Without
// `add` c is not read.
struct GemmArgs {
  const uint32_t* a;
  int lda;
  const uint32_t* b;
  int ldb;
  float* c;
  int ldc;
  int m, n, k;
  bool add;
  const float* row_scale;
};

template <typename V, typename Mac, int R, int C>
void gemm_tile(const GemmArgs& g, int row, int col) {
  constexpr int W = V::kWidth;
  V acc[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      acc[r][c] = g.add ? V::load(g.c + (row + r) * g.ldc + col + c * W) : V::zero();
      if (g.row_scale) acc[r][c] = acc[r][c] * V::set1(g.row_scale[row + r]);
    }
  }
  const uint32_t* a = g.a + row * g.lda;
  const float* b = reinterpret_cast<const float*>(g.b) + col;
  for (int k = 0; k < g.k; ++k, b += g.ldb) {
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

// Block by block: scores, softmax, weighted values.
template <typename V, typename Mac, int kMaxColumns, bool kPairs>
void attend(const AttendArgs& args) {
  for (int b = 0; b < args.num_blocks; ++b) {
    const BlockView& block = args.blocks[b];
    const int cols = padded_tokens(block.count);
    const uint32_t* k = args.k + static_cast<int64_t>(b) * args.depth * kBlockTokens;
    const uint32_t* v = args.v + static_cast<int64_t>(b) * args.v_block;
    prefetch_step(*args.prefetch);
    gemm<V, Mac, kMaxColumns>({args.q, args.depth, k, kBlockTokens, args.s, kBlockTokens, args.rows,
                               cols, args.depth, false, nullptr});
    const bool rescale = softmax_rows<V, kPairs>(
        softmax_args(args, block, args.s, args.p, args.rescale), 0, args.rows);
    const uint32_t* p = kPairs ? args.p : reinterpret_cast<const uint32_t*>(args.s);
    const int lda = kPairs ? kBlockTokens / 2 : kBlockTokens;
    gemm<V, Mac, kMaxColumns>({p, lda, v, args.v_dim, args.state.o, args.v_dim, args.rows, args.v_dim,
                               kPairs ? cols / 2 : cols, true, rescale ? args.rescale : nullptr});
  }
}

template <typename V>
void finish_row(const FinishArgs& args) {
  const float* const o = args.o;
  float* const out = args.out;
  const V scale = V::set1(args.scale);
  int d = 0;
  for (; d + V::kWidth <= args.v_dim; d += V::kWidth) V::store(out + d, V::load(o + d) * scale);
  for (; d < args.v_dim; ++d) out[d] = o[d] * args.scale;
}

inline void no_thread_state() {}

// f32 operands: one unit is one element, one token.
template <typename V, Element E>
struct LoadF32 {
  static constexpr int kElementsPerUnit = 1, kUnitsPerWord = 1, kUnitRows = 1, kVectors = 1;
  static constexpr int kWords = V::kWidth;

  // kWidth elements from d on as f32; zeros past the row's or the block's end.
  template <bool kFull>
  static V load(const BlockRows& block, int token, int d) {
    constexpr int kBits = E == Element::f32 ? 32 : E == Element::bf16 || E == Element::f16 ? 16
                          : E == Element::fp4_e2m1 ? 4 : 8;
    if (!kFull && (token >= block.count || d >= block.dim)) return V::zero();
    const uint8_t* scales = E == Element::fp4_e2m1 ? scales_of(block, token) + d / 16 : nullptr;
    const char* src = row_of(block, token) + d * kBits / 8;
    if (kFull || d + V::kWidth <= block.dim) return V::template load_as<E>(src, scales);
    alignas(64) char copy[V::kWidth * 4] = {};
    memcpy(copy, src, static_cast<size_t>(block.dim - d) * kBits / 8);
    return V::template load_as<E>(copy, scales);
  }
  template <bool kFull>
  static void k_words(const BlockRows& block, int token, int unit, V* words) {
    for (int i = 0; i < V::kWidth; ++i) words[i] = load<kFull>(block, token + i, unit);
    V::transpose(words);
  }
  struct K {
    K(const BlockRows&, int, int) {}
    void expand(V word, int, V* out) const { out[0] = word; }
  };
  template <bool kFull>
  static void v_units(const BlockRows& block, int token, int d, V (*out)[1]) {
    out[0][0] = load<kFull>(block, token, d);
  }
};

template <typename V>
struct MacF32 {
  static V broadcast(const uint32_t* unit) {
    float x;
    memcpy(&x, unit, 4);
    return V::set1(x);
  }
  static V mac(V a, V b, V c) { return V::fma(a, b, c); }
};

inline void pack_query_f32(const QueryArgs& args) {
  float* out = reinterpret_cast<float*>(args.out);
  for (int i = 0; i < args.dim; ++i) out[i] = args.src[i];
  for (int i = args.dim; i < args.padded_dim; ++i) out[i] = 0;
}

template <typename V>
void pack_k_f32(const BlockRows& block, uint32_t* out, Prefetch& prefetch) {
  switch (block.element) {
    case Element::f32: return pack_k<V, LoadF32<V, Element::f32>>(block, out, prefetch);
    case Element::bf16: return pack_k<V, LoadF32<V, Element::bf16>>(block, out, prefetch);
    case Element::f16: return pack_k<V, LoadF32<V, Element::f16>>(block, out, prefetch);
    case Element::fp8_e4m3: return pack_k<V, LoadF32<V, Element::fp8_e4m3>>(block, out, prefetch);
    case Element::fp8_e5m2: return pack_k<V, LoadF32<V, Element::fp8_e5m2>>(block, out, prefetch);
    case Element::fp4_e2m1: return pack_k<V, LoadF32<V, Element::fp4_e2m1>>(block, out, prefetch);
  }
}

template <typename V>
void pack_v_f32(const BlockRows& block, uint32_t* out, Prefetch& prefetch) {
  switch (block.element) {
    case Element::f32: return pack_v<V, LoadF32<V, Element::f32>>(block, out, prefetch);
    case Element::bf16: return pack_v<V, LoadF32<V, Element::bf16>>(block, out, prefetch);
    case Element::f16: return pack_v<V, LoadF32<V, Element::f16>>(block, out, prefetch);
    case Element::fp8_e4m3: return pack_v<V, LoadF32<V, Element::fp8_e4m3>>(block, out, prefetch);
    case Element::fp8_e5m2: return pack_v<V, LoadF32<V, Element::fp8_e5m2>>(block, out, prefetch);
    case Element::fp4_e2m1: return pack_v<V, LoadF32<V, Element::fp4_e2m1>>(block, out, prefetch);
  }
}

// The whole set of a tier that computes in f32.
template <typename V, int kMaxColumns>
constexpr KernelSet f32_kernels(const char* name) {
  KernelSet set{};
  set.name = name;
  set.group_rows = 24;
  set.tile_rows = 240;
  set.row_padding = 1;
  set.pack_query = pack_query_f32;
  set.pack_k = pack_k_f32<V>;
  set.pack_v = pack_v_f32<V>;
  set.attend = attend<V, MacF32<V>, kMaxColumns, false>;
  set.sum_lanes = sum_lanes<V>;
  set.merge = merge<V>;
  set.finish = finish_row<V>;
  set.enter = no_thread_state;
  set.leave = no_thread_state;
  return set;
}

}  // namespace
}  // namespace warpweave::intel_amx
