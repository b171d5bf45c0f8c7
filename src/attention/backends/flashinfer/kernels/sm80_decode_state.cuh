// The arithmetic of one warp of the decode kernel (sm80_decode.cuh). Products and sums that the compiler
// might fuse in one instantiation and not in another are written out, so that all of them give a row
// the same bits.
#pragma once

#include "attention/backends/flashinfer/kernels/sm80_decode_scales.cuh"

namespace warpweave::cuda {

// One warp's part of softmax(q k^T) v over the tokens it has seen, in mma fragments:
// columns are rows of the request, column pair (lane % 4) * 2.
template <class C>
struct DecodeState {
  static constexpr int kDimTiles = C::kDim / 16;
  static constexpr int kQueryRows = C::kQueryInShared ? 0 : C::kTiles;
  u32 q[kQueryRows + 1][kDimTiles][2];
  uint2* q_shared;  // kQueryInShared: [column tile, dim tile, thread]
  float out[C::kTiles][kDimTiles][4];
  float maximum[C::kTiles][2];
  float sum[C::kTiles][2];  // of this thread's tokens only
  // fp4: the power of two that undoes Q's scaling (make_halves), of this thread's columns.
  float column_unscale[C::kFp4 ? C::kTiles : 1][2];

  // Starts reading the segment's Q.
  WW_DEVICE void load(const AttentionParams& p, const DecodeSegment& s) {
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      if constexpr (C::kQueryInShared) {
        load_query(p, s, n, q[0]);
#pragma unroll
        for (int k = 0; k < kDimTiles; ++k) {
          q_shared[(n * kDimTiles + k) * C::kThreads + threadIdx.x] = make_uint2(q[0][k][0], q[0][k][1]);
        }
      } else {
        load_query(p, s, n, q[n]);
      }
    }
  }

