// The matrix kernels of one tier, written on simd16.h. A tier's .cc includes this file once.
//
// Register tile: kRows x kPanels accumulators; per k one load per panel and one broadcast per row.
// The weights stream through once per row group, so a prefetch runs ahead of each panel.
#pragma once

#include "ops/kernels/linear_kernels.h"
#include "ops/kernels/quant_panel.h"
#include "ops/kernels/simd16.h"

namespace {

using namespace warpweave;

#if defined(__AVX512F__)
constexpr int kTierRows = 8, kTierPanels = 4, kTierAccumulators = 24;
#elif defined(__AVX2__)
constexpr int kTierRows = 6, kTierPanels = 1, kTierAccumulators = 6;
#else
constexpr int kTierRows = 2, kTierPanels = 1, kTierAccumulators = 2;
#endif
constexpr int kPrefetchBytes = 1024;

// How a weight type is read: kStepK values of k per step of kStepBytes per panel.
struct WeightsF32 {
  static constexpr int kStepK = 1, kStepBytes = 64;
  WW_INLINE void load(const unsigned char* p, Vec* out) {
    out[0] = vload(reinterpret_cast<const float*>(p));
  }
};
struct WeightsBf16 {
  static constexpr int kStepK = 2, kStepBytes = 64;
  WW_INLINE void load(const unsigned char* p, Vec* out) {
    const IVec pairs = iload(p);
    out[0] = vfrom_bits(ishl<16>(pairs));
    out[1] = vfrom_bits(iand(pairs, iset1(static_cast<int32_t>(0xffff0000))));
  }
};
struct WeightsF16 {
  static constexpr int kStepK = 1, kStepBytes = 32;
  WW_INLINE void load(const unsigned char* p, Vec* out) {
    out[0] = vload_half(reinterpret_cast<const uint16_t*>(p));
  }
};

template <class Weights, int kRows, int kPanels>
void register_tile(const GemmTile& t, int first_row, int first_panel) {
  const float* x[kRows];
  const unsigned char* w[kPanels];
  Vec acc[kRows][kPanels];
  float* const acc_out = t.acc + first_row * t.acc_stride + first_panel * kPanelCols;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    x[r] = static_cast<const float*>(t.x) + (first_row + r) * t.x_stride;
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      acc[r][p] = t.load_acc ? vload(acc_out + r * t.acc_stride + p * kPanelCols) : vzero();
    }
  }
#pragma GCC unroll 16
  for (int p = 0; p < kPanels; ++p) w[p] = t.weights + (first_panel + p) * t.panel_bytes;
  const auto step = [&](int64_t k, int count) __attribute__((always_inline)) {
    Vec b[kPanels][Weights::kStepK];
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      const unsigned char* at = w[p] + k / Weights::kStepK * Weights::kStepBytes;
      prefetch(at + kPrefetchBytes);
      Weights::load(at, b[p]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Vec broadcast = vset1(x[r][k + i]);
#pragma GCC unroll 16
        for (int p = 0; p < kPanels; ++p) acc[r][p] = vfma(broadcast, b[p][i], acc[r][p]);
      }
    }
  };
  int64_t k = 0;
  for (; k + Weights::kStepK <= t.k; k += Weights::kStepK) step(k, Weights::kStepK);
  if (k < t.k) step(k, 1);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int p = 0; p < kPanels; ++p) {
      vstore(acc_out + r * t.acc_stride + p * kPanelCols, acc[r][p]);
    }
  }
}

template <class Weights, int kRows>
void row_group(const GemmTile& t, int first_row) {
  constexpr int kFit = kTierAccumulators / kRows;
  constexpr int kWide = kFit < kTierPanels ? kFit : kTierPanels;
  int p = 0;
  for (; p + kWide <= t.panels; p += kWide) register_tile<Weights, kRows, kWide>(t, first_row, p);
  if constexpr (kWide > 2) {
    if (p + 2 <= t.panels) {
      register_tile<Weights, kRows, 2>(t, first_row, p);
      p += 2;
    }
  }
  if constexpr (kWide > 1) {
    if (p < t.panels) register_tile<Weights, kRows, 1>(t, first_row, p);
  }
}

