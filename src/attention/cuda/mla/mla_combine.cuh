// Merges the pieces of cut pairs (MlaWork) by their log-sum-exps, and writes the rows. CTA (worker, 16 rows, columns): of
// the pair that begins at that worker, if it is cut (MlaCut). Pieces are summed in their order, whoever was done first.
#pragma once

#include "attention/cuda/mla/mla_run.cuh"

namespace warpweave::cuda {

inline constexpr int kMlaCombineWarps = 8;

// The pieces of a pair: slots first, then `second`, second + step, ...
struct MlaPieces {
  int first, second, step, count;
  WW_DEVICE int slot(int i) const { return i == 0 ? first : second + (i - 1) * step; }
};

struct MlaTotal {
  float maximum = -INFINITY, sum = 0;
  WW_DEVICE void add(float2 part) {  // (maximum, sum), as max_sum has it
    const float next = fmaxf(maximum, part.x);
    if (next == -INFINITY) return;
    sum = sum * ptx::exp2_approx(maximum - next) + part.y * ptx::exp2_approx(part.x - next);
    maximum = next;
  }
};

template <class E>
class MlaCombine {
 public:
  WW_DEVICE MlaCombine(const MlaParams& p, const MlaWork& work) : p_(p), work_(work) {}

  WW_DEVICE void run() {
    const int worker = blockIdx.x;
    cut_ = work_.cuts[worker];
    if (cut_.pieces == 0) return;
    const MlaPieces pieces = {2 * worker + 1, 2 * (worker + work_.abreast), 2 * work_.abreast, cut_.pieces};
    const int lane = threadIdx.x % 32, row_block = blockIdx.y;
    const int count = cut_.q_len * p_.num_heads - cut_.row_tile * work_.tile_rows;
    const int first = row_block * 16 + lane / 4;
    if (row_block * 16 >= count) return;
    MlaTotal totals[2];
    for (int i = 0; i < pieces.count; ++i) {
#pragma unroll
      for (int row = 0; row < 2; ++row) totals[row].add(max_sum(pieces.slot(i), first + row * 8));
    }
    const int step = gridDim.z * kMlaCombineWarps;
    for (int column_block = blockIdx.z * kMlaCombineWarps + threadIdx.x / 32; column_block < kMlaLatentDim / 8;
         column_block += step) {
      const float4 sum = sum_of(pieces, row_block, column_block, totals);
      const float sums[2][2] = {{sum.x, sum.y}, {sum.z, sum.w}};
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (first + row * 8 < count) write(first + row * 8, column_block * 8 + lane % 4 * 2, sums[row], totals[row]);
      }
    }
  }

 private:
  WW_DEVICE float2 max_sum(int slot, int row) const {
    return __ldcg(reinterpret_cast<const float2*>(work_.partial_max_sum) + static_cast<int64_t>(slot) * work_.tile_rows + row);
  }

  WW_DEVICE float4 sum_of(const MlaPieces& pieces, int row_block, int column_block, const MlaTotal (&totals)[2]) const {
    const int lane = threadIdx.x % 32, first = row_block * 16 + lane / 4;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int i = 0; i < pieces.count; ++i) {
      const float4 x = __ldcg(mla_piece(work_, pieces.slot(i), row_block, column_block) + lane);
      float factor[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float maximum = max_sum(pieces.slot(i), first + row * 8).x;
        factor[row] = maximum == -INFINITY ? 0.0f : ptx::exp2_approx(maximum - totals[row].maximum);
      }
      sum = make_float4(__fmaf_rn(x.x, factor[0], sum.x), __fmaf_rn(x.y, factor[0], sum.y),
                        __fmaf_rn(x.z, factor[1], sum.z), __fmaf_rn(x.w, factor[1], sum.w));
    }
    return sum;
  }

  WW_DEVICE void write(int local, int column, const float (&sum)[2], const MlaTotal& total) const {
    const int row = cut_.row_tile * work_.tile_rows + local, query = row / p_.num_heads, head = row - query * p_.num_heads;
    const bool empty = total.maximum == -INFINITY;
    const float scale = empty ? 0.0f : __fdividef(mla_kv_scale<MlaFormat::e4m3>(p_), total.sum);
    const int64_t token = static_cast<int64_t>(cut_.q_begin) + query;
    ptx::u32* out = reinterpret_cast<ptx::u32*>(
        static_cast<char*>(p_.out) + (token * p_.out_token_stride + head * p_.out_head_stride + column) * 2);
    *out = E::pack(sum[0] * scale, sum[1] * scale);
    if (p_.lse == nullptr || column != 0) return;
    constexpr float kLn2 = 0.6931471805599453f;
    p_.lse[token * p_.num_heads + head] = empty ? -INFINITY : (total.maximum + ptx::log2_approx(total.sum)) * kLn2;
  }

  const MlaParams& p_;
  const MlaWork& work_;
  MlaCut cut_;
};

template <class E>
__global__ void __launch_bounds__(32 * kMlaCombineWarps)
    mla_combine(const __grid_constant__ MlaParams p, const __grid_constant__ MlaWork work) {
  ptx::launch_dependents();
  ptx::grid_dependency_wait();
  MlaCombine<E>(p, work).run();
}

}  // namespace warpweave::cuda
