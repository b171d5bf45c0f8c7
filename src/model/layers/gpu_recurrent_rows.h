// What the recurrent layers of a model share in one forward on a GPU (recurrent_rows.h): who reads and writes which
// state, and the memory of the rows that the layers' first GEMMs leave.
#pragma once

#include <array>
#include <span>

#include "linear/linear_attn.h"
#include "model/gpu_state_cache.h"
#include "model/layers/gpu_workspace.h"
#include "model/layers/on_gpu.h"

namespace warpweave {

struct GpuRecurrentLimits {
  DType dtype = DType::bf16;      // of activations
  DType state_dtype = DType::f32;
  int64_t tokens = 0;             // rows of a forward, and those that are kept in the last layer: of round_up_rows()
  int64_t kept_rows = 0;
  int max_requests = 0;
  int64_t verify_rows = 0;        // of a forward that verifies proposals; 0: none does
  int layers = 0;                 // that are committed after it
  LinearAttnNames kernels;        // of linear attention
  bool batch_invariant = false;   // a row's bits do not depend on the other rows
};

class GpuRecurrentRows {
 public:
  // Neighbouring requests of the batch that one call runs; pointers are to the GPU's arrays.
  struct Part {
    LinearAttnBatch batch;
    LinearAttnPhase phase = LinearAttnPhase::extend;
  };

  void reserve(int64_t row_width, const GpuRecurrentLimits& limits, GpuWorkspace& workspace);
  // Once for each forward, before its first layer. `tree_parents`: ForwardBatch::tree_parents on the GPU; null: there
  // are no trees.
  Status start(const ForwardBatch& batch, const int32_t* tree_parents);
  // Once after a forward of ForwardMode::target_verify, before its layers' commit(). `batch` is that forward's;
  // accepted: [requests] on the GPU, the last node of each as a row of its own.
  Status start_commit(const ForwardBatch& batch, const int32_t* tree_parents, const int32_t* accepted);

  std::span<const Part> parts() const { return {parts_.data(), static_cast<size_t>(num_parts_)}; }
  DType dtype() const { return dtype_; }
  void* of_layer(int state_layer) const;

 private:
  void add_part(const ForwardBatch& batch, int first, int end, LinearAttnPhase phase);

  std::array<Part, 2> parts_;
  int num_parts_ = 0;
  DType dtype_ = DType::bf16;
  void* rows_ = nullptr;          // [tokens, row_width], or of a forward that verifies [layers, verify_rows, row_width]
  int64_t verify_rows_ = 0;
  int64_t layer_bytes_ = 0;       // of a layer of those
  bool keeps_rows_ = false;       // the layers' rows stay until they are committed
  bool batch_invariant_ = false;
};

// A mixer with a state.
class GpuRecurrentMixer : public GpuMixer {
 public:
  // After GpuRecurrentRows::start_commit(): the states that the forward left as they were go on along the accepted
  // nodes.
  virtual Status commit(const GpuStateCache& states, void* stream) = 0;
};

}  // namespace warpweave
