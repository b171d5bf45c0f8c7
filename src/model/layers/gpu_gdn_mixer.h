// GdnMixer (gdn_mixer.h) on a GPU: the input GEMMs, one LinearAttnCall with convolution, gates and norm, the output
// GEMM.
#pragma once

#include "linear/dispatch.h"
#include "model/layers/gpu_recurrent_rows.h"

namespace warpweave {

// What a model's gated delta nets share beside `rows`, which outlives it. The rows of `heads` exist twice, so that some
// can be picked.
class GpuGdnWorkspace {
 public:
  explicit GpuGdnWorkspace(GpuRecurrentRows& rows) : rows_(rows) {}
  // `layer`: of the model's first such layer; all are alike. Errors: those of LinearAttnDispatcher::create.
  Status reserve(const GpuGdnWeights& layer, const GpuRecurrentLimits& limits, GpuWorkspace& workspace);

 private:
  friend class GpuGdnMixer;
  void run(LinearAttnPhase phase, const LinearAttnCall& call);

  GpuRecurrentRows& rows_;        // [tokens, row_width]
  LinearAttnDispatcher kernels_;
  bool batch_invariant_ = false;
  void* low_ = nullptr;           // [tokens, the widest low rank]
  void* heads_[2] = {};           // [tokens, v_width], and of those rows that are kept
  void* memory_ = nullptr;        // of the kernels
  size_t memory_bytes_ = 0;
};

class GpuGdnMixer final : public GpuRecurrentMixer {
 public:
  // `state_layer`: its place among the recurrent layers. All outlive the mixer.
  GpuGdnMixer(const GpuGdnWeights& weights, int state_layer, GpuGdnWorkspace& workspace)
      : weights_(weights), state_layer_(state_layer), w_(workspace) {}
  std::string_view name() const override { return "gated delta net"; }
  Status forward(const GpuLayerCall& call) override;
  Status commit(const GpuStateCache& states, void* stream) override { return attend(states, stream); }

 private:
  Status make_rows(const GpuLayerCall& call);
  Status attend(const GpuStateCache& states, void* stream);

  const GpuGdnWeights& weights_;
  int state_layer_;
  GpuGdnWorkspace& w_;
};

}  // namespace warpweave
