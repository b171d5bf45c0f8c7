#include "model/layers/gpu_recurrent_rows.h"

#include <algorithm>
#include <utility>

namespace warpweave {

void GpuRecurrentRows::reserve(int64_t row_width, const GpuRecurrentLimits& limits, GpuWorkspace& workspace) {
  const size_t element = dtype_info(limits.dtype).block_bytes;
  dtype_ = limits.dtype;
  batch_invariant_ = limits.batch_invariant;
  verify_rows_ = limits.verify_rows;
  layer_bytes_ = verify_rows_ * row_width * static_cast<int64_t>(element);
  workspace.get(rows_, std::max(limits.tokens, verify_rows_ * limits.layers) * row_width, element);
}

namespace {

// Requests of one row that stand together at the beginning or at the end of the batch, more of them: [first, end).
std::pair<int, int> single_rows(const ForwardBatch& batch) {
  int front = 0, back = batch.num_reqs;
  while (front < batch.num_reqs && batch.q_len(front) == 1) ++front;
  while (back > front && batch.q_len(back - 1) == 1) --back;
  return front >= batch.num_reqs - back ? std::pair(0, front) : std::pair(back, batch.num_reqs);
}

bool checkpoints_end_chunks(const ForwardBatch& batch) {
  const StateCheckpointArrays& checkpoints = batch.state_checkpoints;
  for (int r = 0; r + 1 < static_cast<int>(checkpoints.indptr.size()); ++r) {
    for (int i = checkpoints.indptr[r]; i < checkpoints.indptr[r + 1]; ++i) {
      if (checkpoints.tokens[i] % kLinearAttnChunkTokens != 0 && checkpoints.tokens[i] != batch.q_len(r)) return false;
    }
  }
  return !checkpoints.indptr.empty();
}

}  // namespace

void GpuRecurrentRows::add_part(const ForwardBatch& batch, int first, int end, LinearAttnPhase phase) {
  if (first == end) return;
  Part& part = parts_[num_parts_++];
  part = {};
  part.phase = phase;
  part.batch.num_requests = end - first;
  part.batch.num_tokens = batch.num_tokens;  // rows are counted from the batch's beginning
  part.batch.max_q_tokens = phase == LinearAttnPhase::decode ? 1 : batch.max_q_len;
  part.batch.q_indptr = batch.mode == ForwardMode::decode ? nullptr : batch.device.q_indptr + first;
  part.batch.slots = batch.device.state_slots + first;
  part.batch.initial_slots = batch.device.initial_state_slots + first;
  if (phase != LinearAttnPhase::extend || batch.device.checkpoint_indptr == nullptr) return;
  part.batch.checkpoint_indptr = batch.device.checkpoint_indptr + first;
  part.batch.checkpoint_tokens = batch.device.checkpoint_tokens;
  part.batch.checkpoint_slots = batch.device.checkpoint_slots;
  part.batch.checkpoints_end_chunks = checkpoints_end_chunks(batch);
}

// A step that computes prompts beside others' tokens runs each in kernels of its own. Where bits count there are no
// such steps, and a single row is what is left of a prompt.
Status GpuRecurrentRows::start(const ForwardBatch& batch, const int32_t* tree_parents) {
  num_parts_ = 0;
  keeps_rows_ = batch.mode == ForwardMode::target_verify;
  if (keeps_rows_) {
    if (batch.num_tokens > verify_rows_)
      return Status::internal("a step verifies more proposals than recurrent layers have memory for");
    add_part(batch, 0, batch.num_reqs, LinearAttnPhase::target_verify);
    parts_[0].batch.parents = tree_parents;
    return {};
  }
  const bool decodes = batch.mode == ForwardMode::decode;
  const auto [first, end] = decodes            ? std::pair(0, batch.num_reqs)
                            : batch_invariant_ ? std::pair(0, 0)
                                               : single_rows(batch);
  add_part(batch, first, end, LinearAttnPhase::decode);
  add_part(batch, first == 0 ? end : 0, first == 0 ? batch.num_reqs : first, LinearAttnPhase::extend);
  return {};
}

Status GpuRecurrentRows::start_commit(const ForwardBatch& batch, const int32_t* tree_parents, const int32_t* accepted) {
  WW_RETURN_IF_ERROR(start(batch, tree_parents));
  parts_[0].phase = LinearAttnPhase::commit;
  parts_[0].batch.accepted = accepted;
  return {};
}

void* GpuRecurrentRows::of_layer(int state_layer) const {
  return keeps_rows_ ? static_cast<std::byte*>(rows_) + state_layer * layer_bytes_ : rows_;
}

}  // namespace warpweave
