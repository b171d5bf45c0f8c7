// ShortConvMixer (short_conv_mixer.h) on a GPU: the input GEMM, one ShortConvCall, the output GEMM.
#pragma once

#include "linear/short_conv.h"
#include "model/layers/gpu_recurrent_rows.h"

namespace warpweave {

// What a model's short convolutions share beside `rows`, which outlives it. The outputs exist twice, so that some can
// be picked.
class GpuShortConvWorkspace {
 public:
  explicit GpuShortConvWorkspace(GpuRecurrentRows& rows) : rows_(rows) {}
  void reserve(const GpuShortConvWeights& layer, const GpuRecurrentLimits& limits, GpuWorkspace& workspace);

 private:
  friend class GpuShortConvMixer;
  GpuRecurrentRows& rows_;        // [tokens, 3 hidden]
  void* outputs_[2] = {};         // [tokens, hidden], and of those rows that are kept
};

class GpuShortConvMixer final : public GpuRecurrentMixer {
 public:
  // `state_layer`: its place among the recurrent layers. All outlive the mixer.
  GpuShortConvMixer(const GpuShortConvWeights& weights, int state_layer, GpuShortConvWorkspace& workspace)
      : weights_(weights), state_layer_(state_layer), w_(workspace) {}
  std::string_view name() const override { return "short convolution"; }
  Status forward(const GpuLayerCall& call) override;
  Status commit(const GpuStateCache& states, void* stream) override { return convolve(states, stream); }

 private:
  Status convolve(const GpuStateCache& states, void* stream);

  const GpuShortConvWeights& weights_;
  int state_layer_;
  GpuShortConvWorkspace& w_;
};

}  // namespace warpweave
