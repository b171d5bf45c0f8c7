#include "model/layers/gpu_experts.h"

#include <algorithm>
#include <utility>

#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "ops/cuda/any_width.h"
#include "ops/cuda/cluster_gemm.h"
#include "ops/cuda/fp8.h"

namespace warpweave {
namespace {

using gpu::ExpertWeights;

bool in_8_bits(const GpuExpertLayer& experts) { return experts.gate_up.dtype == DType::fp8_e4m3; }

// Of a step whose rows share places: kSharedRows for every expert that can be active.
int64_t shared_places(const RouterRule& rule, int64_t rows) {
  return gpu::kSharedRows * (std::min<int64_t>(rows * rule.k, rule.num_experts) + rule.shared);
}

// The model's rule for a layer, whose shared experts may stand with the routed ones.
RouterRule rule_of(const RouterRule& rule, const GpuExpertLayer& experts) {
  RouterRule out = rule;
  out.shared = experts.gate_up.experts - rule.num_experts;
  return out;
}

bool by_wgmma(const GpuExpertLayer& experts) {
  return gpu::expert_gemm_takes(experts.gate_up) && gpu::expert_gemm_takes(experts.down);
}

// Whether gate and up read rows where they are.
bool takes_rows(const GpuExpertLayer& experts, int64_t pairs) {
  return by_wgmma(experts) && gpu::expert_gemm_takes_rows(pairs, experts.gate_up.experts, experts.gate_up.dtype);
}

// A GEMM's outputs, so many columns, in 8 bits where the activations would be, and their scales behind them.
void leave_codes(gpu::ExpertGemmCall& call, void* activations, int64_t cols) {
  call.codes = static_cast<uint8_t*>(activations);
  call.code_scales = reinterpret_cast<float*>(call.codes + call.places * cols);
}
// What a GEMM left so is what the next one multiplies.
void take_codes(gpu::ExpertGemmCall& call) {
  call.codes = nullptr;
  call.x_scales = std::exchange(call.code_scales, nullptr);
  call.x_by_group = true;
}

}  // namespace

Result<std::unique_ptr<GpuExperts>> GpuExperts::create(const Options& options, GpuWorkspace& workspace) {
  const RouterRule& rule = options.spec.router;
  std::unique_ptr<GpuExperts> out(new GpuExperts(options));
  const auto get = [&]<typename T>(T*& pointer, int64_t count, size_t element_bytes) {
    workspace.get(pointer, count, element_bytes, "activations of experts; lower --chunked-prefill-size");
  };
  const int64_t rows = options.max_rows, pairs = rows * rule.of_row();
  const int64_t hidden = gpu::whole_width(options.spec.hidden_size);
  const size_t element = dtype_info(options.dtype).block_bytes;
  const int64_t places = std::max(pairs, shared_places(rule, gpu::kSharedRows));
  gpu::ExpertPlan& plan = out->plan_;
  get(out->logits_, std::max<int64_t>(rows, gpu::kSharedRows) * rule.num_experts, sizeof(float));
  get(out->rows_, places * hidden, element);
  get(out->act_, places * options.ffn, element);
  if (hidden != options.spec.hidden_size) get(out->filled_up_, rows * hidden, element);
  get(plan.chosen, pairs, sizeof(int32_t));
  get(plan.weights, pairs, sizeof(float));
  get(plan.offsets, rule.all_experts() + 1, sizeof(int32_t));
  get(plan.place_of, pairs, sizeof(int32_t));
  get(plan.row_of, pairs, sizeof(int32_t));
  get(plan.tiles, gpu::most_expert_tiles(places, rule.all_experts(), gpu::kNarrowTilePlaces),
      sizeof(gpu::ExpertTile));
  get(plan.num_tiles, 1, sizeof(int32_t));
  get(plan.counts, gpu::expert_plan_blocks(rows) * rule.all_experts(), sizeof(int32_t));
  get(plan.histogram, rule.all_experts(), sizeof(int32_t));
  get(plan.arrived, 1, sizeof(int32_t));
  if (options.in_8_bits) {
    const int64_t widest = std::max(hidden, options.ffn);
    get(out->codes_, places * widest, 1);
    get(out->code_scales_, places, sizeof(float));
  }
  const auto counters = static_cast<int64_t>(options.spec.layers.size()) * out->experts_counted();
  if (options.counts) get(out->load_, counters, sizeof(uint64_t));
  WW_RETURN_IF_ERROR(workspace.status());
  if (options.counts) {
    WW_RETURN_IF_ERROR(fill_now(out->load_, 0, counters * sizeof(uint64_t), "the experts' counters"));
  }
  WW_RETURN_IF_ERROR(fill_now(plan.arrived, 0, sizeof(int32_t), "the experts' counters"));
  WW_RETURN_IF_ERROR(fill_now(plan.histogram, 0, rule.all_experts() * sizeof(int32_t), "the experts' counters"));
  return out;
}

gpu::RoutingDice GpuExperts::dice(const Step& step) const {
  if (!options_.dice) return {};
  return {step.positions, static_cast<uint32_t>(step.layer_index + 1)};
}

gpu::ExpertPlan GpuExperts::plan_of(const Step& step) const {
  gpu::ExpertPlan out = plan_;
  if (load_ != nullptr) out.load = load_ + int64_t{step.layer_index} * experts_counted();
  return out;
}

gpu::WeightPrefetch GpuExperts::ahead(const GpuExpertLayer& experts, int64_t rows) const {
  constexpr int64_t kPrefetchedBytes = int64_t{16} << 20;  // what memory delivers until the GEMMs begin
  constexpr int64_t kChoices = 3;                          // of an expert: one in 20 is not chosen
  constexpr int64_t kMostRows = 1024;                      // with more, GEMMs take longer than their weights to arrive
  const RouterRule& rule = options_.spec.router;
  if (!by_wgmma(experts) || rows * rule.k < kChoices * rule.num_experts || rows > kMostRows) return {};
  gpu::WeightPrefetch out;
  out.data = experts.gate_up.data;
  out.row_bytes = out.prefetched_bytes =
      experts.gate_up.cols * static_cast<int64_t>(dtype_info(experts.gate_up.dtype).block_bytes) / 128 * 128;
  if (out.row_bytes == 0 || experts.gate_up.stride_bytes % out.row_bytes != 0) return {};
  out.rows = std::min(kPrefetchedBytes, experts.gate_up.stride_bytes * rule.num_experts) / out.row_bytes;
  return out;
}

gpu::NormRouteCall GpuExperts::norm_route_call(const Step& step) const {
  const GpuExpertsWeights& weights = *step.weights;
  gpu::NormRouteCall call;
  call.x = step.x;
  call.rows = step.rows;
  call.hidden = options_.spec.hidden_size;
  call.norm_weight = weights.norms.in.weight.data;
  call.norm_weight_offset = options_.spec.norm.weight_offset;
  call.norm_eps = options_.spec.norm.eps;
  call.router = weights.router.weight;
  call.router_dtype = weights.router.dtype;
  call.router_bias = weights.router.bias;
  call.rule = rule_of(options_.spec.router, weights.experts);
  call.shared_gate = weights.shared_gate.data;
  call.correction = weights.router_correction.data;
  call.h = step.h;
  call.dtype = options_.dtype;
  if (in_8_bits(weights.experts)) {
    call.codes = codes_;
    call.code_scales = code_scales_;
  }
  call.logits = logits_;
  call.plan = plan_of(step);
  call.dice = dice(step);
  call.kv_slots = step.kv_slots;
  return call;
}

bool GpuExperts::norms_itself(const Step& step) const {
  return !options_.batch_invariant && by_wgmma(step.weights->experts) && gpu::norm_route_takes(norm_route_call(step));
}

gpu::GemmCall GpuExperts::router_call(const Step& step) const {
  const GpuExpertsWeights& weights = *step.weights;
  gpu::GemmCall call;
  call.linear = &weights.router;
  call.x = wants_f32_rows(weights) ? static_cast<const void*>(step.h_f32) : step.h;
  call.rows = step.gemm_rows;
  call.y = logits_;
  call.y_dtype = DType::f32;
  call.y_stride = options_.spec.router.num_experts;
  return call;
}

// Whether shared experts' gate and up are multiplied beside the kernels that make the plan, which leave memory idle.
// Weights of routed experts lose their head start by it, so shared ones must be a good part of all.
bool GpuExperts::shared_come_early(const Step& step, int tile_places) const {
  constexpr int kRouted = 40;  // for each shared one, at most
  const GpuExpertLayer& experts = step.weights->experts;
  const RouterRule rule = rule_of(options_.spec.router, experts);
  return kRouted * rule.shared >= rule.num_experts && by_wgmma(experts) && !in_8_bits(experts) &&
         !options_.batch_invariant && filled_up_ == nullptr && tile_places <= gpu::kEarlyTilePlaces &&
         step.rows * rule.k >= rule.num_experts && gpu::cluster_gemm_pays(router_call(step));
}

Status GpuExperts::plan(const Step& step, const Form& form, gpu::GpuGemm& gemm) {
  const GpuExpertsWeights& weights = *step.weights;
  gpu::GemmCall router = router_call(step);
  router.settles = form.early;
  WW_RETURN_IF_ERROR(gemm.run(router, step.stream));
  gpu::plan_experts({.logits = logits_,
                     .rows = step.rows,
                     .rule = rule_of(options_.spec.router, weights.experts),
                     .correction = weights.router_correction.data,
                     .tile_places = form.tile_places,
                     .crowded_places = form.crowded_places,
                     .plan = plan_of(step),
                     .dice = dice(step),
                     .shared_gate = {step.h, options_.dtype, options_.spec.hidden_size, weights.shared_gate.data},
                     .kv_slots = step.kv_slots},
                    step.stream);
  return {};
}

// Copies of x's rows at the places of their experts; early ones have theirs from x.
const void* GpuExperts::spread(const Step& step, const Form& form, const void* x) {
  const GpuExpertLayer& experts = step.weights->experts;
  const RouterRule rule = rule_of(options_.spec.router, experts);
  gpu::spread_rows({.x = x,
                    .rows = step.rows,
                    .row_bytes = experts.gate_up.cols * static_cast<int64_t>(dtype_info(options_.dtype).block_bytes),
                    .place_of = plan_.place_of,
                    .k = form.early ? rule.k : rule.of_row(),
                    .out = rows_,
                    .stride = rule.of_row(),
                    .early_successor = form.early},
                   step.stream);
  return rows_;
}

void GpuExperts::gemms(const Step& step, const Form& form) {
  const bool shared_rows = form.shared_rows;
  const GpuExpertLayer& experts = step.weights->experts;
  const RouterRule rule = rule_of(options_.spec.router, experts);
  const int64_t hidden = experts.gate_up.cols;
  const bool wgmma = by_wgmma(experts), codes = wgmma && in_8_bits(experts);
  gpu::ExpertGemmCall call;
  call.places = shared_rows ? shared_places(rule, step.rows) : step.rows * rule.of_row();
  call.plan = plan_of(step);
  call.tile_places = form.tile_places;
  call.crowded_places = form.crowded_places;
  call.y_dtype = options_.dtype;
  const auto multiply = [&](const ExpertWeights& weights, const void* x, void* y) {
    call.weights = weights;
    call.x = x;
    call.y = y;
    wgmma ? gpu::expert_gemm(call, step.stream) : gpu::expert_tiles(call, options_.dtype, step.stream);
  };
  const auto round = [&](const void* x, int64_t cols, int64_t rows, const int32_t* place_of) {
    gpu::code_rows({.x = x,
                    .dtype = options_.dtype,
                    .rows = rows,
                    .cols = cols,
                    .place_of = place_of,
                    .copies = place_of != nullptr ? rule.of_row() : 1,
                    .codes = codes_,
                    .scales = code_scales_},
                   step.stream);
  };
  call.shared_rows = shared_rows;
  if (shared_rows) {
    call.few_tiles = call.places / gpu::kSharedRows;
  } else if (!options_.batch_invariant) {
    call.few_tiles = gpu::most_expert_tiles(call.places, rule.all_experts(), form.tile_places);
  }
  call.plan_settled = !shared_rows && !form.early;
  const void* x = step.h;       // shared rows are rounded by norm_route
  if (filled_up_ != nullptr) {
    gpu::fill_up_rows({step.h, options_.dtype, step.rows, options_.spec.hidden_size, filled_up_}, step.stream);
    x = filled_up_;
  }
  if (!shared_rows && takes_rows(experts, call.places)) call.x_rows = step.rows;
  if (codes && !shared_rows) round(x, hidden, step.rows, plan_.place_of);
  if (!codes && !shared_rows && call.x_rows == 0) x = spread(step, form, x);
  if (form.early) call.early = {step.h, step.rows, rule.shared};
  if (codes) call.x_scales = code_scales_;
  // Whether it does depends on the number of rows.
  const bool codes_outputs =
      codes && !options_.batch_invariant && gpu::expert_gemm_codes_outputs(experts.gate_up, form.tile_places);
  if (codes_outputs) leave_codes(call, act_, experts.down.cols);
  if (shared_rows) call.certain = rule.shared;
  multiply(experts.gate_up, codes ? codes_ : x, act_);
  call.x_rows = call.certain = 0;
  call.early = {};
  if (codes_outputs) take_codes(call);
  if (codes && !codes_outputs) round(act_, experts.down.cols, call.places, nullptr);
  call.shared_rows = false;
  call.plan_settled = true;
  multiply(experts.down, codes && !codes_outputs ? codes_ : act_, rows_);
}

gpu::ExpertSums GpuExperts::sums(const Step& step) const {
  const GpuExpertLayer& experts = step.weights->experts;
  return {rows_, plan_.place_of, plan_.weights, rule_of(options_.spec.router, experts).of_row(),
          by_wgmma(experts)};
}

GpuExperts::Form GpuExperts::form_of(const Step& step) const {
  const GpuExpertLayer& experts = step.weights->experts;
  if (!by_wgmma(experts)) return {gpu::kPortableTilePlaces};
  const RouterRule rule = rule_of(options_.spec.router, experts);
  const int64_t pairs = step.rows * rule.of_row();
  Form form = {gpu::expert_gemm_tile_places(pairs, rule.all_experts(), experts.gate_up.dtype)};
  form.early = shared_come_early(step, form.tile_places);
  if (form.early) {
    form.tile_places = gpu::kEarlyTilePlaces;
  } else {
    form.crowded_places =
        gpu::expert_gemm_crowded_places(experts.gate_up, experts.down, step.rows, pairs, form.tile_places);
  }
  return form;
}

Status GpuExperts::run(const Step& step, gpu::GpuGemm& gemm) {
  const RouterRule rule = rule_of(options_.spec.router, step.weights->experts);
  if (!step.normed) {
    gpu::norm_route(norm_route_call(step), step.stream);
    gemms(step, {gpu::expert_gemm_tile_places(0, rule.all_experts()), true});
    return {};
  }
  const Form form = form_of(step);
  WW_RETURN_IF_ERROR(plan(step, form, gemm));
  gemms(step, form);
  return {};
}

}  // namespace warpweave
