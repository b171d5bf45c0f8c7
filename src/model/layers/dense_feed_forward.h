// A dense feed-forward on the host.
#pragma once

#include <vector>

#include "model/layers/on_host.h"

namespace warpweave {

class DenseFeedForward final : public FeedForward {
 public:
  // `act` is shared by the parts of a model, one of which runs at a time, and grows with the batch; `activation` is for
  // weights without a gate. All outlive this.
  DenseFeedForward(const DenseWeights& weights, GluActivation activation, std::vector<float>& act)
      : weights_(weights), activation_(activation), act_(act) {}
  std::string_view name() const override { return "MLP"; }
  Status forward(const LayerCall& call) override;

 private:
  const DenseWeights& weights_;
  const GluActivation activation_;
  std::vector<float>& act_;         // [rows, intermediate], f32 or bf16
};

}  // namespace warpweave
