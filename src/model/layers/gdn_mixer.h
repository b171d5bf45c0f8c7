// A gated delta net on the host: the layer of src/linear/gdn_layer.h on the states of the batch's requests.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "model/layers/on_host.h"
#include "model/recurrent.h"
#include "ops/aligned_buffer.h"

namespace warpweave {

// What a model's gated delta nets share. Grows with the largest batch.
class GdnWorkspace {
 public:
  // Once for each forward of a model with such layers, before its first layer: who reads and writes which state.
  // `resource_exhausted`: no memory.
  Status start(const ForwardBatch& batch, const GdnLayerWeights& layer, HostRecurrent& recurrent);
  // Once after a forward of ForwardMode::target_verify, before its layers' commit(). Accepted: [requests] the last node
  // of each, as a row of its own. `accepted` outlives them.
  void start_commit(std::span<const int32_t> accepted);

 private:
  friend class GdnMixer;
  float* rows_of(int state_layer) { return rows_.data() + (keeps_rows_ ? state_layer * layer_rows_ : 0); }

  LinearAttnBatch batch_;
  LinearAttnPhase phase_ = LinearAttnPhase::extend;
  std::vector<int32_t> initial_slots_;  // [requests] -1: from nothing
  // [rows, row_width]; of a forward that is to be committed [layers, rows, row_width], for all are read again then.
  std::vector<float> rows_;
  int64_t layer_rows_ = 0;              // values of one layer
  bool keeps_rows_ = false;
  std::vector<float> heads_;            // [rows, v_width]
  AlignedBuffer memory_;                // of the kernels
};

class GdnMixer final : public Mixer {
 public:
  // `state_layer`: its place among the recurrent layers. All outlive the mixer.
  GdnMixer(const GdnWeights& weights, int state_layer, GdnWorkspace& workspace)
      : weights_(weights), state_layer_(state_layer), w_(workspace) {}
  std::string_view name() const override { return "gated delta net"; }
  Status forward(const LayerCall& call) override;
  // After GdnWorkspace::start_commit(): the states that the forward left as they were go on along the accepted nodes.
  Status commit(HostRecurrent& recurrent, ThreadTeam& team);

 private:
  GdnLayerCall layer_call(HostRecurrent& recurrent) const;

  const GdnWeights& weights_;
  int state_layer_;
  GdnWorkspace& w_;
};

}  // namespace warpweave
