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

  // The workers [first, last] that share the pair.
  struct Pieces { int first, last; };

  WW_DEVICE void finish(const AttentionParams& p, const DecodeWorkspace& w, const DecodeSegment& s,
                        DecodeState<C>& state, Pieces pieces) {
    share_sums(state);
    const int rows = min(s.q_len * p.group, C::kRows);
    const bool whole = s.begins_pair && s.ends_pair;
    const int slot = 2 * blockIdx.x + (s.begins_pair ? 1 : 0);
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
      if (n > 0) __syncthreads();
      share_out(state, n);
      for (int i = threadIdx.x; i < min(rows - n * 8, 8) * (C::kDim / 4); i += C::kThreads) {
        const int row = n * 8 + i / (C::kDim / 4), dim = i % (C::kDim / 4) * 4;
        const Total total = total_of(row);
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
        for (int warp = 0; warp < C::kWarps; ++warp) {
          add(sum, *reinterpret_cast<const float4*>(out_ + (warp * 8 + row % 8) * C::kMergeStride + dim), 1.0f);
        }
        if (whole) {
          write(p, s, row, dim, sum, total);
        } else {
          const int64_t base = static_cast<int64_t>(slot) * C::kRows + row;
          __stcg(reinterpret_cast<float4*>(w.partial_out + base * C::kDim + dim), sum);
          if (dim == 0) {
            __stcg(reinterpret_cast<float2*>(w.partial_max_sum) + base, make_float2(total.maximum, total.sum));
          }
        }
      }
    }
    if (!whole) merge_pieces(p, w, s, rows, pieces);
    parity_ ^= 1;
  }

 private:
  struct Total { float maximum, sum; };

  // The buffer alternates, since slow threads may still read the last pair's.
  WW_DEVICE float2* max_sum(int warp, int row) const {
    return reinterpret_cast<float2*>(max_sum_) + (parity_ * C::kWarps + warp) * C::kRows + row;
  }

  WW_DEVICE void share_sums(DecodeState<C>& state) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < C::kColumnTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float sum = state.sum[n][c];
        sum += __shfl_xor_sync(~0u, sum, 4);
        sum += __shfl_xor_sync(~0u, sum, 8);
        sum += __shfl_xor_sync(~0u, sum, 16);
        if (lane < 4) *max_sum(warp, n * 8 + lane * 2 + c) = make_float2(state.maximum[n][c], sum);
      }
    }
    __syncthreads();
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
        float* target = out_ + (warp * 8 + row) * C::kMergeStride + m * 16;
        target[DecodeState<C>::dim_of(0)] = state.out[n][m][c] * factor;
        target[DecodeState<C>::dim_of(1)] = state.out[n][m][c + 2] * factor;
      }
    }
    __syncthreads();
  }

  WW_DEVICE Total total_of(int row) const {
    Total total = {-INFINITY, 0};
#pragma unroll
    for (int warp = 0; warp < C::kWarps; ++warp) total.maximum = fmaxf(total.maximum, max_sum(warp, row)->x);
    if (total.maximum == -INFINITY) return total;
#pragma unroll
    for (int warp = 0; warp < C::kWarps; ++warp) {
      const float2 part = *max_sum(warp, row);
      total.sum += part.y * ptx::exp2_approx(part.x - total.maximum);
    }
    return total;
  }

  static WW_DEVICE void add(float4& sum, const float4& x, float factor) {
    sum.x += x.x * factor;
    sum.y += x.y * factor;
    sum.z += x.z * factor;
    sum.w += x.w * factor;
  }

  WW_DEVICE void merge_pieces(const AttentionParams& p, const DecodeWorkspace& w,
                              const DecodeSegment& s, int rows, Pieces pieces) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      const int before = atomicAdd(w.counters + pieces.first, 1);
      *flag_ = before == pieces.last - pieces.first;
      if (*flag_) w.counters[pieces.first] = 0;
    }
    __syncthreads();
    if (!*flag_) return;
    __threadfence();
    auto slot_of = [&](int worker) { return worker == pieces.first ? 2 * worker + 1 : 2 * worker; };
    const float2* max_sum = reinterpret_cast<const float2*>(w.partial_max_sum);
    for (int i = threadIdx.x; i < rows * (C::kDim / 4); i += C::kThreads) {
      const int row = i / (C::kDim / 4), dim = i % (C::kDim / 4) * 4;
      Total total = {-INFINITY, 0};
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
      for (int worker = pieces.first; worker <= pieces.last; ++worker) {
        const int64_t base = static_cast<int64_t>(slot_of(worker)) * C::kRows + row;
        const float2 piece = __ldcg(max_sum + base);
        const float4 out = __ldcg(reinterpret_cast<const float4*>(w.partial_out + base * C::kDim + dim));
        const float next = fmaxf(total.maximum, piece.x);
        const float keep = next == -INFINITY ? 0.0f : ptx::exp2_approx(total.maximum - next);
        const float factor = next == -INFINITY ? 0.0f : ptx::exp2_approx(piece.x - next);
        sum = make_float4(sum.x * keep, sum.y * keep, sum.z * keep, sum.w * keep);
        add(sum, out, factor);
        total.sum = total.sum * keep + piece.y * factor;
        total.maximum = next;
      }
      write(p, s, row, dim, sum, total);
    }
  }

  WW_DEVICE void write(const AttentionParams& p, const DecodeSegment& s, int row, int dim,
                       float4 value, Total total) const {
    using E = typename C::Element;
    const int token = s.q_begin + row / p.group;
    const int head = s.head * p.group + row % p.group;
    const bool empty = total.maximum == -INFINITY;
    if (p.sinks != nullptr && !empty) {
      const float sink = p.sinks[head] * DecodeState<C>::kLog2e;
      const float top = fmaxf(total.maximum, sink);
      const float factor = ptx::exp2_approx(total.maximum - top);
      value = make_float4(value.x * factor, value.y * factor, value.z * factor, value.w * factor);
      total = {top, total.sum * factor + ptx::exp2_approx(sink - top)};
    }
    float scale = empty ? 0.0f : 1.0f / total.sum;
    scale *= power_of_two(C::Fragment::kWidenedScaleLog2);
    if (p.v_head_scales != nullptr) scale *= p.v_head_scales[s.head];
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
