// Merging and writing at the end of a pair in the decode kernel (sm80_decode.cuh).
#pragma once

#include "attention/backends/flashinfer/kernels/sm80_decode_state.cuh"

namespace warpweave::cuda {

// Merges warps, writes the pair or its piece, merges the pieces.
template <class C>
class DecodeEpilogue {
 public:
  WW_DEVICE DecodeEpilogue(char* smem)
      : out_(reinterpret_cast<float*>(smem)),
        max_sum_(out_ + C::kWarps * 8 * C::kMergeStride),
        flag_(reinterpret_cast<int*>(out_ + C::kDim)) {}  // in the first row's pad

  // The workers that share the pair, every `step`th from first to last; with fixed splits its units in the line.
  struct Pieces { int first, last, step; };

  WW_DEVICE void finish(const AttentionParams& p, const DecodeWorkspace& w, const DecodeSegment& s,
                        DecodeState<C>& state, Pieces pieces) {
    share_sums(state);
    const int rows = min(s.q_len * p.group, C::kHeadRows);  // of a head
    // Read again at every end, not kept in a register.
    const bool cut_pairs = C::kFixedSplits && w.workers[blockIdx.x].cut_pairs != 0;
    const bool carried = C::kFixedSplits && !cut_pairs && s.num_splits > 1;  // merged here, split by split
    const bool last = carried ? s.ends_pair : s.begins_pair && s.ends_pair;
    int slot = 2 * blockIdx.x + (s.begins_pair ? 1 : 0);
    if constexpr (C::kFixedSplits) slot = cut_pairs ? pieces.first + s.split : 2 * blockIdx.x + (s.split & 1);
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      if (n > 0) C::sync();
      share_out(state, n);
      const int tile_rows = C::kShare ? 8 : min(rows - n % C::kColumnTiles * 8, 8);
      for (int i = threadIdx.x; i < tile_rows * (C::kDim / 4); i += C::kThreads) {
        const int row = n * 8 + i / (C::kDim / 4), dim = i % (C::kDim / 4) * 4;
        if (C::kShare && row % C::kHeadRows >= rows) continue;
        Total total = total_of(row);
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int warp = 0; warp < C::kWarps; ++warp) {
          add(sum, *reinterpret_cast<const float4*>(out_ + (warp * 8 + row % 8) * C::kMergeStride + dim), 1.0f);
        }
        if (carried && s.split > 0) {
          const Part before = read_part(w, slot ^ 1, row, dim);
          const Part here = {sum, make_float2(total.maximum, total.sum)};
          total = {before.max_sum.x, before.max_sum.y};
          sum = before.out;
          merge(sum, total, here);
        }
        if (last) {
          write(p, s, row, dim, {sum, total});
        } else {
          const int64_t base = static_cast<int64_t>(slot) * C::kRows + row;
          __stcg(reinterpret_cast<float4*>(w.partial_out + base * C::kDim + dim), sum);
          if (dim == 0) {
            __stcg(reinterpret_cast<float2*>(w.partial_max_sum) + base, make_float2(total.maximum, total.sum));
          }
        }
      }
    }
    if (!last && !carried) merge_pieces(p, w, s, rows, pieces);
    parity_ ^= 1;
  }

 private:
  struct Total { float maximum, sum; };
  struct Part { float4 out; float2 max_sum; };

  static WW_DEVICE Part read_part(const DecodeWorkspace& w, int slot, int row, int dim) {
    const int64_t base = static_cast<int64_t>(slot) * C::kRows + row;
    return {__ldcg(reinterpret_cast<const float4*>(w.partial_out + base * C::kDim + dim)),
            __ldcg(reinterpret_cast<const float2*>(w.partial_max_sum) + base)};
  }

  static WW_DEVICE void merge(float4& sum, Total& total, const Part& part) {
    const float next = fmaxf(total.maximum, part.max_sum.x);
    const float keep = next == -INFINITY ? 0.0f : ptx::exp2_approx(total.maximum - next);
    const float factor = next == -INFINITY ? 0.0f : ptx::exp2_approx(part.max_sum.x - next);
    sum = make_float4(__fmul_rn(sum.x, keep), __fmul_rn(sum.y, keep), __fmul_rn(sum.z, keep), __fmul_rn(sum.w, keep));
    add(sum, part.out, factor);
    total.sum = __fmaf_rn(part.max_sum.y, factor, __fmul_rn(total.sum, keep));
    total.maximum = next;
  }

  // The buffer alternates, since slow threads may still read the last pair's.
  WW_DEVICE float2* max_sum(int warp, int row) const {
    return reinterpret_cast<float2*>(max_sum_) + (parity_ * C::kWarps + warp) * C::kRows + row;
  }

  WW_DEVICE void share_sums(DecodeState<C>& state) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float sum = state.sum[n][c];
        sum += __shfl_xor_sync(~0u, sum, 4);
        sum += __shfl_xor_sync(~0u, sum, 8);
        sum += __shfl_xor_sync(~0u, sum, 16);
        if (lane < 4) *max_sum(warp, n * 8 + lane * 2 + c) = make_float2(state.maximum[n][c], sum);
      }
    }
    C::sync();
  }

  // Each warp's O of 8 rows, scaled to the common maximum.
  WW_DEVICE void share_out(DecodeState<C>& state, int n) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int row = lane % 4 * 2 + c;
      const float top = total_of(n * 8 + row).maximum;
      const float factor = top == -INFINITY ? 0.0f : ptx::exp2_approx(state.maximum[n][c] - top);
