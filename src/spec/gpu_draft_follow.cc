// The pass of a head over the rows that a step verified, as one graph behind that step: which of them count, the GPU
// finds out itself. Rows behind the last accepted one are computed, too; the next chain writes over their K/V.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "device/cuda/graph.h"
#include "device/cuda/stream.h"
#include "spec/gpu_draft_model.h"

namespace warpweave {

bool GpuDraftModel::follows(int requests, int q_len) const {
  const std::vector<int>& sizes = limits_.graph_batch_sizes;
  return parts_.kind && limits_.options.topk == 1 && !sizes.empty() && requests <= sizes.back() &&
         requests * q_len <= std::min(kMostFollowedRows, limits_.max_tokens);
}

// At the same places for equal shapes.
void GpuDraftModel::stage_following(const VerifiedChains& chains, std::span<const int32_t> keep,
                                    std::span<const int32_t> accepted) {
  const int requests = chains.requests, rows = requests * chains.q_len;
  const std::span<const int32_t> zeros = std::span<const int32_t>(zeros_).first(rows);
  Arrays& arrays = following_.arrays;
  arrays = {.features = put(std::span<const int32_t>(counting_).first(rows)),
            .keep = put_padded(keep, requests, limits_.max_kept_rows),
            .reads_target = true};
  follow_ = {.requests = requests, .q_len = chains.q_len, .ids = chains.input_ids, .sampled = chains.sampled,
             .accepted = put_padded(accepted, requests, 1)};
  arrays.input_ids = follow_.next_ids = leave_room(rows);
  follow_.last_rows = leave_room(requests);
  follow_q_indptr_.clear();
  for (int r = 0; r <= requests; ++r) follow_q_indptr_.push_back(r * chains.q_len);

  ForwardBatch& batch = following_.batch;
  batch = {};
  batch.mode = ForwardMode::draft_extend;
  batch.num_reqs = requests;
  batch.num_tokens = rows;
  batch.max_q_len = chains.q_len;
  batch.max_kv_len = limits_.max_pages_per_request * page_size();
  batch.page_size = page_size();
  batch.input_ids = batch.positions = batch.kv_slots = zeros;
  batch.kv_lens = zeros.first(requests);
  batch.q_indptr = follow_q_indptr_;
  batch.logits_rows = std::span<const int32_t>(follow_q_indptr_).first(requests);
  batch.page_table_stride = limits_.max_pages_per_request;
  batch.device.stream = stream_;
  batch.device.input_ids = arrays.input_ids;
  batch.device.positions = chains.positions;
  batch.device.kv_slots = chains.kv_slots;
  batch.device.kv_lens = chains.kv_lens;
  batch.device.q_indptr = chains.q_indptr;
  batch.device.logits_rows = follow_.last_rows;
  batch.device.page_table = target_table_;
}

// What was staged and uploaded.
Status GpuDraftModel::enqueue_following() {
  gpu::follow_chains(follow_, stream_);
  WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata_capture_cuda_graph(following_.batch));
  return choose(following_.batch, following_.arrays, /*topk=*/1, choices_.as<DraftChoice>());
}

// First runs the pass outside a capture, where things are loaded or allocated on first use; the graph does it again.
Result<cudaGraphExec_t> GpuDraftModel::follow_graph(const FollowShape& shape) {
  if (const auto found = follow_graphs_.find(shape); found != follow_graphs_.end()) return found->second.get();
  parts_.model->gemm().start_tuning();
  const Status tried = enqueue_following();
  parts_.model->gemm().stop_tuning();
  WW_RETURN_IF_ERROR(tried);
  WW_RETURN_IF_ERROR(wait_for_stream(stream_, "a trial run of a head"));
  Result<CudaGraphExec> exec = capture_graph(stream_, "capturing a head", [&] { return enqueue_following(); });
  if (!exec.ok()) {
    forget_cuda_failure();
    LOG_WARN("no CUDA graph for a head that follows {} requests of {} rows: {}", shape.requests, shape.q_len,
             exec.status().message());
    return follow_graphs_[shape].get();
  }
  return (follow_graphs_[shape] = std::move(*exec)).get();
}

Status GpuDraftModel::follow(const VerifiedChains& chains, std::span<const int32_t> keep,
                             std::span<const int32_t> accepted) {
  num_choices_ = static_cast<int>(keep.size());
  WW_RETURN_IF_ERROR(start_upload());
  stage_following(chains, keep, accepted);
  WW_RETURN_IF_ERROR(finish_upload());
  WW_ASSIGN_OR_RETURN(const cudaGraphExec_t graph, follow_graph({chains.requests, chains.q_len, chains.kv_lens}));
  if (graph == nullptr) return enqueue_following();
  WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata_replay_cuda_graph(following_.batch));
  return launch_graph(graph, stream_, "launching a head's graph");
}

}  // namespace warpweave
