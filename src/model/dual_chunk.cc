#include "model/dual_chunk.h"

#include <algorithm>
#include <cmath>

namespace warpweave {

std::optional<DualChunkConfig> dual_chunk_in_use(const ModelConfig& config, int max_positions) {
  if (!config.dual_chunk) return std::nullopt;
  const bool one_chunk = max_positions <= DualChunkRope(*config.dual_chunk).chunk_len();
  return one_chunk && config.dual_chunk->original_max_positions == 0 ? std::nullopt : config.dual_chunk;
}

DualChunkRope::DualChunkRope(const DualChunkConfig& config)
    : chunk_len_(config.chunk_size - config.local_size),
      farthest_(std::min(config.chunk_size, 2 * chunk_len_ - 1)),
      original_max_positions_(config.original_max_positions) {}

void DualChunkRope::start(const ForwardBatch& batch) {
  rows_ = batch.num_tokens;
  own_.resize(rows_);
  succ_.resize(rows_);
  inter_.assign(rows_, farthest_);
  scale_.clear();
  beyond_first_chunk_ = false;
  for (int64_t r = 0; r < rows_; ++r) {
    const int32_t position = batch.positions[r];
    own_[r] = position % chunk_len_;
    succ_[r] = std::min(own_[r] + chunk_len_, farthest_);
    beyond_first_chunk_ |= position >= chunk_len_;
    if (original_max_positions_ > 0 && position >= original_max_positions_) {
      scale_.resize(rows_, 1.0f);
      const double length = position + 1.0;
      scale_[r] = static_cast<float>(0.1 * std::log(length / original_max_positions_) + 1);
    }
  }
}

void DualChunkRope::scale_rows(float* q, int64_t stride, int64_t width) const {
  for (size_t r = 0; r < scale_.size(); ++r) {
    if (scale_[r] == 1.0f) continue;
    for (int64_t i = 0; i < width; ++i) q[r * stride + i] *= scale_[r];
  }
}

const DualChunkQueries* DualChunkRope::norm_rope_write_kv(const QkvRowsCall& call, ThreadTeam& team) {
  const int64_t width = int64_t{call.num_q_heads} * call.head_dim;
  if (beyond_first_chunk_) {
    struct Form { std::vector<float>* q; const std::vector<int32_t>* positions; };
    for (const Form& form : {Form{&q_succ_, &succ_}, Form{&q_inter_, &inter_}}) {
      form.q->resize(rows_ * width);
      for (int64_t r = 0; r < rows_; ++r) {
        std::copy_n(call.q + r * call.q_stride, width, form.q->data() + r * width);
      }
      QkvRowsCall queries = call;  // no keys, nothing written
      queries.num_kv_heads = 0;
      queries.q = form.q->data();
      queries.q_stride = width;
      queries.positions = form.positions->data();
      queries.k_out = queries.v_out = {};
      warpweave::norm_rope_write_kv(queries, team);
      scale_rows(form.q->data(), width, width);
    }
    queries_ = {q_succ_.data(), q_inter_.data(), width, chunk_len_};
  }
  warpweave::norm_rope_write_kv(call, team);
  scale_rows(call.q, call.q_stride, width);
  return beyond_first_chunk_ ? &queries_ : nullptr;
}

}  // namespace warpweave
