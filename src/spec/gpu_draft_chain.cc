// The passes of chains as one graph: all their arrays are uploaded before, and each pass reads what the one before
// chose.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "device/cuda/graph.h"
#include "device/cuda/stream.h"
#include "ops/cuda/gpu_ops.h"
#include "spec/cuda/draft_kernels.h"
#include "spec/gpu_draft_model.h"

namespace warpweave {
namespace {

// By request: of all passes q_indptr, logits_rows and requests, and of each pass those of ChainPass.
constexpr int kSharedArrays = 3, kArraysOfPass = 7;

}  // namespace

size_t GpuDraftModel::chain_bytes() const {
  if (limits_.graph_batch_sizes.empty() || limits_.options.topk > 1) return 0;
  const size_t array_bytes = aligned((limits_.graph_batch_sizes.back() + 1) * sizeof(int32_t));
  return (kSharedArrays + kArraysOfPass * static_cast<size_t>(limits_.options.num_steps)) * array_bytes;
}

Status GpuDraftModel::reserve_chains() {
  std::vector<int>& sizes = limits_.graph_batch_sizes;
  const int topk = limits_.options.topk;
  const int rows = topk == 1 ? 1 : topk * std::max(1, limits_.options.num_steps - 1);  // of a request in a pass
  const int most = std::min({limits_.max_level_rows / topk, limits_.max_requests, limits_.max_tokens / rows});
  std::erase_if(sizes, [&](int size) { return size > most; });
  if (topk > gpu::kMostTreeBranches || !parts_.attention->captures_verification()) sizes.clear();
  if (sizes.empty()) return {};
  const int most_rows = std::max(sizes.back() * rows, parts_.kind && topk == 1 ? kMostFollowedRows : 0);
  zeros_.resize(most_rows);
  counting_.resize(most_rows + 1);
  std::iota(counting_.begin(), counting_.end(), 0);
  return parts_.attention->init_cuda_graph_state({.max_batch_size = sizes.back(), .max_tokens = most_rows,
                                                  .max_pages_per_request = limits_.max_pages_per_request});
}

// The smallest graph that holds the passes: of the same requests, one row each.
GpuDraftModel::ChainShape GpuDraftModel::chain_shape_for(std::span<const DraftPass> passes) const {
  if (passes.empty() || static_cast<int>(passes.size()) > limits_.options.num_steps) return {};
  const auto fits = [&](const DraftPass& pass) {
    return pass.topk == 1 && pass.rows() == pass.num_requests() && pass.mask.empty() && !pass.reads_target &&
           pass.logits_rows.size() == pass.input_ids.size() && pass.requests == passes.front().requests;
  };
  if (!std::all_of(passes.begin(), passes.end(), fits)) return {};
  const std::vector<int>& sizes = limits_.graph_batch_sizes;
  const auto size = std::lower_bound(sizes.begin(), sizes.end(), passes.front().rows());
  return size == sizes.end() ? ChainShape{} : ChainShape{*size, static_cast<int>(passes.size()), 1};
}

const int32_t* GpuDraftModel::put_padded(std::span<const int32_t> values, int count, int32_t padding) {
  padded_.assign(values.begin(), values.end());
  padded_.resize(count, padding);
  return put(std::span<const int32_t>(padded_));
}

// The tokens of a pass: choices of the chain stand by padded request.
void GpuDraftModel::put_chain_tokens(std::span<const DraftPass> passes, size_t pass, const ChainShape& shape,
                                     Arrays& arrays) {
  std::vector<int32_t> ids;
  choice_slots_.clear();
  if (!passes.empty()) ids = passes[pass].input_ids;
  for (int32_t& id : ids) {
    int choice = -1 - id;
    if (choice >= num_choices_) {
      const int rows = passes.front().rows(), of_chain = choice - num_choices_;
      choice = max_choices_ + of_chain / rows * shape.requests + of_chain % rows;
    }
    if (id < 0) id = -1 - choice;
    choice_slots_.push_back(id < 0 ? choice * kWordsOfChoice : -1);
  }
  arrays.input_ids = put_padded(ids, shape.requests, 0);
  arrays.choice_slots = put_padded(choice_slots_, shape.requests, -1);
}

// The arrays of all passes, at the same places for equal shapes; all padding without passes. Padded rows see nothing,
// and their hidden states share a row that nobody reads.
void GpuDraftModel::stage_chain(std::span<const DraftPass> passes, const ChainShape& shape) {
  const int count = shape.requests;
  const DraftPass none;
  const std::span<const int32_t> counting(counting_), zeros = std::span<const int32_t>(zeros_).first(count);
  const int32_t* const q_indptr = put(counting.first(count + 1));
  const int32_t* const logits_rows = put(counting.first(count));
  const int32_t* const requests = put_padded(passes.empty() ? none.requests : passes.front().requests, count, 0);
  chain_.resize(shape.passes);
  for (int i = 0; i < shape.passes; ++i) {
    const DraftPass& pass = passes.empty() ? none : passes[i];
    Arrays& arrays = chain_[i].arrays;
    arrays = {};
    arrays.requests = requests;
    put_chain_tokens(passes, i, shape, arrays);
    arrays.features = put_padded(pass.features, count, limits_.max_kept_rows);
    arrays.keep = put_padded(pass.keep, count, limits_.max_kept_rows);
    ForwardBatch& batch = chain_[i].batch;
    batch = {};
    batch.mode = ForwardMode::decode;
    batch.num_reqs = batch.num_tokens = count;
    batch.max_q_len = 1;
    batch.max_kv_len = limits_.max_pages_per_request * page_size();
    batch.page_size = page_size();
    batch.input_ids = batch.positions = batch.kv_slots = batch.kv_lens = zeros;
    batch.q_indptr = counting.first(count + 1);
    batch.logits_rows = counting.first(count);
    batch.page_table_stride = limits_.max_pages_per_request;
    batch.device.stream = stream_;
    batch.device.input_ids = arrays.input_ids;
    batch.device.positions = put_padded(pass.positions, count, 0);
    batch.device.kv_slots = put_padded(pass.kv_slots, count, -1);
    batch.device.kv_lens = put_padded(pass.kv_lens, count, 0);
    batch.device.q_indptr = q_indptr;
    batch.device.logits_rows = logits_rows;
    batch.device.page_table = page_table_.as<int32_t>();
  }
}

// The chain that was staged and uploaded.
Status GpuDraftModel::enqueue_chain(const ChainShape& shape) {
  gpu::gather_rows({target_table_, chain_.front().arrays.requests, shape.requests,
                   int64_t{limits_.max_pages_per_request} * 4, page_table_.as<void>()}, stream_);
  std::vector<const ForwardBatch*> batches;
  for (const ChainPass& pass : chain_) batches.push_back(&pass.batch);
  WW_RETURN_IF_ERROR(parts_.attention->plan_together(batches));
  for (int pass = 0; pass < shape.passes; ++pass) {
    WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata_capture_cuda_graph(chain_[pass].batch));
    WW_RETURN_IF_ERROR(
        choose(chain_[pass].batch, chain_[pass].arrays, /*topk=*/1, chain_choices() + pass * shape.requests));
  }
  return {};
}

