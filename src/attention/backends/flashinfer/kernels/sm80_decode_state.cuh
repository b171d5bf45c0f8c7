// The arithmetic of one warp of the decode kernel (sm80_decode.cuh). Products and sums that the compiler
// might fuse in one instantiation and not in another are written out, so that all of them give a row
// the same bits.
#pragma once

#include "attention/backends/flashinfer/kernels/sm80_decode_loader.cuh"

namespace warpweave::cuda {

// One warp's part of softmax(q k^T) v over the tokens it has seen, in mma fragments:
// columns are rows of the request, column pair (lane % 4) * 2.
template <class C>
struct DecodeState {
  static constexpr int kDimTiles = C::kDim / 16;
  static constexpr int kQueryRows = C::kQueryInShared ? 0 : C::kColumnTiles;
  u32 q[kQueryRows + 1][kDimTiles][2];
  uint2* q_shared;  // kQueryInShared: [column tile, dim tile, thread]
  float out[C::kColumnTiles][kDimTiles][4];
  float maximum[C::kColumnTiles][2];
  float sum[C::kColumnTiles][2];  // of this thread's tokens only

  // Starts reading the segment's Q.
  WW_DEVICE void load(const AttentionParams& p, const DecodeSegment& s) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      if constexpr (C::kQueryInShared) {
        load_query(p, s, n * 8 + lane / 4, q[0]);
#pragma unroll
        for (int k = 0; k < kDimTiles; ++k) {
          q_shared[(n * kDimTiles + k) * C::kThreads + threadIdx.x] = make_uint2(q[0][k][0], q[0][k][1]);
        }
      } else {
        load_query(p, s, n * 8 + lane / 4, q[n]);
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
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
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

  // B fragments of one row of Q; the order of dims matches that in which widened values arrive.
  static WW_DEVICE void load_query(const AttentionParams& p, const DecodeSegment& s, int row,
                                   u32 (&fragment)[kDimTiles][2]) {
    using E = typename C::Element;
    const int lane = threadIdx.x % 32;
    const int token = C::kMultiRow ? row / p.group : 0;
    const int in_group = C::kMultiRow ? row - token * p.group : row;
    const bool real = C::kMultiRow ? token < s.q_len : row < p.group && s.q_len > 0;
    const char* base = static_cast<const char*>(p.q);
    if (real) {
      base += ((s.q_begin + token) * p.q_token_stride +
               static_cast<int64_t>(s.head * p.group + in_group) * C::kDim) * 2;
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
        constexpr float kShift = power_of_two(C::Fragment::kQueryLog2);
        fragment[k][0] = E::pack(E::low(w.x) * kShift, E::low(w.z) * kShift);
        fragment[k][1] = E::pack(E::high(w.x) * kShift, E::high(w.z) * kShift);
        fragment[k + 1][0] = E::pack(E::low(w.y) * kShift, E::low(w.w) * kShift);
        fragment[k + 1][1] = E::pack(E::high(w.y) * kShift, E::high(w.w) * kShift);
      } else {
        const uint2* quads = reinterpret_cast<const uint2*>(base) + k * 4 + lane % 4;
        const uint2 four = real ? *quads : make_uint2(0, 0);
        constexpr float kShift = power_of_two(C::Fragment::kQueryLog2);
        fragment[k][0] = E::pack(E::low(four.x) * kShift, E::low(four.y) * kShift);
        fragment[k][1] = E::pack(E::high(four.x) * kShift, E::high(four.y) * kShift);
      }
    }
  }

  WW_DEVICE uint2 query(int n, int k) const {
    if constexpr (C::kQueryInShared) return q_shared[(n * kDimTiles + k) * C::kThreads + threadIdx.x];
    return make_uint2(q[n][k][0], q[n][k][1]);
  }