  WW_DEVICE void reset(const AttentionParams& p) {
    // Changes nothing, but waits for Q here: a wait inside the loop would also wait for later reads.
    const u32 zero = static_cast<u32>(p.num_requests) >> 31;
#pragma unroll
    for (int n = 0; n < kQueryRows; ++n) {
#pragma unroll
      for (int k = 0; k < kDimTiles; ++k) {
        q[n][k][0] ^= zero;
        q[n][k][1] ^= zero;
      }
    }
    if constexpr (C::kFp4) {
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) {
        const float row_unscale = C::kQueryInShared ? make_shared_halves(n) : make_halves(q[n]);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          column_unscale[n][c] = __shfl_sync(~0u, row_unscale, (threadIdx.x % 4 * 2 + c) * 4);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        maximum[n][c] = -INFINITY;
        sum[n][c] = 0;
      }
#pragma unroll
      for (int m = 0; m < kDimTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) out[n][m][i] = 0;
      }
    }
  }

  // B fragments of a row of Q, of a tile; the order of dims matches that in which widened values arrive.
  static WW_DEVICE void load_query(const AttentionParams& p, const DecodeSegment& s, int tile,
                                   u32 (&fragment)[kDimTiles][2]) {
    using E = typename C::Element;
    const int lane = threadIdx.x % 32;
    const int head = s.head * C::kHeads + (C::kShare ? lane / 16 : tile / C::kColumnTiles);
    const int row = C::kShare ? lane / 4 % 4 : tile % C::kColumnTiles * 8 + lane / 4;
    const int token = C::kMultiRow ? row / p.group : 0;
    const int in_group = C::kMultiRow ? row - token * p.group : row;
    const bool real = C::kMultiRow ? token < s.q_len : row < p.group && s.q_len > 0;
    const char* base = static_cast<const char*>(p.q);
    if (real) {
      base += ((s.q_begin + token) * p.q_token_stride +
               static_cast<int64_t>(head * p.group + in_group) * C::kDim) * 2;
    }
#pragma unroll
    for (int k = 0; k < kDimTiles; ++k) {
      if constexpr (C::kStorage == KvStorage::same16) {
        const u32* pairs = reinterpret_cast<const u32*>(base) + k * 8 + lane % 4;
        fragment[k][0] = real ? pairs[0] : 0;
        fragment[k][1] = real ? pairs[4] : 0;
      } else if constexpr (C::kStorage == KvStorage::e2m1) {
        if (k % 2 != 0) continue;
        const uint4* octets = reinterpret_cast<const uint4*>(base) + k * 2 + lane % 4;
        const uint4 w = real ? *octets : make_uint4(0, 0, 0, 0);
        fragment[k][0] = w.x;  // as they are until make_halves
        fragment[k][1] = w.y;
        fragment[k + 1][0] = w.z;
        fragment[k + 1][1] = w.w;
      } else {
        const uint2* quads = reinterpret_cast<const uint2*>(base) + k * 4 + lane % 4;
        const uint2 four = real ? *quads : make_uint2(0, 0);
        constexpr float kShift = power_of_two(C::Fragment::kQueryLog2);
        fragment[k][0] = E::pack(E::low(four.x) * kShift, E::low(four.y) * kShift);
        fragment[k][1] = E::pack(E::high(four.x) * kShift, E::high(four.y) * kShift);
      }
    }
  }

  // fp4: a row's eights of dims as B fragments of halves, times a power of two; returns its inverse. A row's
  // greatest element comes near the half's largest, so that what falls below its smallest is 2^-38 of that.
  static WW_DEVICE float make_halves(u32 (&fragment)[kDimTiles][2]) {
    using E = typename C::Element;
    float top = 0;
#pragma unroll
    for (int k = 0; k < kDimTiles; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        top = fmaxf(top, fmaxf(fabsf(E::low(fragment[k][i])), fabsf(E::high(fragment[k][i]))));
      }
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    constexpr int kBias = 127;
    const int exponent =
        min(C::Fragment::kQueryTopLog2 + 2 * kBias - static_cast<int>(__float_as_uint(top) >> 23), 253);
    const float factor = __uint_as_float(static_cast<u32>(exponent) << 23);
#pragma unroll
    for (int k = 0; k < kDimTiles; k += 2) {
      const u32 w[4] = {fragment[k][0], fragment[k][1], fragment[k + 1][0], fragment[k + 1][1]};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        fragment[k + i][0] = ptx::F16::pack(E::low(w[i]) * factor, E::low(w[i + 2]) * factor);
        fragment[k + i][1] = ptx::F16::pack(E::high(w[i]) * factor, E::high(w[i + 2]) * factor);
      }
    }
    return __uint_as_float(static_cast<u32>(2 * kBias - exponent) << 23);
  }

  WW_DEVICE float make_shared_halves(int n) {
    uint2* fragments = q_shared + n * kDimTiles * C::kThreads + threadIdx.x;
#pragma unroll
    for (int k = 0; k < kDimTiles; ++k) {
      q[0][k][0] = fragments[k * C::kThreads].x;
      q[0][k][1] = fragments[k * C::kThreads].y;
    }
    const float row_unscale = make_halves(q[0]);
#pragma unroll
    for (int k = 0; k < kDimTiles; ++k) fragments[k * C::kThreads] = make_uint2(q[0][k][0], q[0][k][1]);
    return row_unscale;
  }

  WW_DEVICE uint2 query(int n, int k) const {
    if constexpr (C::kQueryInShared) return q_shared[(n * kDimTiles + k) * C::kThreads + threadIdx.x];
    return make_uint2(q[n][k][0], q[n][k][1]);
  }

  // The factors from unscaled scores to log2 units, of this thread's columns.
  static WW_DEVICE void score_scales(const AttentionParams& p, const DecodeSegment& s, float (&scale_log2)[C::kHeads]) {
    constexpr float kUnshift = power_of_two(C::Fragment::kWidenedScaleLog2 - C::Fragment::kQueryLog2) * kLog2e;
#pragma unroll
    for (int i = 0; i < C::kHeads; ++i) {
      const unsigned head = s.head * C::kHeads + (C::kShare ? threadIdx.x % 4 / 2 : i);
      const float k_scale = p.k_head_scales != nullptr ? p.k_head_scales[head] : 1.0f;
      scale_log2[i] = p.scale * k_scale * kUnshift;
    }
  }

  using BlockScales = DecodeBlockScales<C>;
  static constexpr int kScoreTiles = C::kShare ? C::kHeads : C::kTiles;

  // S^T[16 tokens x rows] = K Q^T, unscaled; of the stage's 16 tokens `group`.
  WW_DEVICE void scores(u32 stage, int group, [[maybe_unused]] const BlockScales& block_scales,
                        float (&s)[C::kTiles][4]) const {
    const u32 k_tile = stage + group * 16 * C::kRowBytes;
    using E = typename C::Element;
    using F = typename C::Fragment;
    const int lane = threadIdx.x % 32;
    // Of a shared tile each head gives all columns, half of which are its own.
    float sums[kScoreTiles][4] = {};
    [[maybe_unused]] u32 codes[2], row_scales[2][2];
#pragma unroll
    for (int k = 0; k < C::kRowBytes / 32; ++k) {
      u32 a[4];
      ptx::ldmatrix_x4(a, k_tile + swizzled<C::kRowBytes>(lane % 16, k * 2 + lane / 16));
      if constexpr (C::kStorage == KvStorage::same16) {
        const int head = k / kDimTiles;  // 0 but of a shared tile
#pragma unroll
        for (int n = 0; n < C::kColumnTiles; ++n) {
          const uint2 b = query(n, k % kDimTiles);
          E::mma(sums[head + n], a, b.x, b.y);
        }
      } else if constexpr (C::kStorage == KvStorage::e2m1) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int head = k / (C::kHeadBytes / 32), chunk = k * 2 + half - head * (C::kHeadBytes / 16);
#pragma unroll
          for (int i = 0; half == 0 && i < 2; ++i) {
            const u32 late = stage + C::kCodesOffset + BlockScales::k_row(group, i) * 16 + chunk * 2;
            if constexpr (BlockScales::kHere) codes[i] = block_scales.k[group][head][i];
            else if (chunk % 4 == 0) codes[i] = scale_codes<C::kDim>(late, lane & 2);
            const u32 both = chunk % 4 == 0 ? halves_of_e4m3<false>(codes[i]) : halves_of_e4m3<true>(codes[i]);
            row_scales[i][0] = ptx::F16::twice<false>(both);
            row_scales[i][1] = ptx::F16::twice<true>(both);
          }
          multiply_scores({a[half * 2], a[half * 2 + 1]}, {row_scales[0][half], row_scales[1][half]}, head, chunk * 2,
                          sums);
        }
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 wide[4] = {F::widen_low(a[half * 2]), F::widen_low(a[half * 2 + 1]),
                               F::widen_high(a[half * 2]), F::widen_high(a[half * 2 + 1])};
#pragma unroll
          for (int n = 0; n < C::kColumnTiles; ++n) {
            const uint2 b = query(n, k * 2 + half);
            E::mma(sums[n], wide, b.x, b.y);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (C::kShare) {
        s[0][i] = lane % 4 < 2 ? sums[0][i] : sums[1][i];
      } else {
#pragma unroll
        for (int n = 0; n < C::kTiles; ++n) s[n][i] = sums[n][i];
      }
    }
  }

  // Two words of fp4 codes.
  struct CodeWords {
    u32 first, second;
  };

  // fp4: multiplies a word of each of two rows of a head with Q's fragments k and k + 1.
  WW_DEVICE void multiply_scores(CodeWords codes, const uint2& scales, int head, int k,
                                 float (&s)[kScoreTiles][4]) const {
    using A = typename C::Arithmetic;
    u32 up[4], low[4];
    C::Fragment::widen(codes.first, up);
    C::Fragment::widen(codes.second, low);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32 wide[4] = {A::multiply(up[i * 2], scales.x), A::multiply(low[i * 2], scales.y),
                           A::multiply(up[i * 2 + 1], scales.x), A::multiply(low[i * 2 + 1], scales.y)};
#pragma unroll
      for (int n = head * C::kColumnTiles; n < (head + 1) * C::kColumnTiles; ++n) {
        const uint2 b = query(C::kShare ? 0 : n, k + i);
        A::mma(s[n], wide, b.x, b.y);
      }
    }
  }

  // Scales to log2 units and masks. `position` is the kv position of the tile's first token.
  WW_DEVICE void mask(const AttentionParams& p, const DecodeSegment& seg, int position,
                      const float (&scale_log2)[C::kHeads], float (&s)[C::kTiles][4]) const {
    const int lane = threadIdx.x % 32;
    bool edge = position + 16 > seg.token_end;
    if constexpr (C::kFixedSplits) edge |= position < seg.visible_begin;
    const bool row_edge = C::kMultiRow && (position + 16 > seg.position || p.window_left >= 0);
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float head_scale = scale_log2[C::kShare ? 0 : n / C::kColumnTiles];
        const float scale = C::kFp4 ? __fmul_rn(head_scale, column_unscale[n][i % 2]) : head_scale;
        s[n][i] = __fmul_rn(s[n][i], scale);
      }
    }
    if (p.softcap > 0) {
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[n][i] = __fmul_rn(ptx::tanh_approx(__fmul_rn(s[n][i], kLn2 / p.softcap)), p.softcap * kLog2e);
        }
      }
    }
    if (C::kMultiRow || edge) {
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = position + lane / 4 + i / 2 * 8;
          if (edge && (token >= seg.token_end || (C::kFixedSplits && token < seg.visible_begin))) s[n][i] = -INFINITY;
          if (C::kMultiRow && row_edge && !visible(p, seg, n % C::kColumnTiles, i % 2, token)) s[n][i] = -INFINITY;
        }
      }
    }
  }

  WW_DEVICE bool visible(const AttentionParams& p, const DecodeSegment& seg, int n, int c, int token) const {
    const int row = (n * 8 + threadIdx.x % 4 * 2 + c) / p.group;
    if (row >= seg.q_len) return false;
    int row_position = seg.position + row;
    if (p.tree_mask == nullptr) {
      if (p.causal && token > row_position) return false;
    } else {
      const int node = token - seg.tree_begin;
      if (node >= 0) {
        const uint32_t word = p.tree_mask[static_cast<int64_t>(seg.q_begin + row) * p.tree_mask_words + node / 32];
        return word >> (node % 32) & 1;
      }
      row_position = p.positions[seg.q_begin + row];
    }
    return p.window_left < 0 || token >= row_position - p.window_left;
  }

  // Raises a column's maximum to the largest `top` of all lanes, if that is larger.
  WW_DEVICE void raise_maximum(int n, int c, float top) {
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 4));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 8));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 16));
    const float next = fmaxf(top, maximum[n][c]);
    const float factor = next == -INFINITY ? 1.0f : ptx::exp2_approx(maximum[n][c] - next);
    maximum[n][c] = next;
    sum[n][c] = __fmul_rn(sum[n][c], factor);