#pragma unroll
      for (int m = 0; m < C::kDim / 16; ++m) {
        float* target = out_ + (warp * 8 + row) * C::kMergeStride;
        target[DecodeState<C>::dim_of(m, 0)] = state.out[n][m][c] * factor;
        target[DecodeState<C>::dim_of(m, 1)] = state.out[n][m][c + 2] * factor;
      }
    }
    C::sync();
  }

  WW_DEVICE Total total_of(int row) const {
    Total total = {-INFINITY, 0};
#pragma unroll
    for (int warp = 0; warp < C::kWarps; ++warp) total.maximum = fmaxf(total.maximum, max_sum(warp, row)->x);
    if (total.maximum == -INFINITY) return total;
#pragma unroll
    for (int warp = 0; warp < C::kWarps; ++warp) {
      const float2 part = *max_sum(warp, row);
      total.sum = __fmaf_rn(part.y, ptx::exp2_approx(part.x - total.maximum), total.sum);
    }
    return total;
  }

  static WW_DEVICE void add(float4& sum, const float4& x, float factor) {
    sum.x = __fmaf_rn(x.x, factor, sum.x);
    sum.y = __fmaf_rn(x.y, factor, sum.y);
    sum.z = __fmaf_rn(x.z, factor, sum.z);
    sum.w = __fmaf_rn(x.w, factor, sum.w);
  }

  WW_DEVICE void merge_pieces(const AttentionParams& p, const DecodeWorkspace& w,
                              const DecodeSegment& s, int rows, Pieces pieces) {
    C::sync();
    if (threadIdx.x == 0) {
      const int before = ptx::add_acq_rel(w.counters + pieces.first, 1);
      *flag_ = before == (pieces.last - pieces.first) / pieces.step;
      if (*flag_) w.counters[pieces.first] = 0;
    }
    C::sync();
    if (!*flag_) return;
    if constexpr (C::kFixedSplits) {
      for (int i = threadIdx.x; i < rows * (C::kDim / 4); i += C::kThreads) {
        const int row = i / (C::kDim / 4), dim = i % (C::kDim / 4) * 4;
        Total total = {-INFINITY, 0};
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int piece = pieces.first; piece <= pieces.last; ++piece) merge(sum, total, read_part(w, piece, row, dim));
        write(p, s, row, dim, {sum, total});
      }
    } else {
      constexpr int kRowWarps = (C::kDim + 127) / 128;  // a warp takes 128 dims of a row
      for (int i = threadIdx.x / 32; i < C::kHeads * rows * kRowWarps; i += C::kWarps) {
        int row = i / kRowWarps;
        if constexpr (C::kHeads > 1) row = row / rows * C::kHeadRows + row % rows;
        const int dim = i % kRowWarps * 128 + threadIdx.x % 32 * 4;
        const Merged merged = merge_at_once(w, pieces, row, dim);
        if (dim < C::kDim) write(p, s, row, dim, merged);
      }
    }
  }

  struct Merged {
    float4 sum;
    Total total;
  };

  // Of 32 pieces at a time the lanes find the factors, while the first O are read.
  static WW_DEVICE Merged merge_at_once(const DecodeWorkspace& w, Pieces pieces, int row, int dim) {
    Total total = {-INFINITY, 0};
    float4 sum = make_float4(0, 0, 0, 0);
    constexpr int kReads = C::kColumnTiles == 1 && C::kDim <= 128 ? 16 : 8;  // as registers allow
    const int lane = threadIdx.x % 32;
    const int num_pieces = (pieces.last - pieces.first) / pieces.step + 1;
    auto base_of = [&](int piece) {
      const int slot = 2 * (pieces.first + piece * pieces.step) + (piece == 0 ? 1 : 0);
      return static_cast<int64_t>(slot) * C::kRows + row;
    };
    for (int first = 0; first < num_pieces; first += 32) {
      const int count = min(32, num_pieces - first);
      float2 part = make_float2(-INFINITY, 0);
      if (lane < count) part = __ldcg(reinterpret_cast<const float2*>(w.partial_max_sum) + base_of(first + lane));
      float4 read[kReads];
      auto read_from = [&](int at) {
#pragma unroll
        for (int j = 0; j < kReads; ++j) {
          read[j] = make_float4(0, 0, 0, 0);
          if (at + j < count && dim < C::kDim) {
            read[j] = __ldcg(reinterpret_cast<const float4*>(w.partial_out + base_of(first + at + j) * C::kDim + dim));
          }
        }
      };
      read_from(0);
      const float top = fmaxf(total.maximum, warp_max(part.x));
      const float keep = top == -INFINITY ? 0.0f : ptx::exp2_approx(total.maximum - top);
      const float factor = top == -INFINITY ? 0.0f : ptx::exp2_approx(part.x - top);
      total = {top, __fmaf_rn(total.sum, keep, warp_sum(part.y * factor))};
      sum = make_float4(sum.x * keep, sum.y * keep, sum.z * keep, sum.w * keep);
      for (int at = 0;;) {
#pragma unroll
        for (int j = 0; j < kReads; ++j) add(sum, read[j], __shfl_sync(~0u, factor, at + j));
        at += kReads;
        if (at >= count) break;
        read_from(at);
      }
    }
    return {sum, total};
  }

  static WW_DEVICE float warp_max(float x) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
  }
  static WW_DEVICE float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
  }

  WW_DEVICE void write(const AttentionParams& p, const DecodeSegment& s, int row, int dim, Merged merged) const {
    auto [value, total] = merged;
    using E = typename C::Element;
    const int kv_head = s.head * C::kHeads + row / C::kHeadRows, head_row = row % C::kHeadRows;
    const int token = s.q_begin + head_row / p.group;
    const int head = kv_head * p.group + head_row % p.group;
    const bool empty = total.maximum == -INFINITY;
    if (p.sinks != nullptr && !empty) {
      const float sink = p.sinks[head] * DecodeState<C>::kLog2e;
      const float top = fmaxf(total.maximum, sink);
      const float factor = ptx::exp2_approx(total.maximum - top);
      value = make_float4(value.x * factor, value.y * factor, value.z * factor, value.w * factor);
      total = {top, __fmaf_rn(total.sum, factor, ptx::exp2_approx(sink - top))};
    }
    float scale = empty ? 0.0f : 1.0f / total.sum;
    scale *= power_of_two(C::Fragment::kWidenedScaleLog2);
    if (p.v_head_scales != nullptr) scale *= p.v_head_scales[kv_head];
    uint2 packed;
    packed.x = E::pack(value.x * scale, value.y * scale);
    packed.y = E::pack(value.z * scale, value.w * scale);
    char* out = static_cast<char*>(p.out) +
                (token * p.out_token_stride + static_cast<int64_t>(head) * C::kDim + dim) * 2;
    *reinterpret_cast<uint2*>(out) = packed;
    if (p.lse != nullptr && dim == 0) {
      p.lse[static_cast<int64_t>(token) * p.num_q_heads + head] =
          empty ? -INFINITY : (total.maximum + log2f(total.sum)) * DecodeState<C>::kLn2;
    }
  }

  float* out_;      // [warps, 8, kMergeStride]
  float* max_sum_;  // [2 pairs, warps, rows, 2]
  int* flag_;
  int parity_ = 0;
};

}  // namespace warpweave::cuda
