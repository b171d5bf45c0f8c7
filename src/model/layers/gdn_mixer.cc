#include "model/layers/gdn_mixer.h"

#include <algorithm>

#include "model/layers/residual.h"

namespace warpweave {
namespace {

constexpr size_t kWorkspaceAlignBytes = 256;

std::byte* aligned(std::byte* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  return data + (kWorkspaceAlignBytes - address % kWorkspaceAlignBytes) % kWorkspaceAlignBytes;
}

}  // namespace

Status GdnWorkspace::start(const ForwardBatch& batch, const GdnLayerWeights& layer, HostRecurrent& recurrent) {
  const auto values = static_cast<size_t>(batch.num_tokens * layer.v_width());
  if (heads_.size() < values) heads_.resize(values);
  const int64_t rank = layer.widest_rank([](const PackedLinear& linear) { return linear.out_features(); });
  low_.resize(std::max(low_.size(), static_cast<size_t>(batch.num_tokens * rank)));
  const size_t bytes = kWorkspaceAlignBytes + recurrent.kernels.workspace_bytes(
      layer.shape, {.max_requests = batch.num_reqs, .max_tokens = batch.num_tokens, .conv_width = layer.conv_width});
  if (memory_.size() < bytes) memory_ = AlignedBuffer::allocate(bytes);
  if (memory_.data() == nullptr) return Status::resource_exhausted("no memory for the workspace of linear attention");
  return {};
}

GdnLayerCall GdnMixer::layer_call(HostRecurrent& recurrent) const {
  const GdnLayerWeights& layer = weights_.layer;
  const StateLayerView state = recurrent.states.recurrent(state_layer_);
  const StateLayerView conv = recurrent.states.conv(state_layer_);
  std::byte* const memory = aligned(w_.memory_.data());
  GdnLayerCall gdn;
  gdn.phase = w_.rows_.phase();
  gdn.same_bits_drafted = recurrent.same_bits_drafted;
  gdn.batch = &w_.rows_.batch();
  gdn.state = {state.data, state.dtype, state.slot_stride, int64_t{layer.shape.v_dim} * layer.shape.k_dim};
  gdn.conv_state = conv.data;
  gdn.conv_state_dtype = conv.dtype;
  gdn.conv_slot_stride = conv.slot_stride;
  gdn.rows = w_.rows_.of_layer(state_layer_);
  gdn.heads = w_.heads_.data();
  gdn.low = w_.low_.data();
  gdn.workspace = memory;
  gdn.workspace_bytes = w_.memory_.size() - (memory - w_.memory_.data());
  return gdn;
}

Status GdnMixer::commit(HostRecurrent& recurrent, ThreadTeam& team) {
  return run_gdn_heads(weights_.layer, layer_call(recurrent), recurrent.kernels, team);
}

Status GdnMixer::forward(const LayerCall& call) {
  const GdnLayerWeights& layer = weights_.layer;
  GdnLayerCall gdn = layer_call(*call.recurrent);
  gdn.x = call.x.normed(weights_.norms.in, layer.in);
  WW_RETURN_IF_ERROR(run_gdn_heads(layer, gdn, call.recurrent->kernels, call.x.team()));
  if (call.last_mixer) {
    const std::span<const int32_t> wanted = call.batch.logits_rows;
    if (wanted.empty()) return {};
    keep_rows(w_.heads_.data(), layer.v_width(), wanted);
    call.x.keep(wanted);
  }
  call.x.add(layer.out,
             {.data = w_.heads_.data(), .dtype = DType::f32, .rows = call.x.rows(), .row_stride = layer.v_width()},
             weights_.norms.out);
  return {};
}

}  // namespace warpweave