// First runs the chain for real, all padding: what is loaded or allocated on first use must not happen inside a
// capture.
Status GpuDraftModel::capture_chain(const ChainShape& shape) {
  const auto enqueue = [&] { return shape.topk > 1 ? enqueue_trees(shape) : enqueue_chain(shape); };
  WW_RETURN_IF_ERROR(start_upload());
  if (shape.topk > 1) {
    stage_trees({}, shape);
  } else {
    stage_chain({}, shape);
  }
  WW_RETURN_IF_ERROR(finish_upload());
  parts_.model->gemm().start_tuning();
  const Status tried = enqueue();
  parts_.model->gemm().stop_tuning();
  WW_RETURN_IF_ERROR(tried);
  WW_RETURN_IF_ERROR(wait_for_stream(stream_, "a trial run of drafts"));
  WW_ASSIGN_OR_RETURN(CudaGraphExec exec, capture_graph(stream_, "capturing drafts", enqueue));
  chain_graphs_[shape] = std::move(exec);
  return {};
}

Result<cudaGraphExec_t> GpuDraftModel::chain_graph(const ChainShape& shape) {
  if (const auto found = chain_graphs_.find(shape); found != chain_graphs_.end()) return found->second.get();
  const Status captured = capture_chain(shape);
  if (!captured.ok()) {
    forget_cuda_failure();
    LOG_WARN("no CUDA graph for {} drafts of {} requests, their passes run one by one: {}", shape.passes,
             shape.requests, captured.message());
  }
  return chain_graphs_[shape].get();
}

Status GpuDraftModel::run_chain(std::span<const DraftPass> passes, const BatchBuilder& step) {
  WW_ASSIGN_OR_RETURN(const bool at_once, run_chain_at_once(passes));
  return at_once ? Status() : DraftModel::run_chain(passes, step);
}

// By a graph, if there is one.
Result<bool> GpuDraftModel::run_chain_at_once(std::span<const DraftPass> passes) {
  const ChainShape shape = chain_shape_for(passes);
  if (shape.requests == 0) return false;
  WW_ASSIGN_OR_RETURN(const cudaGraphExec_t graph, chain_graph(shape));
  if (graph == nullptr) return false;
  WW_RETURN_IF_ERROR(start_upload());
  stage_chain(passes, shape);
  WW_RETURN_IF_ERROR(finish_upload());
  WW_RETURN_IF_ERROR(launch_drafts(graph, shape, passes.front().rows()));
  return true;
}

Result<bool> GpuDraftModel::run_chain_ahead(std::span<const DraftPass> passes, const BatchBuilder&) {
  WW_ASSIGN_OR_RETURN(const bool at_once, run_chain_at_once(passes));
  if (at_once) ahead_ = std::exchange(drafted_, {});
  return at_once;
}

Status GpuDraftModel::place_guesses(int requests, int q_len, int32_t* ids, int32_t* copy) {
  if (ahead_.requests < requests || ahead_.passes != q_len - 2) return Status::internal("no such guesses were drafted");
  gpu::place_guesses({.requests = requests,
                      .q_len = q_len,
                      .first_ids = chain_.front().arrays.input_ids,
                      .choices = choices_.as<DraftChoice>(),
                      .later = chain_choices(),
                      .later_stride = ahead_.requests,
                      .ids = ids,
                      .copy = copy},
                     stream_);
  ahead_ = {};
  return launch_status("placing guesses");
}

// Of what was staged and uploaded.
Status GpuDraftModel::launch_drafts(cudaGraphExec_t graph, const ChainShape& shape, int requests) {
  for (const ChainPass& pass : chain_) {
    WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata_replay_cuda_graph(pass.batch));
  }
  WW_RETURN_IF_ERROR(launch_graph(graph, stream_, "launching a graph of drafts"));
  drafted_ = shape;
  drafted_requests_ = requests;
  return {};
}

}  // namespace warpweave