  // S^T[16 tokens x rows] = K Q^T, raw products; of the stage's 16 tokens `group`.
  WW_DEVICE void scores(u32 stage, int group, float (&s)[C::kColumnTiles][4]) const {
    const u32 k_tile = stage + group * 16 * C::kRowBytes;
    using E = typename C::Element;
    using F = typename C::Fragment;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0;
    }
    [[maybe_unused]] u32 codes[2], rows[2];
    if constexpr (C::kStorage == KvStorage::e2m1) {
      const uint2 places = scale_places(stage);
#pragma unroll
      for (int i = 0; i < 2; ++i) rows[i] = scale_row(stage, places, 0, group * 16 + lane / 4 + 8 * i);
    }
#pragma unroll
    for (int k = 0; k < C::kRowBytes / 32; ++k) {
      u32 a[4];
      ptx::ldmatrix_x4(a, k_tile + swizzled<C::kRowBytes>(lane % 16, k * 2 + lane / 16));
      if constexpr (C::kStorage == KvStorage::same16) {
#pragma unroll
        for (int n = 0; n < C::kColumnTiles; ++n) {
          const uint2 b = query(n, k);
          E::mma(s[n], a, b.x, b.y);
        }
      } else if constexpr (C::kStorage == KvStorage::e2m1) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int chunk = k * 2 + half;
          if (chunk % 4 == 0) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
              codes[i] = scale_codes<C::kDim>(rows[i] + chunk * 2, lane & 2);
            }
          }
          const u32 scales[2] = {row_scale<E>(codes[0], chunk % 4), row_scale<E>(codes[1], chunk % 4)};
          const u32 words[2] = {a[half * 2], a[half * 2 + 1]};
          multiply_scores<0>(words, scales, chunk * 2, s);
          multiply_scores<2>(words, scales, chunk * 2 + 1, s);
        }
      } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const u32 wide[4] = {F::widen_low(a[half * 2]), F::widen_low(a[half * 2 + 1]),
                               F::widen_high(a[half * 2]), F::widen_high(a[half * 2 + 1])};
