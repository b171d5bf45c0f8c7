// A mixture of experts on a GPU: the routed ones (gpu_experts.h) and those that every row passes.
#pragma once

#include "model/layers/gpu_dense_feed_forward.h"
#include "model/layers/gpu_experts.h"
#include "model/layers/on_gpu.h"

namespace warpweave {

class GpuExpertsFeedForward final : public GpuFeedForward {
 public:
  // All outlive this.
  GpuExpertsFeedForward(const GpuExpertsWeights& weights, GpuExperts& experts, const GpuGluWorkspace& shared)
      : weights_(weights), experts_(experts), shared_(shared) {}
  std::string_view name() const override { return "MLP"; }
  Status forward(const GpuLayerCall& call) override;

 private:
  Status shared_experts(GpuResidual& x);

  const GpuExpertsWeights& weights_;
  GpuExperts& experts_;
  const GpuGluWorkspace& shared_;
};

}  // namespace warpweave
