// A gated delta net on the host: the layer of src/linear/gdn_layer.h on the states of the batch's requests.
#pragma once

#include <vector>

#include "model/layers/recurrent_rows.h"
#include "model/recurrent.h"
#include "ops/aligned_buffer.h"

namespace warpweave {

// What a model's gated delta nets share beside `rows`, which outlives it. Grows with the largest batch.
class GdnWorkspace {
 public:
  explicit GdnWorkspace(RecurrentRows& rows) : rows_(rows) {}
  // Once for each forward of a model with such layers, before its first layer. `resource_exhausted`: no memory.
  Status start(const ForwardBatch& batch, const GdnLayerWeights& layer, HostRecurrent& recurrent);

 private:
  friend class GdnMixer;

  RecurrentRows& rows_;                 // [tokens, row_width]
  std::vector<float> heads_;            // [tokens, v_width]
  std::vector<float> low_;              // [tokens, the widest low rank]
  AlignedBuffer memory_;                // of the kernels
};

class GdnMixer final : public RecurrentMixer {
 public:
  // `state_layer`: its place among the recurrent layers. All outlive the mixer.
  GdnMixer(const GdnWeights& weights, int state_layer, GdnWorkspace& workspace)
      : weights_(weights), state_layer_(state_layer), w_(workspace) {}
  std::string_view name() const override { return "gated delta net"; }
  Status forward(const LayerCall& call) override;
  Status commit(HostRecurrent& recurrent, ThreadTeam& team) override;

 private:
  GdnLayerCall layer_call(HostRecurrent& recurrent) const;

  const GdnWeights& weights_;
  int state_layer_;
  GdnWorkspace& w_;
};

}  // namespace warpweave
