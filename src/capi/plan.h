// The object behind ww_plan: a backend chosen for what stays, planned for one batch at a time.
#pragma once

#include <memory>
#include <string>

#include "attention/backend.h"
#include "attention/select.h"
#include "capi/context.h"
#include "capi/gpu.h"
#include "capi/plan_batch.h"
#include "capi/tensor_args.h"
#include "warpweave/c.h"

namespace warpweave::capi {

class AttentionPlan {
 public:
  static Result<std::unique_ptr<AttentionPlan>> create(Workspace& workspace,
                                                       const ww_plan_options& options);

  const std::string& explanation() const { return explanation_; }
  Context& context() const { return workspace_.context(); }
  size_t workspace_bytes() const { return layout_.bytes; }

  Status set_batch(const ww_batch& batch);
  // No allocation, unless it fails. `kv` is args.kv with its version taken care of.
  Status run(const ww_run_args& args, const ww_kv_cache& kv);

 private:
  // Offsets of the workspace, in bytes.
  struct Layout {
    size_t q = 0, out = 0, lse = 0, scales = 0, sinks = 0, bytes = 0;
  };

  explicit AttentionPlan(Workspace& workspace) : workspace_(workspace) {}

  Status read_options(const ww_plan_options& options);
  Status choose_backend(const ww_plan_options& options);
  Status check_tree_mask(const Caps& caps, const std::string& name) const;
  Layout layout_for(int64_t rows) const;
  AttentionCall call_shape() const;
  Status read_tensors(const ww_run_args& args, const ww_kv_cache& kv);
  Status check_for_gpu(const ww_run_args& args) const;
  Status check_same_shape();
  Status run_on_gpu(const ww_run_args& args);
  void set_pools(AttentionCall& call) const;
  bool on_gpu() const { return kv_spec_.place == Place::gpu; }
  float* floats_at(size_t offset) const {
    return reinterpret_cast<float*>(workspace_.data() + offset);
  }
  RowsView scratch_rows(size_t offset, int dim) const;

  struct Tensors {
    RowsView q, out, lse;
    KvView kv;
    bool has_lse = false;
  };

  Workspace& workspace_;
  AttentionCall shape_;           // without pointers
  KvSpec kv_spec_{};
  DType q_dtype_ = DType::f32;
  bool use_sinks_ = false;
  BatchRules rules_;
  std::string explanation_;
  std::unique_ptr<AttentionBackend> backend_;
  PlanBatch batch_;
  GpuArrays gpu_arrays_;
  ForwardBatch gpu_batch_;        // batch_ with its arrays on the GPU
  uint64_t capture_ = 0;          // that the backend's plan belongs to; 0: none
  bool shape_fixed_ = false;      // a first batch has set the shape of all (max_pages_per_request)
  struct { int requests = 0, tokens = 0, max_q_len = 0; } fixed_shape_;
  bool planned_ = false;
  Layout layout_;
  Tensors tensors_;               // of the call in progress
};

}  // namespace warpweave::capi