template <class Weights>
void gemm_tile(const GemmTile& t) {
  // Up to kTierRows rows share one pass over the weights; more rows go in equal groups of <= 6,
  // which leaves registers for four panels.
  constexpr int kGroup = kTierRows < 6 ? kTierRows : 6;
  const int groups = t.rows <= kTierRows ? 1 : (t.rows + kGroup - 1) / kGroup;
  for (int g = 0, row = 0; g < groups; ++g) {
    const int rows = (t.rows - row + groups - g - 1) / (groups - g);
    switch (rows) {
      case 1: row_group<Weights, 1>(t, row); break;
      case 2: row_group<Weights, 2>(t, row); break;
      default: if constexpr (kTierRows > 2) {
        switch (rows) {
          case 3: row_group<Weights, 3>(t, row); break;
          case 4: row_group<Weights, 4>(t, row); break;
          case 5: row_group<Weights, 5>(t, row); break;
          case 6: row_group<Weights, 6>(t, row); break;
          default: if constexpr (kTierRows > 6) {
            if (rows == 7) row_group<Weights, 7>(t, row);
            if (rows == 8) row_group<Weights, 8>(t, row);
          }
        }
      }
    }
    row += rows;
  }
}

WW_INLINE Vec apply_glu(GluActivation glu, Vec gate, Vec up) {
  switch (glu) {
    case GluActivation::silu: return vmul(vsilu(gate), up);
    case GluActivation::gelu_tanh: return vmul(vgelu_tanh(gate), up);
    case GluActivation::gelu: return vmul(vgelu(gate), up);
    case GluActivation::swiglu_oai: return vswiglu_oai(gate, up);
    case GluActivation::none: break;
  }
  return gate;
}

WW_INLINE void store_output(const FinishTile& t, int64_t at, Vec v, int cols) {
  if (t.y_is_bf16) {
    uint16_t* y = static_cast<uint16_t*>(t.y) + at;
    if (cols == kPanelCols) {
      vstore_bf16(y, v);
    } else {
      uint16_t lanes[kPanelCols];
      vstore_bf16(lanes, v);
      for (int i = 0; i < cols; ++i) y[i] = lanes[i];
    }
    return;
  }
  float* y = static_cast<float*>(t.y) + at;
  if (cols == kPanelCols) {
    vstore(y, t.accumulate ? vadd(vload(y), v) : v);
  } else {
    vstore_first(y, t.accumulate ? vadd(vload_first(y, cols, 0.0f), v) : v, cols);
  }
}

// Rows seldom improve, so the common case is four loads, four maxima and one test.
WW_INLINE void learn_best(const FinishTile& t, int row) {
  const float* y = static_cast<const float*>(t.y) + row * t.y_stride;
  const float lowest = -__builtin_inff();
  Vec top = vset1(t.best[row].value);
  for (int col = 0; col < t.cols; col += kPanelCols) {
    const int cols = t.cols - col;
    const Vec v = cols < kPanelCols ? vload_first(y + col, cols, lowest) : vload(y + col);
    top = vmax(v, top);  // a NaN on the left gives the right
  }
  const float value = vreduce_max(top);
  RowBest& best = t.best[row];
  if (!(value > best.value) && !(value == best.value && t.first_col < best.column)) return;
  int col = 0;
  while (col < t.cols && y[col] != value) ++col;
  if (col < t.cols) best = {value, t.first_col + col};
}

WW_INLINE Vec load_columns(const float* x, int cols) {
  return cols == kPanelCols ? vload(x) : vload_first(x, cols, 0.0f);
}