#pragma unroll
    for (int m = 0; m < kDimTiles; ++m) {
      out[n][m][c] *= factor;
      out[n][m][c + 2] *= factor;
    }
  }

  // Online softmax of one step; leaves the B fragments of P^T.
  WW_DEVICE void softmax(float (&s)[C::kGroups][C::kTiles][4],
                         u32 (&probability)[C::kGroups][C::kTiles][2]) {
    using A = typename C::Arithmetic;
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      float top[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        top[c] = fmaxf(s[0][n][c], s[0][n][c + 2]);
#pragma unroll
        for (int group = 1; group < C::kGroups; ++group) {
          top[c] = fmaxf(top[c], fmaxf(s[group][n][c], s[group][n][c + 2]));
        }
        // The stored maximum carries the shift that keeps results from widened codes in range.
        top[c] -= C::Fragment::kProbabilityLog2;
      }
      if (__any_sync(~0u, top[0] > maximum[n][0] || top[1] > maximum[n][1])) {
#pragma unroll
        for (int c = 0; c < 2; ++c) raise_maximum(n, c, top[c]);
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float reference = maximum[n][c] == -INFINITY ? 0.0f : maximum[n][c];
#pragma unroll
        for (int group = 0; group < C::kGroups; ++group) {
          float (&x)[4] = s[group][n];
          x[c] = ptx::exp2_approx(x[c] - reference);
          x[c + 2] = ptx::exp2_approx(x[c + 2] - reference);
          sum[n][c] = __fadd_rn(sum[n][c], __fadd_rn(x[c], x[c + 2]));
        }
      }
#pragma unroll
      for (int group = 0; group < C::kGroups; ++group) {
        const float (&x)[4] = s[group][n];
        probability[group][n][0] = ptx::movmatrix_trans(A::pack(x[0], x[1]));
        probability[group][n][1] = ptx::movmatrix_trans(A::pack(x[2], x[3]));
      }
    }
  }

  // O^T += V^T P^T, of the stage's 16 tokens `group`.
  WW_DEVICE void accumulate(u32 stage, int group, [[maybe_unused]] const BlockScales& block_scales,
                            const u32 (&probability)[C::kTiles][2]) {
    const u32 v_tile = stage + C::kValuesOffset + group * 16 * C::kRowBytes;
    using E = typename C::Element;
    using F = typename C::Fragment;
    const int lane = threadIdx.x % 32;
    u32 own[kScoreTiles][2];  // a shared tile's probabilities without the other head's
#pragma unroll
    for (int n = 0; n < kScoreTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) own[n][i] = C::kShare ? (lane / 16 == n ? probability[0][i] : 0) : probability[n][i];
    }
    if constexpr (C::kStorage == KvStorage::same16) {
      const int row = lane % 8 + lane / 16 * 8;
#pragma unroll
      for (int m = 0; m < C::kRowBytes / 32; ++m) {
        const int head = m / kDimTiles;
        u32 a[4];
        ptx::ldmatrix_x4_trans(a, v_tile + swizzled<C::kRowBytes>(row, m * 2 + (lane / 8) % 2));
#pragma unroll
        for (int n = 0; n < C::kColumnTiles; ++n) {
          E::mma(out[n][m % kDimTiles], a, own[head + n][0], own[head + n][1]);
        }
      }
    } else if constexpr (C::kStorage == KvStorage::e2m1) {
      // A word holds four dims of two tokens.
      u32 codes[2][2], pair_scales[2][2];
#pragma unroll
      for (int m = 0; m < C::kRowBytes / 32; ++m) {
        u32 a[4];
        ptx::ldmatrix_x4_trans(a, v_tile + swizzled<C::kRowBytes>(lane % 16, m * 2 + lane / 16));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int head = m / (C::kHeadBytes / 32), chunk = m * 2 + half - head * (C::kHeadBytes / 16);
#pragma unroll
          for (int i = 0; half == 0 && i < 2; ++i) {
            const u32 late =
                BlockScales::v_codes(stage + C::kCodesOffset) + BlockScales::v_row(group, 2 * i) * 16 + chunk * 2;
            if constexpr (!BlockScales::kHere) {
              if (chunk % 4 == 0) pair_codes<C::kDim>(late, late + 16, lane & 16, codes[i]);
            }
            u32 pairs;
            if constexpr (BlockScales::kHere) pairs = block_scales.v[group][head][i][chunk / 2];
            else pairs = codes[i][chunk % 4 / 2];
            pair_scales[i][0] = halves_of_e4m3<false>(pairs);
            pair_scales[i][1] = halves_of_e4m3<true>(pairs);
          }
          const uint2 scales = make_uint2(pair_scales[0][half], pair_scales[1][half]);
          multiply_out({a[half * 2], a[half * 2 + 1]}, scales, head, chunk * 2, own);
        }
      }
    } else {
      // A word holds two dims of two tokens: its low bytes are the fragment's row `lane / 4`, its
      // high bytes row `lane / 4 + 8`, so dims come out in pairs (dim_of).
      const int row = lane % 16;
#pragma unroll
      for (int m = 0; m < kDimTiles / 2; ++m) {
        u32 a[4];
        ptx::ldmatrix_x4_trans(a, v_tile + swizzled<C::kRowBytes>(row, m * 2 + lane / 16));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 wide[4] = {F::widen_low(a[half * 2]), F::widen_high(a[half * 2]),
                               F::widen_low(a[half * 2 + 1]), F::widen_high(a[half * 2 + 1])};
#pragma unroll
          for (int n = 0; n < C::kColumnTiles; ++n) {
            E::mma(out[n][m * 2 + half], wide, probability[n][0], probability[n][1]);
          }
        }
      }
    }
  }

  // fp4: words of tokens lane % 4 * 2 and the next, and of those 8 on: the rows of dim tiles m and m + 1.
  WW_DEVICE void multiply_out(CodeWords codes, const uint2& scales, int head, int m,
                              const u32 (&probability)[kScoreTiles][2]) {
    using A = typename C::Arithmetic;
    u32 one[4], two[4];
    C::Fragment::widen(codes.first, one);
    C::Fragment::widen(codes.second, two);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const u32 wide[4] = {A::multiply(one[i * 2], scales.x), A::multiply(one[i * 2 + 1], scales.x),
                           A::multiply(two[i * 2], scales.y), A::multiply(two[i * 2 + 1], scales.y)};
      if constexpr (C::kShare) {
        A::mma(out[0][m + i], wide, probability[head][0], probability[head][1]);
      } else {
#pragma unroll
        for (int n = head * C::kColumnTiles; n < (head + 1) * C::kColumnTiles; ++n) {
          A::mma(out[n][m + i], wide, probability[n][0], probability[n][1]);
        }
      }
    }
  }

  // The dim that row `lane / 4 + 8 * upper` of dim tile m stands for.
  static WW_DEVICE int dim_of(int m, int upper) {
    const int row = threadIdx.x % 32 / 4;
    if constexpr (C::kStorage == KvStorage::e2m1) return m / 2 * 32 + row * 4 + m % 2 * 2 + upper;
    return m * 16 + (C::kStorage == KvStorage::same16 ? row + 8 * upper : row * 2 + upper);
  }

  static constexpr float kLog2e = 1.4426950408889634f;
  static constexpr float kLn2 = 0.6931471805599453f;
};

}  // namespace warpweave::cuda
