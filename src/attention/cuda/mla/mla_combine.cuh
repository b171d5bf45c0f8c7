// What the rows of latent attention's units are, for the kernel that merges pieces (split_combine.cuh).
#pragma once

#include "attention/cuda/mla/mla_run.cuh"
#include "attention/cuda/split_combine.cuh"

namespace warpweave::cuda {

template <class E>
class MlaRows {
 public:
  static constexpr int kValueDim = kMlaLatentDim;

  WW_DEVICE MlaRows(const MlaParams& p, const SplitWork& work) : p_(p), tile_rows_(work.tile_rows) {}

  WW_DEVICE int most_rows() const { return min(tile_rows_, p_.max_q_len * p_.num_heads); }
  WW_DEVICE int rows_of(const SplitCut& cut) const { return cut.q_len * p_.num_heads - cut.unit * tile_rows_; }

  WW_DEVICE void write(const SplitCut& cut, int local, int column, const float (&sum)[2],
                       const SplitTotal& total) const {
    const int row = cut.unit * tile_rows_ + local, query = row / p_.num_heads, head = row - query * p_.num_heads;
    const bool empty = total.maximum == -INFINITY;
    const float scale = empty ? 0.0f : __fdividef(mla_kv_scale<MlaFormat::e4m3>(p_), total.sum);
    const int64_t token = static_cast<int64_t>(cut.q_begin) + query;
    ptx::u32* out = reinterpret_cast<ptx::u32*>(
        static_cast<char*>(p_.out) + (token * p_.out_token_stride + head * p_.out_head_stride + column) * 2);
    *out = E::pack(sum[0] * scale, sum[1] * scale);
    if (p_.lse == nullptr || column != 0) return;
    constexpr float kLn2 = 0.6931471805599453f;
    p_.lse[token * p_.num_heads + head] = empty ? -INFINITY : (total.maximum + ptx::log2_approx(total.sum)) * kLn2;
  }

 private:
  const MlaParams& p_;
  const int tile_rows_;
};

}  // namespace warpweave::cuda
