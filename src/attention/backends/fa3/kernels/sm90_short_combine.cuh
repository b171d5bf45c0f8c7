// What the rows of a unit of short requests are, for the kernel that merges pieces (split_combine.cuh).
#pragma once

#include "attention/backends/fa3/kernels/sm90_short_shared.cuh"
#include "attention/cuda/split_combine.cuh"

namespace warpweave::cuda {

template <class C>
class ShortRows {
 public:
  static constexpr int kValueDim = C::kDim;

  WW_DEVICE ShortRows(const AttentionParams& p, const SplitWork& work) : p_(p), work_(work) {}

  WW_DEVICE int most_rows() const { return work_.tile_rows; }
  WW_DEVICE int rows_of(const SplitCut& cut) const { return ShortUnit<C>(p_, work_, cut.unit, cut.q_len).rows; }

  WW_DEVICE void write(const SplitCut& cut, int local, int column, const float (&sum)[2],
                       const SplitTotal& total) const {
    const ShortUnit<C> unit(p_, work_, cut.unit, cut.q_len);
    const int row = unit.first_row + local, query = row / p_.group,
              head = unit.kv_head * p_.group + row - query * p_.group;
    const bool empty = total.maximum == -INFINITY;
    float top = total.maximum, scale = empty ? 0.0f : 1.0f, all = total.sum;
    if (p_.sinks != nullptr && !empty) {
      const float sink = p_.sinks[head] * 1.4426950408889634f, higher = fmaxf(top, sink);
      scale = ptx::exp2_approx(top - higher);
      all = all * scale + ptx::exp2_approx(sink - higher);
      top = higher;
    }
    if (!empty) scale = __fdividef(scale, all);
    const int64_t token = static_cast<int64_t>(cut.q_begin) + query;
    ptx::u32* out = reinterpret_cast<ptx::u32*>(
        static_cast<char*>(p_.out) + (token * p_.out_token_stride + static_cast<int64_t>(head) * C::kDim + column) * 2);
    *out = C::Element::pack(sum[0] * scale, sum[1] * scale);
    if (p_.lse == nullptr || column != 0) return;
    p_.lse[token * p_.num_q_heads + head] = empty ? -INFINITY : (top + ptx::log2_approx(all)) * 0.6931471805599453f;
  }

 private:
  const AttentionParams& p_;
  const SplitWork& work_;
};

}  // namespace warpweave::cuda