void finish_tile(const FinishTile& t) {
  const int sources = t.glu == GluActivation::none ? 1 : 2;  // panels read per panel written
  for (int r = 0; r < t.rows; ++r) {
    const float* acc = t.acc + r * t.acc_stride;
    const float* addend = t.addend && t.addend_rows[r] >= 0 ? t.addend + t.addend_rows[r] * t.addend_stride : nullptr;
    for (int col = 0; col < t.cols; col += kPanelCols) {
      const int from = col * sources;
      const int cols = t.cols - col < kPanelCols ? t.cols - col : kPanelCols;
      Vec v = vload(acc + from);
      if (t.bias) v = vadd(v, vload(t.bias + from));
      if (addend) v = vadd(v, load_columns(addend + col, cols));
      if (sources == 2) {
        Vec up = vload(acc + from + kPanelCols);
        if (t.bias) up = vadd(up, vload(t.bias + from + kPanelCols));
        if (addend) up = vadd(up, load_columns(addend + t.addend_up + col, cols));
        v = apply_glu(t.glu, v, up);
      }
      store_output(t, r * t.y_stride + col, v, cols);
    }
    if (t.best) learn_best(t, r);
  }
}

// Writers of a dequantised panel; `k` counts from the range's start.
struct WriteF32 {
  WW_INLINE void put(void* out, int k, Vec even, Vec odd) {
    float* at = static_cast<float*>(out) + k * kPanelCols;
    vstore(at, even);
    vstore(at + kPanelCols, odd);
  }
};
struct WriteBf16 {
  // To nearest even; dequantised weights are finite.
  WW_INLINE void put(void* out, int k, Vec even, Vec odd) {
    const IVec low = vbits(even), high = vbits(odd);
    const IVec half = iset1(0x7fff), one = iset1(1);
    const IVec low_rounded = iadd(low, iadd(half, iand(ishr<16>(low), one)));
    const IVec high_rounded = iadd(high, iadd(half, iand(ishr<16>(high), one)));
    istore(static_cast<uint16_t*>(out) + k * kPanelCols,
           ior(ishr<16>(low_rounded),
               iand(high_rounded, iset1(static_cast<int32_t>(0xffff0000)))));
  }
};

// Bits of every row's word from kShift on, without those outside `mask`.
template <int kShift>
WW_INLINE IVec bits_at(IVec word, int32_t mask) {
  if constexpr (kShift == 0) return iand(word, iset1(mask));
  return iand(ishr<kShift>(word), iset1(mask));
}

// 32 nibble codes from word `codes` on, w = scale * code + offset.
template <class Write>
WW_INLINE void put_nibbles(const PanelWord* codes, Vec scale, Vec offset, void* out, int k) {
  const auto value = [&](IVec code) __attribute__((always_inline)) { return vfma(scale, vto_float(code), offset); };
  for (int j = 0; j < 4; ++j, k += 8) {
    const IVec word = iload(codes[j]);
    Write::put(out, k, value(bits_at<0>(word, 15)), value(bits_at<8>(word, 15)));
    Write::put(out, k + 2, value(bits_at<16>(word, 15)), value(bits_at<24>(word, 15)));
    Write::put(out, k + 4, value(bits_at<4>(word, 15)), value(bits_at<12>(word, 15)));
    Write::put(out, k + 6, value(bits_at<20>(word, 15)), value(bits_at<28>(word, 15)));
  }
}

// Four codes, the bytes of a word: w = scale * (code - 128).
template <class Write>
WW_INLINE void put_bytes(IVec word, Vec scale, void* out, int k) {
  const auto value = [&](IVec code) __attribute__((always_inline)) {
    return vmul(scale, vto_float(isub(code, iset1(128))));
  };
  Write::put(out, k, value(bits_at<0>(word, 255)), value(bits_at<8>(word, 255)));
  Write::put(out, k + 2, value(bits_at<16>(word, 255)), value(bits_at<24>(word, 255)));
}

template <class Write>
void dequantize_q8_0(const unsigned char* panel, int64_t k_begin, int k_count, void* out) {
  const PanelQ8_0* block = reinterpret_cast<const PanelQ8_0*>(panel) + k_begin / 32;
  for (int k = 0; k < k_count; k += 32, ++block) {
    const Vec d = vload_half(block->d);
    for (int j = 0; j < 8; ++j) put_bytes<Write>(iload(block->codes[j]), d, out, k + 4 * j);
  }
}

