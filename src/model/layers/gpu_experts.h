// The routed experts of a layer on a GPU: which kernels run for how many rows, and the memory they need.
//
//   up to kSharedRows rows  on Hopper: norm and routing in one kernel, WGMMA GEMMs of all rows with every active
//   expert,
//                           weighted sum
//   more                    on Hopper: a GEMM for the logits, the plan, rows gathered by expert, WGMMA GEMMs, weighted
//   sum else                    the same with the GEMMs that every GPU and dtype has (expert_tiles)
// 8-bit weights on Hopper multiply rows rounded to e4m3 with a scale for 128 columns. Where a row's bits must not
// depend on the batch, the first way is not taken. Calls enqueue only and may be captured. One stream at a time.
#pragma once

#include <memory>

#include "model/decoder_spec.h"
#include "model/layers/gpu_workspace.h"
#include "model/layers/on_gpu.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/gemm.h"

namespace warpweave {

class GpuExperts {
 public:
  struct Options {
    DecoderSpec spec;             // its router's `shared`: the most that a layer has with the routed experts
    DType dtype = DType::bf16;
    int64_t max_rows = 0;
    int64_t ffn = 0;              // of an expert, in GPU memory (whole_width())
    bool in_8_bits = false;       // some layers' experts are
    bool batch_invariant = false;
    bool dice = false;            // experts are drawn (gpu::RoutingDice)
    bool counts = false;          // load() is wanted
  };
  // Memory comes from `workspace` and stays its own. The rule is one that check_gpu_model() lets pass.
  static Result<std::unique_ptr<GpuExperts>> create(const Options& options, GpuWorkspace& workspace);

  struct Step {
    const GpuExpertsWeights* weights = nullptr;
    int layer_index = 0;
    int64_t rows = 0;
    int64_t gemm_rows = 0;     // that a GEMM may run over
    const float* x = nullptr;     // [rows, hidden] the residual stream
    void* h = nullptr;            // [rows, hidden] the normed rows; run() makes them unless
    bool normed = false;          // they are there
    const float* h_f32 = nullptr; // the same for a router in f32
    const int32_t* positions = nullptr;
    const int32_t* kv_slots = nullptr;  // null: no row is padding
    void* stream = nullptr;
  };
  // What the norm before a step of so many rows asks for ahead: the first experts' weights, where nearly all are chosen
  // and memory would be idle until the plan is made.
  gpu::WeightPrefetch ahead(const GpuExpertLayer& experts, int64_t rows) const;
  // Whether run() can norm x into h itself, which must have no partial sums outstanding.
  bool norms_itself(const Step& step) const;
  bool wants_f32_rows(const GpuExpertsWeights& weights) const { return weights.router.dtype == DType::f32; }
  // Leaves sums() to be added to x.
  Status run(const Step& step, gpu::GpuGemm& gemm);
  // How often rows chose each expert since the start, [layers, experts_counted()] in GPU memory; null: nobody counts.
  const uint64_t* load() const { return load_; }
  int experts_counted() const { return options_.spec.router.all_experts(); }
  // Valid until the next run().
  gpu::ExpertSums sums(const Step& step) const;

 private:
  explicit GpuExperts(const Options& options) : options_(options) {}
  gpu::NormRouteCall norm_route_call(const Step& step) const;
  gpu::RoutingDice dice(const Step& step) const;
  gpu::ExpertPlan plan_of(const Step& step) const;
  // How a step's experts are multiplied.
  struct Form {
    int tile_places = 0;
    bool shared_rows = false;
    bool early = false;  // shared experts' gate and up while the plan is made
    int crowded_places = 0;  // in place of tile_places, where the GPU finds that rows crowd into few experts
  };
  gpu::GemmCall router_call(const Step& step) const;
  bool shared_come_early(const Step& step, int tile_places) const;
  Form form_of(const Step& step) const;
  const void* spread(const Step& step, const Form& form, const void* x);
  Status plan(const Step& step, const Form& form, gpu::GpuGemm& gemm);
  void gemms(const Step& step, const Form& form);

  Options options_;
  gpu::ExpertPlan plan_;
  float* logits_ = nullptr;       // [rows, experts]
  void* rows_ = nullptr;          // [places, whole_width(hidden)] rows by place, then the experts' results
  void* act_ = nullptr;           // [places, ffn]
  void* filled_up_ = nullptr;     // [rows, whole_width(hidden)] the normed rows; null: they are whole as they are
  uint8_t* codes_ = nullptr;      // [places, hidden or ffn] in 8 bits
  float* code_scales_ = nullptr;
  uint64_t* load_ = nullptr;
};

}  // namespace warpweave
