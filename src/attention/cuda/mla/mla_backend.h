// Latent attention on an NVIDIA GPU as a backend (mla_decode.h). Every name that users may write is this class, with
// Caps of its own and a choice of kernels.
//
// Decode, verification and short extends go to the kernels as they are; longer ones as slices of a few tokens
// (mla_slices.h), each of which sees its own past only. Plans are made on the device by a forward's first layer and
// serve the others; inside a capture they become part of the graph. The workspace is allocated once, for the largest
// layout; the slices' arrays grow, outside of graphs, which hold no extends. One stream at a time, as
// AttentionBackend says.
//
// With BackendContext::deterministic every token is a request of its own, no request's KV is split among CTAs, and all
// steps run the kernels of one family: a row's bits then depend on its own tokens alone. Drafts are refused.
#pragma once

#include <memory>

#include "attention/backend.h"
#include "attention/cuda/mla/mla_caps.h"
#include "attention/cuda/mla/mla_decode.h"
#include "attention/cuda/mla/mla_slices.h"
#include "device/cuda/memory.h"

namespace warpweave::cuda {

class MlaBackend final : public AttentionBackend {
 public:
  // `caps` outlives the backend.
  MlaBackend(const Caps& caps, MlaChoice choice, bool deterministic)
      : caps_(caps), choice_(choice), deterministic_(deterministic) {}

  const Caps& caps() const override { return caps_; }
  Status init_forward_metadata(const ForwardBatch& batch) override;
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override { return forward(batch, call); }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override { return forward(batch, call); }
  Status init_cuda_graph_state(const GraphLimits& limits) override;
  Status init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch) override;
  Status init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch) override;
  bool captures_verification() const override { return caps_.graph_capture && !deterministic_; }

 private:
  Status prepare();
  Status forward(const ForwardBatch& batch, const AttentionCall& call);
  Status cut(const ForwardBatch& batch, int slice_tokens, MlaParams& p);
  MlaShape shape_of(const AttentionCall& call, const MlaParams& p) const;

  const Caps& caps_;
  const MlaChoice choice_;
  const bool deterministic_;
  int num_sms_ = 0;
  bool dependent_launch_ = false;
  DeviceBuffer workspace_;
  DeviceBuffer slices_;
  // Of this forward.
  bool cut_ = false;
  bool planned_ = false;
  MlaLayout layout_;  // that the plan is for
};

// What a name registers.
template <const Caps& kCaps, MlaChoice kChoice>
std::unique_ptr<AttentionBackend> create_mla(const BackendContext& context) {
  return std::make_unique<MlaBackend>(kCaps, kChoice, context.deterministic);
}

}  // namespace warpweave::cuda