// 32 codes of iq4 from word `codes` on.
template <class Write>
WW_INLINE void put_iq4(const PanelWord* codes, Vec scale, void* out, int k) {
  const IVec low = iset1(0x0f0f0f0f);
  for (int j = 0; j < 4; ++j, k += 8) {
    const IVec both = iload(codes[j]);
    put_bytes<Write>(ilookup(kIQ4Bytes, iand(both, low)), scale, out, k);
    put_bytes<Write>(ilookup(kIQ4Bytes, iand(ishr<4>(both), low)), scale, out, k + 4);
  }
}

template <class Write>
void dequantize_iq4_nl(const unsigned char* panel, int64_t k_begin, int k_count, void* out) {
  const PanelIQ4NL* block = reinterpret_cast<const PanelIQ4NL*>(panel) + k_begin / 32;
  for (int k = 0; k < k_count; k += 32, ++block) put_iq4<Write>(block->codes, vload_half(block->d), out, k);
}

template <class Write>
void dequantize_iq4_xs(const unsigned char* panel, int64_t k_begin, int k_count, void* out) {
  const PanelIQ4XS* block = reinterpret_cast<const PanelIQ4XS*>(panel) + k_begin / 256;
  for (int k = 0; k < k_count; k += 256, ++block) {
    const Vec d = vload_half(block->d);
    for (int g = 0; g < 8; ++g) {
      put_iq4<Write>(block->codes + g * 4, vmul(d, vto_float(iload_i8(block->scales[g]))), out, k + g * 32);
    }
  }
}

template <class Write>
void dequantize_q4_0(const unsigned char* panel, int64_t k_begin, int k_count, void* out) {
  const PanelQ4_0* block = reinterpret_cast<const PanelQ4_0*>(panel) + k_begin / 32;
  for (int k = 0; k < k_count; k += 32, ++block) {
    const Vec d = vload_half(block->d);
    put_nibbles<Write>(block->codes, d, vmul(d, vset1(-8.0f)), out, k);
  }
}

template <class Write>
void dequantize_q4_1(const unsigned char* panel, int64_t k_begin, int k_count, void* out) {
  const PanelQ4_1* block = reinterpret_cast<const PanelQ4_1*>(panel) + k_begin / 32;
  for (int k = 0; k < k_count; k += 32, ++block) {
    put_nibbles<Write>(block->codes, vload_half(block->d), vload_half(block->m), out, k);
  }
}

template <class Write>
void dequantize_q4_k(const unsigned char* panel, int64_t k_begin, int k_count, void* out) {
  const PanelQ4K* block = reinterpret_cast<const PanelQ4K*>(panel) + k_begin / 256;
  for (int k = 0; k < k_count; k += 256, ++block) {
    const Vec d = vload_half(block->d), dmin = vload_half(block->dmin);
    for (int g = 0; g < 8; ++g) {
      const Vec scale = vmul(d, vto_float(iload_u8(block->scales[g])));
      const Vec min = vmul(dmin, vto_float(iload_u8(block->mins[g])));
      put_nibbles<Write>(block->codes + g * 4, scale, vsub(vzero(), min), out, k + g * 32);
    }
  }
}

// What a code of some formats stands for: scale * code + offset.
struct Affine {
  Vec scale, offset;
};

// Eight codes of q5_k: nibbles of `low`, their top bits at kTop of every byte of `high`, then at kTop + 1.
template <class Write, int kTop>
WW_INLINE void put_q5(IVec low, IVec high, Affine to_value, void* out, int k) {
  const auto value = [&](IVec nibble, IVec top) __attribute__((always_inline)) {
    return vfma(to_value.scale, vto_float(ior(nibble, ishl<4>(top))), to_value.offset);
  };
  Write::put(out, k, value(bits_at<0>(low, 15), bits_at<kTop>(high, 1)),
             value(bits_at<8>(low, 15), bits_at<8 + kTop>(high, 1)));
  Write::put(out, k + 2, value(bits_at<16>(low, 15), bits_at<16 + kTop>(high, 1)),
             value(bits_at<24>(low, 15), bits_at<24 + kTop>(high, 1)));
  Write::put(out, k + 4, value(bits_at<4>(low, 15), bits_at<kTop + 1>(high, 1)),
             value(bits_at<12>(low, 15), bits_at<9 + kTop>(high, 1)));
  Write::put(out, k + 6, value(bits_at<20>(low, 15), bits_at<17 + kTop>(high, 1)),
             value(bits_at<28>(low, 15), bits_at<25 + kTop>(high, 1)));
}

