// A dense feed-forward on a GPU, and the first GEMM of a gated one, which experts that every row passes have, too.
#pragma once

#include <optional>

#include "model/layers/gpu_workspace.h"
#include "model/layers/on_gpu.h"
#include "ops/lora_site.h"

namespace warpweave {

// What all layers of a model share.
struct GpuGluWorkspace {
  void* gate_up = nullptr;          // [tokens, 2 * cols]
  void* act = nullptr;              // [tokens, cols]

  void reserve(DType dtype, int64_t tokens, int64_t cols, GpuWorkspace& workspace);
};

// workspace.act = glu(gate_up * rows): of the residual stream's, normed by `norm`, where it is not null, with
// `next`'s weights asked for ahead; else of `input`.
struct GpuGluCall {
  const gpu::GpuLinear& gate_up;
  const GpuRowNorm* norm = nullptr;
  const gpu::GpuLinear* next = nullptr;
  const void* input = nullptr;
  std::optional<LoraPlace> place = {};  // with `norm`: of a GEMM that adapters may change
};
Status run_glu(const GpuGluCall& call, const GpuGluWorkspace& workspace, GpuResidual& x);

class GpuDenseFeedForward final : public GpuFeedForward {
 public:
  // All outlive this; `activation` is for weights without a gate.
  GpuDenseFeedForward(const GpuDenseWeights& weights, GluActivation activation, const GpuGluWorkspace& workspace)
      : weights_(weights), activation_(activation), w_(workspace) {}
  std::string_view name() const override { return "MLP"; }
  Status forward(const GpuLayerCall& call) override;

 private:
  Status run_ungated(int layer, GpuResidual& x) const;

  const GpuDenseWeights& weights_;
  const GluActivation activation_;
  const GpuGluWorkspace& w_;
};

}  // namespace warpweave