#pragma unroll
          for (int n = 0; n < C::kColumnTiles; ++n) {
            const uint2 b = query(n, k * 2 + half);
            E::mma(s[n], wide, b.x, b.y);
          }
        }
      }
    }
  }

  // fp4: the product of nibbles kNibble and the next of both rows' words with Q's fragment k.
  template <int kNibble>
  WW_DEVICE void multiply_scores(const u32 (&words)[2], const u32 (&scales)[2], int k,
                                 float (&s)[C::kColumnTiles][4]) const {
    using E = typename C::Element;
    using F = typename C::Fragment;
    const u32 wide[4] = {E::multiply(F::template widen<kNibble>(words[0]), scales[0]),
                         E::multiply(F::template widen<kNibble>(words[1]), scales[1]),
                         E::multiply(F::template widen<kNibble + 1>(words[0]), scales[0]),
                         E::multiply(F::template widen<kNibble + 1>(words[1]), scales[1])};
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      const uint2 b = query(n, k);
      E::mma(s[n], wide, b.x, b.y);
    }
  }

  // fp4: the block scales of token `row` of K (v 0) or V (1) of a stage; `places` are DecodeLoader's.
  static WW_DEVICE uint2 scale_places(u32 stage) {
    uint2 places = make_uint2(0, 0);
    if constexpr (C::kDim < 256) {
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];\n" : "=r"(places.x), "=r"(places.y) : "r"(stage + C::kStageBytes - 16) : "memory");
    }
    return places;
  }
  static WW_DEVICE u32 scale_row(u32 stage, const uint2& places, int v, int row) {
    u32 place = 0;
    if constexpr (C::kDim < 256) place = (places.x >> row & 1) * 8;
    if constexpr (C::kDim < 128) place += (places.y >> row & 1) * 4;
    return stage + 2 * C::kStepTokens * C::kRowBytes + (v * C::kStepTokens + row) * 16 + place;
  }

  // Scales to log2 units and masks. `position` is the kv position of the tile's first token.
  WW_DEVICE void mask(const AttentionParams& p, const DecodeSegment& seg, int position,
                      float scale_log2, float (&s)[C::kColumnTiles][4]) const {
    const int lane = threadIdx.x % 32;
    bool edge = position + 16 > seg.token_end;
    if constexpr (C::kFixedSplits) edge |= position < seg.visible_begin;
    const bool row_edge = C::kMultiRow && (position + 16 > seg.position || p.window_left >= 0);
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (p.softcap > 0) {
          s[n][i] = __fmul_rn(ptx::tanh_approx(s[n][i] * scale_log2 * (kLn2 / p.softcap)), p.softcap * kLog2e);
        } else {
          s[n][i] = __fmul_rn(s[n][i], scale_log2);
        }
        const int token = position + lane / 4 + i / 2 * 8;
        if (edge && (token >= seg.token_end || (C::kFixedSplits && token < seg.visible_begin))) s[n][i] = -INFINITY;
        if (C::kMultiRow && row_edge && !visible(p, seg, n, i % 2, token)) s[n][i] = -INFINITY;
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

  // Online softmax of one step; leaves the B fragments of P^T.
  WW_DEVICE void softmax(float (&s)[C::kGroups][C::kColumnTiles][4],
                         u32 (&probability)[C::kGroups][C::kColumnTiles][2]) {
    using E = typename C::Element;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float top = fmaxf(s[0][n][c], s[0][n][c + 2]);
#pragma unroll
        for (int group = 1; group < C::kGroups; ++group) top = fmaxf(top, fmaxf(s[group][n][c], s[group][n][c + 2]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 4));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 8));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 16));
        // The stored maximum carries the shift that keeps widened products in range.
        top -= C::Fragment::kProbabilityLog2;
        if (__any_sync(~0u, top > maximum[n][c])) {
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
        probability[group][n][0] = ptx::movmatrix_trans(E::pack(x[0], x[1]));
        probability[group][n][1] = ptx::movmatrix_trans(E::pack(x[2], x[3]));
      }
    }
  }

  // O^T += V^T P^T, of the stage's 16 tokens `group`.
  WW_DEVICE void accumulate(u32 stage, int group, const u32 (&probability)[C::kColumnTiles][2]) {
    const u32 v_tile = stage + (C::kStepTokens + group * 16) * C::kRowBytes;
    using E = typename C::Element;
    using F = typename C::Fragment;
    const int lane = threadIdx.x % 32;
    if constexpr (C::kStorage == KvStorage::same16) {
      const int row = lane % 8 + lane / 16 * 8;
#pragma unroll
      for (int m = 0; m < kDimTiles; ++m) {
        u32 a[4];
        ptx::ldmatrix_x4_trans(a, v_tile + swizzled<C::kRowBytes>(row, m * 2 + (lane / 8) % 2));
#pragma unroll
        for (int n = 0; n < C::kColumnTiles; ++n) E::mma(out[n][m], a, probability[n][0], probability[n][1]);
      }
    } else if constexpr (C::kStorage == KvStorage::e2m1) {
      // A word holds four dims of two tokens.
      u32 codes[4], rows[4];
      const uint2 places = scale_places(stage);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        rows[i] = scale_row(stage, places, 1, group * 16 + lane % 4 * 2 + i % 2 + i / 2 * 8);
      }
#pragma unroll
      for (int m = 0; m < kDimTiles / 4; ++m) {
        u32 a[4];
        ptx::ldmatrix_x4_trans(a, v_tile + swizzled<C::kRowBytes>(lane % 16, m * 2 + lane / 16));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int chunk = m * 2 + half;
          if (chunk % 4 == 0) {
#pragma unroll
            for (int i = 0; i < 4; ++i) codes[i] = scale_codes<C::kDim>(rows[i] + chunk * 2, lane & 16);
          }
          const u32 scales[2] = {row_pair_scales<E>(codes[0], codes[1], chunk % 4),
                                 row_pair_scales<E>(codes[2], codes[3], chunk % 4)};
          const u32 words[2] = {a[half * 2], a[half * 2 + 1]};
          multiply_out<0>(words, scales, chunk * 2, probability);
          multiply_out<2>(words, scales, chunk * 2 + 1, probability);
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

  // fp4: V's nibbles kNibble and the next are the rows of dim tile m.
  template <int kNibble>
  WW_DEVICE void multiply_out(const u32 (&words)[2], const u32 (&scales)[2], int m,
                              const u32 (&probability)[C::kColumnTiles][2]) {
    using E = typename C::Element;
    using F = typename C::Fragment;
    const u32 wide[4] = {E::multiply(F::template widen<kNibble>(words[0]), scales[0]),
                         E::multiply(F::template widen<kNibble + 1>(words[0]), scales[0]),
                         E::multiply(F::template widen<kNibble>(words[1]), scales[1]),
                         E::multiply(F::template widen<kNibble + 1>(words[1]), scales[1])};
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) E::mma(out[n][m], wide, probability[n][0], probability[n][1]);
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
