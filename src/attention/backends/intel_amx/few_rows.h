// Attention of a few rows straight from the pages: K is transposed and V paired in registers and
// multiplied there, so nothing is packed. The operations on each element, and their order, are those
// of packing and attend(). Over V, Mac and Load as described in kernels_generic.h.
#pragma once

#include "attention/backends/intel_amx/kernels_generic.h"

namespace warpweave::intel_amx {
namespace {

// Queries' units, rows `depth` units apart.
struct QueryUnits {
  const uint32_t* q;
  int depth;
};

// acc[r] += the units of the words [0, count) times those of row r.
template <typename V, typename Mac, typename Load, int R>
[[gnu::always_inline]] inline void mac_words(const typename Load::K& decoder, const V* words, int count,
                                             QueryUnits rows, V* acc) {
  constexpr int N = Load::kUnitsPerWord;
  constexpr bool kPartial = Load::kWords * N > kHeadDimPadding / Load::kElementsPerUnit;
#pragma GCC unroll 8
  for (int i = 0; i < Load::kWords; ++i) {
    if (kPartial && i >= count) break;
    V unit[N];
    decoder.expand(words[i], i, unit);
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        acc[r] = Mac::mac(Mac::broadcast(rows.q + r * rows.depth + i * N + j), unit[j], acc[r]);
      }
    }
  }
}

// Scores of R rows against G groups of kWidth tokens from `token` on: several, because a row's sum
// over a group is one chain of dependent instructions.
template <typename V, typename Mac, typename Load, int R, int G, bool kFull>
void few_scores(const FewRowsArgs& args, int token) {
  constexpr int W = V::kWidth, kUnits = Load::kWords * Load::kUnitsPerWord;
  const AttendArgs& attend = *args.attend;
  const int units = attend.depth;
  V acc[G][R];
  for (int g = 0; g < G; ++g) {
    for (int r = 0; r < R; ++r) acc[g][r] = V::zero();
  }
  // Two steps of a group before the next one's: each cache line is then read in one go, where tokens
  // a power of two apart would push each other out of L1.
  for (int u = 0; u < units; u += 2 * kUnits) {
#pragma GCC unroll 2
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        prefetch_step(*attend.prefetch);
        const int unit = u + h * kUnits, left = (units - unit) / Load::kUnitsPerWord;
        if (left <= 0) break;
        V words[Load::kWords];
        Load::template k_words<kFull>(args.k, token + g * W, unit, words);
        const typename Load::K decoder(args.k, token + g * W, unit);
        prefetch_step(*attend.prefetch);
        mac_words<V, Mac, Load, R>(decoder, words, left, {attend.q + unit, units}, acc[g]);
      }
    }
  }
  for (int g = 0; g < G; ++g) {
    for (int r = 0; r < R; ++r) V::store(attend.s + r * kBlockTokens + token + g * W, acc[g][r]);
  }
}

// o += p * v of R rows from `row` on.
template <typename V, typename Mac, typename Load, int R, bool kFull>
void few_values(const FewRowsArgs& args, int row, bool rescale) {
  constexpr int W = V::kWidth, U = Load::kUnitRows, C = Load::kVectors;
  const AttendArgs& attend = *args.attend;
  const int units = padded_tokens(args.v.count) / Load::kElementsPerUnit;
  const uint32_t* p = attend.p + row * (kBlockTokens / Load::kElementsPerUnit);
  for (int d = 0; d < attend.v_dim; d += C * W) {
    float* o = attend.state.o + row * attend.v_dim + d;
    V acc[R][C];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) {
        acc[r][c] = V::load(o + r * attend.v_dim + c * W);
        if (rescale) acc[r][c] = acc[r][c] * V::set1(attend.rescale[row + r]);
      }
    }
    for (int u = 0; u < units; u += U) {
      if (u % 2 == 0) prefetch_step(*attend.prefetch);
      V unit[U][C];
      Load::template v_units<kFull>(args.v, u, d, unit);
      for (int i = 0; i < U; ++i) {
        for (int r = 0; r < R; ++r) {
          const V weight = Mac::broadcast(p + r * (kBlockTokens / Load::kElementsPerUnit) + u + i);
          for (int c = 0; c < C; ++c) acc[r][c] = Mac::mac(weight, unit[i][c], acc[r][c]);
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) V::store(o + r * attend.v_dim + c * W, acc[r][c]);
    }
  }
}

template <typename V, typename Mac, typename Load, int R>
void few_values(const FewRowsArgs& args, int row, bool rescale) {
  if (full_values<V, Load>(args.v)) {
    few_values<V, Mac, Load, R, true>(args, row, rescale);
  } else {
    few_values<V, Mac, Load, R, false>(args, row, rescale);
  }
}

template <typename V, typename Mac, typename Load, int R>
void few_rows(const FewRowsArgs& args) {
  constexpr int G = R <= 4 ? 2 : 1;
  constexpr int kValueRows = Load::kVectors > 2 ? 4 : kFewRows;
  const AttendArgs& attend = *args.attend;
  for (int t = 0; t < padded_tokens(args.k.count); t += G * V::kWidth) {
    if (full_words<Load>(args.k, t, G * V::kWidth)) {
      few_scores<V, Mac, Load, R, G, true>(args, t);
    } else {
      few_scores<V, Mac, Load, R, G, false>(args, t);
    }
  }
  const bool rescale = softmax_rows<V, true>(
      softmax_args(attend, attend.blocks[0], attend.s, attend.p, attend.rescale), 0, R);
  constexpr int kWholeGroups = R / kValueRows, kLeft = R % kValueRows;
  for (int g = 0; g < kWholeGroups; ++g) few_values<V, Mac, Load, kValueRows>(args, g * kValueRows, rescale);
  if constexpr (kLeft > 0) few_values<V, Mac, Load, kLeft>(args, kWholeGroups * kValueRows, rescale);
}

template <typename V, typename Mac, typename Load>
void few_rows_of(const FewRowsArgs& args) {
  static constexpr void (*kByRows[kFewRows])(const FewRowsArgs&) = {
      few_rows<V, Mac, Load, 1>, few_rows<V, Mac, Load, 2>, few_rows<V, Mac, Load, 3>,
      few_rows<V, Mac, Load, 4>, few_rows<V, Mac, Load, 5>, few_rows<V, Mac, Load, 6>,
      few_rows<V, Mac, Load, 7>, few_rows<V, Mac, Load, 8>, few_rows<V, Mac, Load, 9>,
      few_rows<V, Mac, Load, 10>, few_rows<V, Mac, Load, 11>, few_rows<V, Mac, Load, 12>};
  kByRows[args.attend->rows - 1](args);
}

}  // namespace
}  // namespace warpweave::intel_amx
