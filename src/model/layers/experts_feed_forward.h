// A mixture of experts on the host.
#pragma once

#include <vector>

#include "model/expert_load.h"
#include "model/layers/on_host.h"
#include "ops/router_rule.h"

namespace warpweave {

class ExpertsFeedForward final : public FeedForward {
 public:
  // `load` counts the choices. Both references outlive this.
  ExpertsFeedForward(const ExpertsWeights& weights, const RouterRule& rule, ExpertLoad& load)
      : weights_(weights), rule_(rule), load_(load), rows_by_expert_(rule.num_experts) {}
  std::string_view name() const override { return "MLP"; }
  Status forward(const LayerCall& call) override;

 private:
  const ExpertsWeights& weights_;
  RouterRule rule_;
  ExpertLoad& load_;
  std::vector<int32_t> rows_by_expert_;
};

}  // namespace warpweave
