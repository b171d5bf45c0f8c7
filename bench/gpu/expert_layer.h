// A layer's experts as a model runs them, for benchmarks: routing, rows to their places, two GEMMs, their sum and the
// norm.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "ops/cuda/experts.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/testing/expert_memory.h"

namespace warpweave::gpu {

struct ExpertLayer {
  ExpertShape shape;  // of which this call has `rows`
  ExpertMemory& memory;
  int64_t rows;
  cudaStream_t stream;
  float* norm = nullptr;
  void* router = nullptr;
  uint8_t* codes = nullptr;  // of rows by place
  float* code_scales = nullptr;
  int forced_tile_places = 0;  // 0: those the layer takes
  bool whole_depth = false;    // few tiles of many rows, too, are not shared
  int planned_experts = 0;     // tiles as for so many experts, no fewer than rows choose; 0: for those of the shape

  bool shared() const { return norm_route_takes(norm_route_call(nullptr)); }  // places
  int64_t pairs() const { return rows * shape.k; }
  int experts() const { return planned_experts > 0 ? planned_experts : shape.experts; }
  int64_t places() const { return shared() ? kSharedRows * std::min<int64_t>(pairs(), experts()) : pairs(); }
  int tile_places() const {
    if (forced_tile_places > 0) return forced_tile_places;
    return expert_gemm_tile_places(shared() ? 0 : pairs(), experts(), memory.gate_up.dtype);
  }
  int64_t few_tiles() const {
    return shared() ? places() / kSharedRows : most_expert_tiles(places(), experts(), tile_places());
  }
  int crowded_places() const {
    if (shared() || planned_experts > 0) return 0;
    return expert_gemm_crowded_places(memory.gate_up, memory.down, rows, pairs(), tile_places());
  }
  RouterRule rule() const { return {.num_experts = shape.experts, .k = shape.k}; }

  void multiply(const ExpertWeights& weights, const void* x, void* y, ExpertGemmCall call) const {
    call.weights = weights;
    call.x = shape.fp8 && !call.x_by_group ? codes : x;
    call.x_scales = call.x_by_group ? scales_behind_codes() : code_scales;
    call.places = places();
    call.tile_places = tile_places();
    call.crowded_places = crowded_places();
    if (shared() || !whole_depth) call.few_tiles = few_tiles();
    call.y = y;
    call.y_dtype = shape.dtype;
    call.plan = memory.plan;
    expert_gemm(call, stream);
  }
  // Of the activations, in their memory.
  float* scales_behind_codes() const {
    return reinterpret_cast<float*>(static_cast<uint8_t*>(memory.act) + places() * shape.ffn);
  }
  void route(float* logits) const {
    if (!shared()) {
      return plan_experts({.logits = logits,
                           .rows = rows,
                           .rule = rule(),
                           .tile_places = tile_places(),
                           .crowded_places = crowded_places(),
                           .plan = memory.plan},
                          stream);
    }
    norm_route(norm_route_call(logits), stream);  // the router's logits are those of x, of which every draw has its own
  }
  NormRouteCall norm_route_call(const float* x) const {
    return {.x = x,
            .rows = rows,
            .hidden = shape.hidden,
            .norm_weight = norm,
            .router = router,
            .router_dtype = shape.dtype,
            .rule = rule(),
            .h = memory.h,
            .dtype = shape.dtype,
            .codes = codes,
            .code_scales = code_scales,
            .logits = memory.logits,
            .plan = memory.plan};
  }
  void round(const void* x, int64_t count, int64_t cols, const int32_t* place_of) const {
    code_rows({.x = x,
               .dtype = shape.dtype,
               .rows = count,
               .cols = cols,
               .place_of = place_of,
               .copies = place_of != nullptr ? shape.k : 1,
               .codes = codes,
               .scales = code_scales},
              stream);
  }
  // Whether gate and up read rows where they are.
  bool in_place() const {
    return !shared() && forced_tile_places == 0 && expert_gemm_takes_rows(pairs(), experts(), memory.gate_up.dtype);
  }
  void spread() const {
    if (shape.fp8) return round(memory.h, rows, shape.hidden, memory.plan.place_of);
    spread_rows({memory.h, rows, shape.hidden * 2, memory.plan.place_of, shape.k, memory.rows}, stream);
  }
  // Parts by bits: 1 routing, 2 rows to their places, 4 gate and up, 8 rounding of their results, 16 down, 32 sum, by
  // the norm behind.
  void run(float* logits, int parts) const {
    if (parts & 1) route(logits);
    if (parts & 2 && !shared() && !in_place()) spread();
    const void* const x = shared() || in_place() ? memory.h : memory.rows;
    const bool codes_outputs = shape.fp8 && expert_gemm_codes_outputs(memory.gate_up, tile_places());
    ExpertGemmCall gate_up = {.shared_rows = shared(), .x_rows = in_place() ? rows : 0, .plan_settled = !shared()};
    if (codes_outputs) gate_up.codes = static_cast<uint8_t*>(memory.act), gate_up.code_scales = scales_behind_codes();
    if (parts & 4) multiply(memory.gate_up, x, memory.act, gate_up);
    if (parts & 8 && shape.fp8 && !codes_outputs) round(memory.act, places(), shape.ffn, nullptr);
    if (parts & 16) multiply(memory.down, memory.act, memory.rows, {.x_by_group = codes_outputs, .plan_settled = true});
    if (parts & 32) {
      const ExpertSums sums = {memory.rows, memory.plan.place_of, memory.plan.weights, shape.k, /*settled=*/true};
      const RmsNormCall rms_norm = {.x = memory.x,
                                    .rows = rows,
                                    .cols = shape.hidden,
                                    .weight = norm,
                                    .out = memory.h,
                                    .out_dtype = shape.dtype};
      norm_experts({rms_norm, sums}, stream);
    }
  }
};

}  // namespace warpweave::gpu
