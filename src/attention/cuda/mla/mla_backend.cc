#include "attention/cuda/mla/mla_backend.h"

#include <algorithm>
#include <cassert>

#include "attention/batch_check.h"
#include "device/cuda/compute_capability.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/current_device.h"
#include "device/cuda/stream.h"

namespace warpweave::cuda {
namespace {

// Requests of up to so many rows (query tokens x heads) are computed over the whole KV range of the request. Longer
// ones are cut into slices, so that what causal attention hides from a slice is not read.
constexpr int kUncutRows = 128;
// Drafts are never cut: their tokens may form a tree.
bool is_draft(const ForwardBatch& batch) {
  return batch.tree_mask_words > 0 || batch.mode == ForwardMode::target_verify ||
         batch.mode == ForwardMode::draft_extend;
}

// Query tokens of a slice: two row tiles, which a cluster of two CTAs computes over the same tokens; beside decoding
// requests, which fill only one, one.
int slice_tokens_of(const ForwardBatch& batch, const MlaParams& p) {
  return std::max(1, (batch.mode == ForwardMode::mixed ? kUncutRows / 2 : kUncutRows) / p.num_heads);
}

MlaParams params_of(const ForwardBatch& batch, const AttentionCall& call) {
  assert(call.head_dim == kMlaDim && call.v_head_dim == kMlaLatentDim && call.num_kv_heads == 1);
  const int element_bytes = kv_format_bits(call.k.format) / 8;
  MlaParams p;
  p.q = call.q;
  p.q_token_stride = call.q_token_stride;
  p.out = call.out;
  p.out_token_stride = call.out_token_stride;
  p.lse = call.lse;
  p.kv = call.k.data;
  p.page_stride_bytes = call.k.page_stride * element_bytes;
  p.token_stride_bytes = call.k.token_stride * element_bytes;
  p.page_table = batch.device.page_table;
  p.page_table_stride = batch.page_table_stride;
  p.kv_lens = batch.device.kv_lens;
  p.q_indptr = batch.device.q_indptr;
  p.tree_mask = batch.tree_mask_words > 0 ? batch.device.tree_mask : nullptr;
  p.tree_mask_words = batch.tree_mask_words;
  p.num_requests = batch.num_reqs;
  p.num_heads = call.num_q_heads;
  p.max_q_len = batch.max_q_len;
  p.page_size = batch.page_size;
  p.page_shift = page_shift_of(batch.page_size);
  p.causal = batch.causal;
  p.earlier_kv_settled = call.earlier_kv_settled;
  p.scale = call.scale;
  p.kv_scale = call.k.head_scales;
  return p;
}

}  // namespace

MlaShape MlaBackend::shape_of(const AttentionCall& call, const MlaParams& p) const {
  MlaShape shape;
  shape.element = call.q_dtype == DType::f16 ? MlaElement::f16 : MlaElement::bf16;
  shape.format = mla_format_of(call.k.format);
  shape.family = choice_ == MlaChoice::mma                        ? MlaFamily::mma
                 : choice_ == MlaChoice::faster && !deterministic_ ? faster_mla_family(shape.format, p)
                                                                   : MlaFamily::wgmma;
  return shape;
}

Status MlaBackend::prepare() {
  if (num_sms_ > 0) return {};
  WW_ASSIGN_OR_RETURN(const int sms, multiprocessors("attention"));
  dependent_launch_ = current_compute_capability() >= 90;
  WW_ASSIGN_OR_RETURN(workspace_, DeviceBuffer::allocate(most_mla_workspace_bytes(sms), "attention partials"));
  num_sms_ = sms;
  return {};
}

Status MlaBackend::init_forward_metadata(const ForwardBatch& batch) {
  WW_RETURN_IF_ERROR(prepare());
  if (!batch.q_indptr.empty()) WW_RETURN_IF_ERROR(check_batch(batch));
  cut_ = planned_ = false;
  return {};
}

Status MlaBackend::init_cuda_graph_state(const GraphLimits&) { return prepare(); }

Status MlaBackend::init_forward_metadata_capture_cuda_graph(const ForwardBatch&) {
  WW_RETURN_IF_ERROR(prepare());
  cut_ = planned_ = false;
  return {};
}

// The graph holds its own plan launch.
Status MlaBackend::init_forward_metadata_replay_cuda_graph(const ForwardBatch&) { return {}; }

// The requests of `p` become slices.
Status MlaBackend::cut(const ForwardBatch& batch, int slice_tokens, MlaParams& p) {
  const auto stream = static_cast<cudaStream_t>(batch.device.stream);
  const int count = MlaSlices::count(batch.num_tokens, batch.num_reqs, slice_tokens);
  const size_t bytes = sizeof(int32_t) * (3 * static_cast<size_t>(count) + 1);
  if (slices_.size_bytes() < bytes) {
    WW_RETURN_IF_ERROR(wait_for_stream(stream, "attention slices"));
    WW_ASSIGN_OR_RETURN(slices_, DeviceBuffer::allocate(bytes + bytes / 2, "attention slices"));
  }
  MlaSlices slices;
  slices.slice_tokens = slice_tokens;
  slices.q_indptr = slices_.as<int32_t>();
  slices.kv_lens = slices.q_indptr + count + 1;
  slices.page_rows = slices.kv_lens + count;
  if (!cut_) WW_CUDA_RETURN_IF_ERROR(launch_mla_slices(p, batch.num_tokens, slices, stream), "attention slices");
  cut_ = true;
  p.earlier_kv_settled = false;  // of a slice's earlier tokens, some are this step's
  p.q_indptr = slices.q_indptr;
  p.kv_lens = slices.kv_lens;
  p.page_rows = slices.page_rows;
  p.num_requests = count;
  p.max_q_len = slice_tokens;
  return {};
}

Status MlaBackend::forward(const ForwardBatch& batch, const AttentionCall& call) {
  if (batch.num_tokens == 0) return {};
  const auto stream = static_cast<cudaStream_t>(batch.device.stream);
  MlaParams p = params_of(batch, call);
  if (deterministic_ && is_draft(batch))
    return Status::internal("attention: drafts are not verified deterministically");
  if (!is_draft(batch) && p.max_q_len > 1 && (deterministic_ || p.max_q_len * p.num_heads > kUncutRows)) {
    WW_RETURN_IF_ERROR(cut(batch, deterministic_ ? 1 : slice_tokens_of(batch, p), p));
  }
  const MlaShape shape = shape_of(call, p);
  MlaLayout layout = mla_layout(shape, p, num_sms_);
  if (deterministic_) layout = with_whole_pairs(layout);
  assert(layout.tile_rows > 0 && layout.workspace_bytes <= workspace_.size_bytes());
  const bool planned = planned_ && layout == layout_;
  if (!planned) {
    WW_CUDA_RETURN_IF_ERROR(launch_mla_plan(layout, p, workspace_.as<void>(), stream), "attention plan");
    planned_ = true;
    layout_ = layout;
  }
  return cuda_status(launch_mla_decode(shape, layout, p, workspace_.as<void>(), planned && dependent_launch_, stream),
                     "latent attention");
}

}  // namespace warpweave::cuda
