// GdnMixer (gdn_mixer.h) on a GPU: the input product, one LinearAttnCall with convolution, gates and norm, the output
// product.
#pragma once

#include <array>

#include "model/gpu_state_cache.h"
#include "model/layers/gpu_workspace.h"
#include "model/layers/on_gpu.h"

namespace warpweave {

struct GpuGdnLimits {
  DType dtype = DType::bf16;      // of activations
  DType state_dtype = DType::f32;
  int64_t tokens = 0;             // rows of a forward, and those that are kept in the last layer: of round_up_rows()
  int64_t kept_rows = 0;
  int max_requests = 0;
  int64_t verify_rows = 0;        // of a forward that verifies proposals; 0: none does
  int layers = 0;                 // that are committed after it
  LinearAttnNames kernels;
};

// What a model's gated delta nets share. The rows of `heads` exist twice, so that some can be picked.
class GpuGdnWorkspace {
 public:
  // `layer`: of the model's first such layer; all are alike. Errors: those of LinearAttnDispatcher::create.
  Status reserve(const GpuGdnWeights& layer, const GpuGdnLimits& limits, GpuWorkspace& workspace);
  // Once for each forward, before its first layer: who reads and writes which state. `tree_parents`:
  // ForwardBatch::tree_parents on the GPU; null: there are no trees.
  Status start(const ForwardBatch& batch, const int32_t* tree_parents);
  // Once after a forward of ForwardMode::target_verify, before its layers' commit(). `batch` is that forward's; accepted: [requests] on the GPU, the last node of each as a row of its own.
  Status start_commit(const ForwardBatch& batch, const int32_t* tree_parents, const int32_t* accepted);

 private:
  friend class GpuGdnMixer;
  LinearAttnDispatcher kernels_;
  // Neighbouring requests of the batch; pointers are to the GPU's arrays.
  struct Part {
    LinearAttnBatch batch;
    LinearAttnPhase phase = LinearAttnPhase::extend;
  };
  void add_part(const ForwardBatch& batch, int first, int end, LinearAttnPhase phase);
  void run(const Part& part, const LinearAttnCall& call);
  void* rows_of(int state_layer) const;

  std::array<Part, 2> parts_;
  int num_parts_ = 0;
  DType dtype_ = DType::bf16;
  void* rows_ = nullptr;          // [tokens, row_width], or of a forward that verifies [layers, verify_rows, row_width]
  int64_t verify_rows_ = 0;
  int64_t layer_bytes_ = 0;       // of a layer of those
  bool keeps_rows_ = false;       // the layers' rows stay until they are committed
  void* heads_[2] = {};           // [tokens, v_width], and of those rows that are kept
  void* memory_ = nullptr;        // of the kernels
  size_t memory_bytes_ = 0;
};

class GpuGdnMixer final : public GpuMixer {
 public:
  // `state_layer`: its place among the recurrent layers. All outlive the mixer.
  GpuGdnMixer(const GpuGdnWeights& weights, int state_layer, GpuGdnWorkspace& workspace)
      : weights_(weights), state_layer_(state_layer), w_(workspace) {}
  std::string_view name() const override { return "gated delta net"; }
  Status forward(const GpuLayerCall& call) override;
  // After GpuGdnWorkspace::start_commit(): the states that the forward left as they were go on along the accepted nodes.
  Status commit(const GpuStateCache& states, void* stream);

 private:
  Status attend(const GpuStateCache& states, void* stream);

  const GpuGdnWeights& weights_;
  int state_layer_;
  GpuGdnWorkspace& w_;
};

}  // namespace warpweave
