// The kernels of kernels.h over lanes.h. A tier's file defines WW_LANES and includes this; the packing functions
// and the Multiply of its packed units are its own, or those for f32 below.
#pragma once

#include "attention/cpu_tiles/kernels.h"
#include "attention/cpu_tiles/lanes.h"

namespace warpweave::cpu_tiles {
namespace {

inline float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

// Formats of few bits: sign, exponent and fraction moved to where f32 has them, and the difference
// of the exponents' biases multiplied in; subnormals come out right. `limit`: from here on NaN.
inline float small_float(uint32_t sign, uint32_t magnitude, float unbias, uint32_t limit) {
  const uint32_t bits = from_bits(magnitude) >= from_bits(limit) ? 0x7fc00000u : 0;
  const float value = from_bits(magnitude) * unbias;
  uint32_t out;
  memcpy(&out, &value, 4);
  return from_bits(out | bits | sign);
}
inline float e4m3_value(uint8_t code) {
  return small_float((code & 0x80u) << 24, (code & 0x7fu) << 20, 0x1p120f, 0x7fu << 20);
}
inline float e5m2_value(uint8_t code) {
  return small_float((code & 0x80u) << 24, (code & 0x7fu) << 21, 0x1p112f, 0x7cu << 21);
}
inline float half_value(uint16_t code) {
  return small_float((code & 0x8000u) << 16, (code & 0x7fffu) << 13, 0x1p112f, 0x7c00u << 13);
}

inline void widen_fp4(const uint8_t* src, const uint8_t* scales, int count, float* out) {
  static const float kValues[16] = {0,  0.5f,  1,  1.5f,  2,  3,  4,  6,
                                    -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  for (int i = 0; i < count; i += 16) {
    const float scale = e4m3_value(scales[i / 16]);
    const int n = count - i < 16 ? count - i : 16;
    for (int j = 0; j < n; ++j) {
      const uint8_t pair = src[(i + j) / 2];
      out[i + j] = kValues[(i + j) % 2 ? pair >> 4 : pair & 15] * scale;
    }
  }
}

// One token's row as f32, zeros up to padded_dim; all zeros for a token that is not read.
inline void widen_row(const BlockRows& block, int token, float* out) {
  int done = 0;
  if (token >= block.first && token < block.end) {
    const char* const row = block.rows[token];
    const int dim = done = block.dim;
    switch (block.element) {
      case Element::f32: memcpy(out, row, sizeof(float) * dim); break;
      case Element::bf16: {
        const uint16_t* src = reinterpret_cast<const uint16_t*>(row);
        for (int i = 0; i < dim; ++i) out[i] = from_bits(static_cast<uint32_t>(src[i]) << 16);
        break;
      }
      case Element::f16: {
        const uint16_t* src = reinterpret_cast<const uint16_t*>(row);
        for (int i = 0; i < dim; ++i) out[i] = half_value(src[i]);
        break;
      }
      case Element::fp8_e4m3: {
        const uint8_t* src = reinterpret_cast<const uint8_t*>(row);
        for (int i = 0; i < dim; ++i) out[i] = e4m3_value(src[i]);
        break;
      }
      case Element::fp8_e5m2: {
        const uint8_t* src = reinterpret_cast<const uint8_t*>(row);
        for (int i = 0; i < dim; ++i) out[i] = e5m2_value(src[i]);
        break;
      }
      case Element::fp4_e2m1:
        widen_fp4(reinterpret_cast<const uint8_t*>(row), block.block_scales[token], dim, out);
        break;
    }
  }
  memset(out + done, 0, sizeof(float) * (block.padded_dim - done));
}

// kLanes x kLanes units: each stage interleaves rows i and i + kLanes / 2.
inline void transpose(Units* rows) {
  Units other[kLanes];
#pragma GCC unroll 4
  for (int stage = 1; stage < kLanes; stage *= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      other[2 * i] = interleave_low(rows[i], rows[i + kLanes / 2]);
      other[2 * i + 1] = interleave_high(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = other[i];
  }
}

// [kBlockTokens][units] to [units][kBlockTokens].
inline void transpose_block(const uint32_t* from, int units, uint32_t* to) {
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    for (int u = 0; u < units; u += kLanes) {
      Units rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        rows[i] = (Units)load_ints(from + static_cast<int64_t>(t + i) * units + u);
      }
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store_ints(to + (u + i) * kBlockTokens + t, (Ints)rows[i]);
    }
  }
}

inline void pack_q_f32(const float* q, int dim, int padded_dim, uint32_t* out) {
  float* to = reinterpret_cast<float*>(out);
  for (int i = 0; i < dim; ++i) to[i] = q[i];
  for (int i = dim; i < padded_dim; ++i) to[i] = 0;
}

inline void pack_k_f32(const BlockRows& block, float* scratch, uint32_t* out) {
  for (int t = 0; t < kBlockTokens; ++t) {
    widen_row(block, t, scratch + static_cast<int64_t>(t) * block.padded_dim);
  }
  transpose_block(reinterpret_cast<const uint32_t*>(scratch), block.padded_dim, out);
}

inline void pack_v_f32(const BlockRows& block, float*, uint32_t* out) {
  for (int t = 0; t < kBlockTokens; ++t) {
    widen_row(block, t, reinterpret_cast<float*>(out) + static_cast<int64_t>(t) * block.padded_dim);
  }
}

struct MultiplyFloats {
  static Floats broadcast(const uint32_t* unit) { return spread(from_bits(*unit)); }
  static Floats mac(Floats a, Floats b, Floats c) { return a * b + c; }
};

template <typename Multiply, int R, int C>
void gemm_tile(const GemmArgs& g, int row, int col) {
  Floats acc[R][C];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      acc[r][c] = g.row_scale ? load(g.c + static_cast<int64_t>(row + r) * g.ldc + col + c * kLanes) *
                                    g.row_scale[row + r]
                              : Floats{};
    }
  }
  const uint32_t* a = g.a + static_cast<int64_t>(row) * g.lda;
  const uint32_t* b = g.b + col;
  for (int k = 0; k < g.k; ++k, b += g.ldb) {
    Floats column[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) column[c] = load(b + c * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const Floats unit = Multiply::broadcast(a + static_cast<int64_t>(r) * g.lda + k);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[r][c] = Multiply::mac(unit, column[c], acc[r][c]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      store(g.c + static_cast<int64_t>(row + r) * g.ldc + col + c * kLanes, acc[r][c]);
    }
  }
}

template <typename Multiply, int C>
void gemm_columns(const GemmArgs& g, int col) {
  int row = 0;
  for (; row + 6 <= g.m; row += 6) gemm_tile<Multiply, 6, C>(g, row, col);
  switch (g.m - row) {
    case 5: gemm_tile<Multiply, 5, C>(g, row, col); break;
    case 4: gemm_tile<Multiply, 4, C>(g, row, col); break;
    case 3: gemm_tile<Multiply, 3, C>(g, row, col); break;
    case 2: gemm_tile<Multiply, 2, C>(g, row, col); break;
    case 1: gemm_tile<Multiply, 1, C>(g, row, col); break;
    default: break;
  }
}

// kColumns vectors of columns at a time: what the registers hold beside 6 rows.
template <typename Multiply, int kColumns>
void gemm(const GemmArgs& g) {
  int col = 0;
  for (; col + kColumns * kLanes <= g.n; col += kColumns * kLanes) {
    gemm_columns<Multiply, kColumns>(g, col);
  }
  for (; col < g.n; col += kLanes) gemm_columns<Multiply, 1>(g, col);
}

template <void (*kStorePairs)(const float*, uint32_t*)>
void softmax(const SoftmaxArgs& args) {
  for (int row = 0; row < args.rows; ++row) {
    float* s = args.s + static_cast<int64_t>(row) * kBlockTokens;
    Floats top = load(s);
    for (int c = kLanes; c < kBlockTokens; c += kLanes) top = larger(load(s + c), top);
    const float block_max = largest_lane(top), old_max = args.m[row];
    if (block_max == kNegativeInfinity) {  // nothing visible here: also avoids inf - inf
      for (int c = 0; c < kBlockTokens; c += kLanes) store(s + c, Floats{});
      args.rescale[row] = 1;
    } else {
      const float new_max = block_max > old_max ? block_max : old_max;
      Floats sum{};
      for (int c = 0; c < kBlockTokens; c += kLanes) {
        const Floats e = exp_lanes(load(s + c) - new_max);
        sum += e;
        store(s + c, e);
      }
      const float rescale =
          old_max == kNegativeInfinity ? 0.0f : exp_lanes(spread(old_max - new_max))[0];
      args.rescale[row] = rescale;
      args.l[row] = args.l[row] * rescale + sum_lanes(sum);
      args.m[row] = new_max;
    }
    if constexpr (kStorePairs != nullptr) {
      kStorePairs(s, args.p + static_cast<int64_t>(row) * (kBlockTokens / 2));
    }
  }
}

inline void scale(float* s, int count, float factor) {
  for (int i = 0; i < count; i += kLanes) store(s + i, load(s + i) * factor);
}

inline void softcap(float* s, int count, float cap) {
  const float inverse = 1 / cap;
  for (int i = 0; i < count; i += kLanes) store(s + i, tanh_lanes(load(s + i) * inverse) * cap);
}

}  // namespace
}  // namespace warpweave::cpu_tiles
