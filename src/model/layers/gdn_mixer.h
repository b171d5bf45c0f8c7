// A gated delta net on the host: the layer of src/linear/gdn_layer.h on the states of the batch's requests.
#pragma once

#include <optional>
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

 private:
  friend class GdnMixer;
  LinearAttnBatch batch_;
  LinearAttnPhase phase_ = LinearAttnPhase::extend;
  std::vector<int32_t> initial_slots_;  // [requests] -1: from nothing
  std::vector<float> rows_;             // [rows, row_width]
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

 private:
  const GdnWeights& weights_;
  int state_layer_;
  GdnWorkspace& w_;
};

}  // namespace warpweave
