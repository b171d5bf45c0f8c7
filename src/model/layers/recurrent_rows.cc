#include "model/layers/recurrent_rows.h"

#include "kv/state_pool.h"

namespace warpweave {

void RecurrentRows::start(const ForwardBatch& batch, int64_t row_width, int layers) {
  initial_slots_.assign(batch.state_slots.begin(), batch.state_slots.end());
  for (int r = 0; r < batch.num_reqs; ++r) {
    if (batch.q_len(r) > 0 && batch.positions[batch.q_indptr[r]] == 0) initial_slots_[r] = kNoStateSlot;
  }
  const bool steps = batch.mode == ForwardMode::decode;  // one row each
  keeps_rows_ = batch.mode == ForwardMode::target_verify;
  phase_ = steps ? LinearAttnPhase::decode : LinearAttnPhase::extend;
  if (keeps_rows_) phase_ = LinearAttnPhase::target_verify;
  batch_ = {};
  batch_.num_requests = batch.num_reqs;
  batch_.num_tokens = batch.num_tokens;
  batch_.max_q_tokens = batch.max_q_len;
  batch_.q_indptr = steps ? nullptr : batch.q_indptr.data();
  batch_.slots = batch.state_slots.data();
  batch_.initial_slots = initial_slots_.data();
  if (phase_ == LinearAttnPhase::extend && !batch.state_checkpoints.slots.empty()) {
    batch_.checkpoint_indptr = batch.state_checkpoints.indptr.data();
    batch_.checkpoint_tokens = batch.state_checkpoints.tokens.data();
    batch_.checkpoint_slots = batch.state_checkpoints.slots.data();
  }
  if (keeps_rows_ && !batch.tree_parents.empty()) batch_.parents = batch.tree_parents.data();
  layer_rows_ = batch.num_tokens * row_width;
  const auto values = static_cast<size_t>(layer_rows_ * (keeps_rows_ ? layers : 1));
  if (rows_.size() < values) rows_.resize(values);
}

void RecurrentRows::start_commit(std::span<const int32_t> accepted) {
  phase_ = LinearAttnPhase::commit;
  batch_.accepted = accepted.data();
}

}  // namespace warpweave