template <class Write>
void dequantize_q5_k(const unsigned char* panel, int64_t k_begin, int k_count, void* out) {
  const PanelQ5K* block = reinterpret_cast<const PanelQ5K*>(panel) + k_begin / 256;
  for (int k = 0; k < k_count; k += 256, ++block) {
    const Vec d = vload_half(block->d), dmin = vload_half(block->dmin);
    for (int g = 0; g < 8; ++g) {
      const Affine to_value = {vmul(d, vto_float(iload_u8(block->scales[g]))),
                               vsub(vzero(), vmul(dmin, vto_float(iload_u8(block->mins[g]))))};
      const IVec high = iload(block->high[g]);
      const PanelWord* const low = block->codes + g * 4;
      put_q5<Write, 0>(iload(low[0]), high, to_value, out, k + g * 32);
      put_q5<Write, 2>(iload(low[1]), high, to_value, out, k + g * 32 + 8);
      put_q5<Write, 4>(iload(low[2]), high, to_value, out, k + g * 32 + 16);
      put_q5<Write, 6>(iload(low[3]), high, to_value, out, k + g * 32 + 24);
    }
  }
}

// Four codes of q6_k: byte b's nibble is at bit 8b + kNibble of `low`, its top two bits at 8b + kTop of `high`.
template <class Write, int kNibble, int kTop>
WW_INLINE void put_q6(IVec low, IVec high, Vec scale, void* out, int k) {
  const auto value = [&](IVec nibble, IVec top) __attribute__((always_inline)) {
    return vmul(scale, vto_float(isub(ior(nibble, ishl<4>(top)), iset1(32))));
  };
  Write::put(out, k, value(bits_at<kNibble>(low, 15), bits_at<kTop>(high, 3)),
             value(bits_at<8 + kNibble>(low, 15), bits_at<8 + kTop>(high, 3)));
  Write::put(out, k + 2, value(bits_at<16 + kNibble>(low, 15), bits_at<16 + kTop>(high, 3)),
             value(bits_at<24 + kNibble>(low, 15), bits_at<24 + kTop>(high, 3)));
}

template <class Write>
void dequantize_q6_k(const unsigned char* panel, int64_t k_begin, int k_count, void* out) {
  const PanelQ6K* block = reinterpret_cast<const PanelQ6K*>(panel) + k_begin / 256;
  for (int k = 0; k < k_count; k += 256, ++block) {
    const Vec d = vload_half(block->d);
    for (int j = 0; j < 16; ++j) {  // sixteen values of k
      const Vec scale = vmul(d, vto_float(iload_i8(block->scales[j])));
      const IVec first = iload(block->low[2 * j]), second = iload(block->low[2 * j + 1]), high = iload(block->high[j]);
      put_q6<Write, 0, 0>(first, high, scale, out, k + 16 * j);
      put_q6<Write, 4, 2>(first, high, scale, out, k + 16 * j + 4);
      put_q6<Write, 0, 4>(second, high, scale, out, k + 16 * j + 8);
      put_q6<Write, 4, 6>(second, high, scale, out, k + 16 * j + 12);
    }
  }
}

template <class Write>
constexpr DequantizeKernels dequantize_kernels() {
  return {dequantize_q8_0<Write>, dequantize_q4_0<Write>, dequantize_q4_1<Write>,   dequantize_q4_k<Write>,
          dequantize_q5_k<Write>, dequantize_q6_k<Write>, dequantize_iq4_nl<Write>, dequantize_iq4_xs<Write>};
}

constexpr LinearKernels linear_kernels(GemmTileFn bf16_dot, const Int8Kernels* int8, int tile_panels = kTierPanels) {
  return {gemm_tile<WeightsF32>, gemm_tile<WeightsBf16>, gemm_tile<WeightsF16>, bf16_dot,
          finish_tile, dequantize_kernels<WriteF32>(), dequantize_kernels<WriteBf16>(),
          tile_panels, int8};
}

}  // namespace
