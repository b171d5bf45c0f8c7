#include "attention/hybrid.h"

#include <algorithm>
#include <utility>

#include "attention/registry.h"
#include "attention/select.h"

namespace warpweave {
namespace {

Caps common_caps(const Caps& a, const Caps& b) {
  Caps caps = a;
  caps.name = "hybrid";
  caps.summary = "two backends by forward mode";
  caps.kinds.bits &= b.kinds.bits;
  caps.phases.bits |= b.phases.bits;
  caps.archs.bits &= b.archs.bits;
  caps.dtypes.bits &= b.dtypes.bits;
  caps.kv_formats.bits &= b.kv_formats.bits;
  caps.decode_kv_formats = {};
  caps.spec = std::min(a.spec, b.spec);
  caps.spec_paged = std::min(a.spec_paged, b.spec_paged);
  caps.sliding_window &= b.sliding_window;
  caps.sinks &= b.sinks;
  caps.softcap &= b.softcap;
  caps.custom_mask &= b.custom_mask;
  caps.chunked_prefix &= b.chunked_prefix;
  caps.non_causal &= b.non_causal;
  caps.right_window &= b.right_window;
  caps.graph_capture &= b.graph_capture;
  // The two phases round differently, so a token's bits depend on the phase that computed it.
  caps.deterministic = false;
  caps.workspace_bytes = a.workspace_bytes + b.workspace_bytes;
  return caps;
}

}  // namespace

HybridAttnBackend::HybridAttnBackend(std::unique_ptr<AttentionBackend> prefill,
                                     std::unique_ptr<AttentionBackend> decode,
                                     bool verify_with_decode)
    : prefill_(std::move(prefill)),
      decode_(std::move(decode)),
      verify_with_decode_(verify_with_decode),
      caps_(common_caps(prefill_->caps(), decode_->caps())) {}

AttentionBackend& HybridAttnBackend::child_for(ForwardMode mode) const {
  switch (mode) {
    case ForwardMode::decode:
    case ForwardMode::idle:
      return *decode_;
    case ForwardMode::target_verify:
    case ForwardMode::draft_extend:
      return verify_with_decode_ ? *decode_ : *prefill_;
    case ForwardMode::extend:
    case ForwardMode::mixed:
      break;
  }
  return *prefill_;
}

Status HybridAttnBackend::init_forward_metadata(const ForwardBatch& batch) {
  return child_for(batch.mode).init_forward_metadata(batch);
}
Status HybridAttnBackend::reserve(const ForwardBatch& batch, const AttentionCall& shape) {
  return child_for(batch.mode).reserve(batch, shape);
}
Status HybridAttnBackend::compile(const AttentionCall& shape, int max_q_len) {
  return child_for(max_q_len == 1 ? ForwardMode::decode : ForwardMode::extend).compile(shape, max_q_len);
}
Status HybridAttnBackend::forward_extend(const ForwardBatch& batch, const AttentionCall& call) {
  return child_for(batch.mode).forward_extend(batch, call);
}
Status HybridAttnBackend::forward_decode(const ForwardBatch& batch, const AttentionCall& call) {
  return child_for(batch.mode).forward_decode(batch, call);
}

// The decode child is always captured; the prefill child only when it verifies.
Status HybridAttnBackend::init_cuda_graph_state(const GraphLimits& limits) {
  WW_RETURN_IF_ERROR(decode_->init_cuda_graph_state(limits));
  return verify_with_decode_ || !prefill_->captures_verification() ? Status() : prefill_->init_cuda_graph_state(limits);
}
Status HybridAttnBackend::init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch) {
  return child_for(batch.mode).init_forward_metadata_capture_cuda_graph(batch);
}
Status HybridAttnBackend::init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch) {
  return child_for(batch.mode).init_forward_metadata_replay_cuda_graph(batch);
}

Result<std::unique_ptr<AttentionBackend>> create_resolved_backend(const Resolved& resolved,
                                                                  const BackendContext& wanted) {
  BackendContext context = wanted;
  context.deterministic = resolved.deterministic;
  WW_ASSIGN_OR_RETURN(auto prefill, create_backend(*resolved.prefill_caps, context));
  if (resolved.decode_caps == resolved.prefill_caps) return prefill;
  WW_ASSIGN_OR_RETURN(auto decode, create_backend(*resolved.decode_caps, context));
  return std::unique_ptr<AttentionBackend>(std::make_unique<HybridAttnBackend>(
      std::move(prefill), std::move(decode), resolved.target_verify == resolved.decode));
}

}  // namespace warpweave
