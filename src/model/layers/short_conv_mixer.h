// A gated short convolution on the host (src/linear/short_conv.h), on the states of the batch's requests.
#pragma once

#include <vector>

#include "linear/short_conv.h"
#include "model/layers/recurrent_rows.h"
#include "model/recurrent.h"

namespace warpweave {

// What a model's short convolutions share beside `rows`, which outlives it.
class ShortConvWorkspace {
 public:
  explicit ShortConvWorkspace(RecurrentRows& rows) : rows_(rows) {}

 private:
  friend class ShortConvMixer;
  RecurrentRows& rows_;         // [tokens, 3 hidden]
  std::vector<float> outputs_;  // [tokens, hidden]
};

class ShortConvMixer final : public RecurrentMixer {
 public:
  // `state_layer`: its place among the recurrent layers. All outlive the mixer.
  ShortConvMixer(const ShortConvWeights& weights, int state_layer, ShortConvWorkspace& workspace)
      : weights_(weights), state_layer_(state_layer), w_(workspace) {}
  std::string_view name() const override { return "short convolution"; }
  Status forward(const LayerCall& call) override;
  Status commit(HostRecurrent& recurrent, ThreadTeam& team) override;

 private:
  Status convolve(HostRecurrent& recurrent, ThreadTeam& team);

  const ShortConvWeights& weights_;
  int state_layer_;
  ShortConvWorkspace& w_;
};

}  // namespace warpweave
