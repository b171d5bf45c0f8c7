// The passes of trees as one graph: what the host knows of them is uploaded before; which nodes a level has, and whom
// they see, the graph makes of the choices of the pass before.
#include <algorithm>
#include <utility>

#include "device/cuda/graph.h"
#include "device/cuda/stream.h"
#include "ops/cuda/gpu_ops.h"
#include "spec/cuda/draft_kernels.h"
#include "spec/gpu_draft_model.h"

namespace warpweave {
namespace {

constexpr std::string_view kTrees = "trees of drafts; lower --speculative-eagle-topk";

int mask_words_of(int rows) { return (rows + 31) / 32; }

}  // namespace

// By pass positions and slots by row, what is kept and wanted by node of its level, and three arrays by request.
size_t GpuDraftModel::tree_bytes() const {
  const DraftOptions& options = limits_.options;
  if (limits_.graph_batch_sizes.empty() || options.topk == 1) return 0;
  const size_t requests = limits_.graph_batch_sizes.back() + 1, nodes = requests * options.topk;
  const size_t passes = std::max(1, options.num_steps - 1);
  const size_t a_pass = 2 * aligned(nodes * passes * sizeof(int32_t)) + 2 * aligned(nodes * sizeof(int32_t)) +
                        2 * aligned(requests * sizeof(int32_t));
  return passes * a_pass + 2 * aligned(requests * sizeof(int32_t)) + aligned(nodes * sizeof(DraftChoice));
}

Status GpuDraftModel::reserve_trees() {
  const DraftOptions& options = limits_.options;
  if (limits_.graph_batch_sizes.empty() || options.topk == 1) return {};
  const size_t of_request = static_cast<size_t>(options.topk) * std::max(1, options.num_steps - 1);
  const size_t rows = limits_.graph_batch_sizes.back() * of_request;
  const size_t mask_words = rows * mask_words_of(static_cast<int>(of_request));
  WW_ASSIGN_OR_RETURN(tree_nodes_, DeviceBuffer::allocate(rows * sizeof(gpu::TreeNode), kTrees));
  WW_ASSIGN_OR_RETURN(tree_ids_, DeviceBuffer::allocate(rows * sizeof(int32_t), kTrees));
  WW_ASSIGN_OR_RETURN(tree_features_, DeviceBuffer::allocate(rows * sizeof(int32_t), kTrees));
  WW_ASSIGN_OR_RETURN(tree_mask_, DeviceBuffer::allocate(mask_words * sizeof(uint32_t), kTrees));
  return {};
}

// The smallest graph that holds them.
GpuDraftModel::ChainShape GpuDraftModel::tree_shape_for(const TreeDraft& trees) const {
  const std::vector<int>& sizes = limits_.graph_batch_sizes;
  const auto size = std::lower_bound(sizes.begin(), sizes.end(), trees.num_requests());
  if (size == sizes.end() || trees.topk != limits_.options.topk || trees.passes >= limits_.options.num_steps) return {};
  return {*size, trees.passes, trees.topk};
}

// The arrays of a pass, padded; all padding without trees.
void GpuDraftModel::stage_tree_pass(const TreeDraft& trees, const ChainShape& shape, int pass) {
  const int topk = shape.topk, q_len = topk * (pass + 1), of_tree = topk * shape.passes;
  const int rows = shape.requests * q_len, requests = trees.num_requests();
  std::vector<int32_t> positions, kv_slots, kv_lens, keep;
  for (int r = 0; r < requests; ++r) {
    for (int k = 0; k < q_len; ++k) positions.push_back(trees.begins[r] + k / topk);
    const auto slots = trees.kv_slots.begin() + r * of_tree;
    kv_slots.insert(kv_slots.end(), slots, slots + q_len);
    kv_lens.push_back(trees.begins[r] + q_len);
    for (int w = 0; w < topk; ++w) keep.push_back(trees.first_kept + (pass * requests + r) * topk + w);
  }
  std::vector<int32_t>&q_indptr = tree_q_indptr_[pass], &logits_rows = tree_logits_rows_[pass];
  q_indptr.assign(1, 0);
  logits_rows.clear();
  for (int r = 0; r < shape.requests; ++r) {
    for (int w = topk; w > 0; --w) logits_rows.push_back((r + 1) * q_len - w);
    q_indptr.push_back((r + 1) * q_len);
  }
  Arrays& arrays = chain_[pass].arrays;
  arrays = {.input_ids = tree_ids_.as<int32_t>(), .requests = tree_requests_, .features = tree_features_.as<int32_t>(),
            .keep = put_padded(keep, shape.requests * topk, limits_.max_kept_rows)};
  ForwardBatch& batch = chain_[pass].batch;
  batch = {};
  batch.mode = ForwardMode::draft_extend;
  batch.num_reqs = shape.requests;
  batch.num_tokens = rows;
  batch.max_q_len = q_len;
  batch.max_kv_len = limits_.max_pages_per_request * page_size();
  batch.page_size = page_size();
  batch.input_ids = batch.positions = batch.kv_slots = std::span<const int32_t>(zeros_).first(rows);
  batch.kv_lens = std::span<const int32_t>(zeros_).first(shape.requests);
  batch.q_indptr = q_indptr;
  batch.logits_rows = logits_rows;
  batch.tree_mask_words = mask_words_of(q_len);
  batch.page_table_stride = limits_.max_pages_per_request;
  batch.device.stream = stream_;
  batch.device.input_ids = arrays.input_ids;
  batch.device.positions = put_padded(positions, rows, 0);
  batch.device.kv_slots = put_padded(kv_slots, rows, -1);
  batch.device.kv_lens = put_padded(kv_lens, shape.requests, 0);
  batch.device.q_indptr = put(std::span<const int32_t>(q_indptr));
  batch.device.logits_rows = put(std::span<const int32_t>(logits_rows));
  batch.device.tree_mask = tree_mask_.as<uint32_t>();
  batch.device.page_table = page_table_.as<int32_t>();
}

// At the same places for equal shapes.
void GpuDraftModel::stage_trees(const TreeDraft& trees, const ChainShape& shape) {
  padded_first_.assign(trees.first.begin(), trees.first.end());
  padded_first_.resize(static_cast<size_t>(shape.requests) * shape.topk);
  tree_first_ = put(std::span<const DraftChoice>(padded_first_));
  tree_first_features_ = put_padded(trees.features, shape.requests, limits_.max_kept_rows);
  tree_requests_ = put_padded(trees.requests, shape.requests, 0);
  chain_.resize(shape.passes);
  tree_q_indptr_.resize(shape.passes);
  tree_logits_rows_.resize(shape.passes);
  for (int pass = 0; pass < shape.passes; ++pass) stage_tree_pass(trees, shape, pass);
}

// Those that were staged and uploaded.
Status GpuDraftModel::enqueue_trees(const ChainShape& shape) {
  gpu::gather_rows({target_table_, tree_requests_, shape.requests, int64_t{limits_.max_pages_per_request} * 4,
                   page_table_.as<void>()}, stream_);
  const bool keeps = parts_.kind.has_value();
  DraftChoice* choices = chain_choices();
  for (int pass = 0; pass < shape.passes; ++pass) {
    const ForwardBatch& batch = chain_[pass].batch;
    gpu::TreeLevelCall level = {.requests = shape.requests,
                                .topk = shape.topk,
                                .level = pass + 1,
                                .first = tree_first_,
                                .first_features = keeps ? tree_first_features_ : nullptr,
                                .kv_lens = batch.device.kv_lens,
                                .padding_feature = limits_.max_kept_rows,
                                .nodes = tree_nodes_.as<gpu::TreeNode>(),
                                .max_nodes = shape.topk * shape.passes,
                                .ids = tree_ids_.as<int32_t>(),
                                .features = keeps ? tree_features_.as<int32_t>() : nullptr,
                                .mask = tree_mask_.as<uint32_t>(),
                                .mask_words = batch.tree_mask_words};
    if (pass > 0) {
      level.choices = choices;
      if (keeps) level.kept = chain_[pass - 1].arrays.keep;
      choices += shape.requests * shape.topk * shape.topk;
    }
    gpu::tree_level(level, stream_);
    WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata_capture_cuda_graph(batch));
    WW_RETURN_IF_ERROR(choose(batch, chain_[pass].arrays, shape.topk, choices));
  }
  return {};
}

Result<bool> GpuDraftModel::run_trees(const TreeDraft& trees, const BatchBuilder&) {
  const ChainShape shape = tree_shape_for(trees);
  if (shape.requests == 0 || num_choices_ > 0) return false;
  WW_ASSIGN_OR_RETURN(const cudaGraphExec_t graph, chain_graph(shape));
  if (graph == nullptr) return false;
  WW_RETURN_IF_ERROR(start_upload());
  stage_trees(trees, shape);
  WW_RETURN_IF_ERROR(finish_upload());
  WW_RETURN_IF_ERROR(launch_drafts(graph, shape, trees.num_requests()));
  return true;
}

}  // namespace warpweave
