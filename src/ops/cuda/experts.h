// A mixture of experts on the GPU: rows to experts (expert_route.cu for a few rows, expert_plan.cu), their GEMMs
// (expert_gemm.cu on Hopper, expert_tiles.cu for every GPU and dtype), and the weighted sum.
//
// Where shared experts are multiplied with the routed ones (RouterRule::shared), "experts" are all of them, and k what a row
// has of them.
//
// A row's (row, choice) pair j is number row * k + j. Pairs are sorted by expert into places; expert e has the places
// [offsets[e], offsets[e + 1]). Up to kSharedRows rows may do without sorting: every active expert has kSharedRows places, one
// for each row, chosen by it or not, as such a step waits for weights alone. Everything stays in GPU memory, so that a graph
// can hold it and no call waits. A row's bits do not depend on the other rows of a call, but by few_tiles. A row of padding
// (kv_slots -1, behind the others) takes the first row's experts, so that no weights are read for it.
#pragma once

#include <cstdint>

#include "ops/cuda/gpu_ops.h"
#include "ops/router_rule.h"

namespace warpweave::gpu {

// The rows of an expert's gate_up are, in turns of 8, of gate and of up: rows 16 i .. 16 i + 7 are gate's 8 i .. 8 i + 7, the
// next 8 up's. So both meet in one thread of every kernel.
inline constexpr int kGluTurn = 8;

// One of the two GEMMs of a layer's experts.
struct ExpertWeights {
  const void* data = nullptr;     // expert 0's [rows, cols] row-major, 16-byte aligned
  int64_t stride_bytes = 0;       // from one expert to the next, a multiple of 16
  int experts = 0;
  int64_t rows = 0;               // a multiple of 8; under a GLU gate and up together, a multiple of 16
  int64_t cols = 0;               // a multiple of 8
  DType dtype = DType::bf16;      // f32, f16, bf16, or e4m3 with
  const float* const* scales = nullptr;  // [experts] pointers to scales as fp8.h has them, gate's rows before up's
  Fp8Scaling scaling = Fp8Scaling::row;
  const float* const* biases = nullptr;  // [experts] pointers to [rows], in the order of the rows; or null
  GluActivation glu = GluActivation::none;

  constexpr int64_t outputs() const { return glu == GluActivation::none ? rows : rows / 2; }
};

// Random rows in such turns (kGluTurn), `second` 0 for gate's and 1 for up's; fill_random (gpu_ops.h) otherwise. cols a multiple of 8.
struct RandomTurns {
  RandomMatrix rule;
  int64_t rows = 0;
  int64_t cols = 0;
  int second = 0;
};
void fill_random_turns(const RandomTurns& call, DType dtype, void* out, Stream stream);

// Places of one expert that are multiplied together.
struct alignas(16) ExpertTile {
  int32_t expert = 0;
  int32_t first = 0;              // place
  int32_t count = 0;              // 1..tile_places, of a crowded plan ..crowded_places
  int32_t crowded = 0;            // whether all tiles of the plan are those for rows that crowd into few experts
};

inline constexpr int kSharedRows = 8;

// Places of each tile of an expert with `count`, as even as the GEMMs' widths allow: steps of 8, in tiles of more than 64 places
// of 16. So none but the last has empty places.
constexpr int expert_tile_places(int count, int most) {
  const int tiles = count <= most ? 1 : (count + most - 1) / most, places = (count + tiles - 1) / tiles;
  const int step = most > 64 ? 16 : 8;
  return places <= 8 ? 8 : (places + step - 1) / step * step;
}

inline constexpr int kEarlyTilePlaces = 64;   // of a plan with EarlyExperts
inline constexpr int kNarrowTilePlaces = 16;  // of the narrowest tiles, but for those of shared rows

// What routing leaves in GPU memory.
struct ExpertPlan {
  int32_t* chosen = nullptr;      // [rows, k]
  float* weights = nullptr;       // [rows, k]
  int32_t* offsets = nullptr;     // [experts + 1]
  int32_t* place_of = nullptr;    // [pairs] the place of a pair; of shared experts' pairs in the order of the rows
  int32_t* row_of = nullptr;      // [pairs] the row of a place, or null: of plan_experts()
  ExpertTile* tiles = nullptr;    // [most_expert_tiles()] of the GEMMs' places, with tiles of kNarrowTilePlaces
  int32_t* num_tiles = nullptr;   // [1]
  int32_t* counts = nullptr;      // [expert_plan_blocks(), experts] pairs of a block of rows
  int32_t* histogram = nullptr;   // [experts] zero between calls
  int32_t* arrived = nullptr;     // [1] zero between calls
  uint64_t* load = nullptr;       // [experts] rows an expert had so far, rows of padding left out; or null
};

// A row's weight for its shared experts: sigmoid(x[row] . gate).
struct SharedGate {
  const void* x = nullptr;        // [rows, hidden] the normed rows
  DType dtype = DType::bf16;
  int64_t hidden = 0;             // a multiple of 8
  const float* gate = nullptr;    // [hidden]; null: the weight is 1
};

// Draws experts by dice in place of the router's, whose work is done all the same: for benchmarks.
struct RoutingDice {
  const int32_t* positions = nullptr;  // [rows] a row's position, which changes the draw; null: no dice
  uint32_t seed = 0;
};

// logits -> chosen and weights, and, unless `rows` is 0, the plan for tiles of at most tile_places places.
struct ExpertPlanCall {
  const float* logits = nullptr;  // [rows, rule.num_experts]
  int64_t rows = 0;
  RouterRule rule = {};
  const float* correction = nullptr;  // [experts] of the rule, or null
  int tile_places = 64;
  int crowded_places = 0;  // of tiles in place of those, where rows crowd into few experts; 0: never. The GPU decides
  ExpertPlan plan = {};
  RoutingDice dice = {};
  SharedGate shared_gate = {};
  const int32_t* kv_slots = nullptr;  // [rows], or null: no row is padding
};
void plan_experts(const ExpertPlanCall& call, Stream stream);
int64_t most_expert_tiles(int64_t pairs, int experts, int tile_places);
// Blocks of rows that plan_experts counts apart: rows of `counts`.
int64_t expert_plan_blocks(int64_t rows);

// RMS norm, logits and plan of at most kSharedRows rows in one kernel: places are those of shared rows, tiles of the rule's shared
// experts come first; no offsets.
struct NormRouteCall {
  const float* x = nullptr;       // [rows, hidden] before the norm
  int64_t rows = 0;
  int64_t hidden = 0;             // a multiple of 8
  const float* norm_weight = nullptr;
  float norm_weight_offset = 0;
  float norm_eps = 1e-6f;
  const void* router = nullptr;   // [experts, hidden]
  DType router_dtype = DType::f32;  // f32 or `dtype`
  const float* router_bias = nullptr;  // [experts] added to the logits, or null
  RouterRule rule = {};
  const float* correction = nullptr;
  void* h = nullptr;              // [rows, hidden] the normed rows in `dtype`
  DType dtype = DType::bf16;      // f16 or bf16
  uint8_t* codes = nullptr;       // [rows, hidden] the normed rows in e4m3, with
  float* code_scales = nullptr;   // [rows]; or null
  float* logits = nullptr;        // [rows, rule.num_experts] scratch
  ExpertPlan plan = {};
  RoutingDice dice = {};
  const float* shared_gate = nullptr;  // [hidden] of SharedGate, or null
  const int32_t* kv_slots = nullptr;   // [rows], or null: no row is padding
};
bool norm_route_takes(const NormRouteCall& call);
void norm_route(const NormRouteCall& call, Stream stream);

// Experts that have all rows, multiplied before there is a plan.
struct EarlyExperts {
  const void* x = nullptr;  // [rows, cols], in memory when the kernel begins: see launch.cuh
  int64_t rows = 0;         // 0: no expert is
  int experts = 0;          // the last ones, which have the last places, in the order of the rows
};

// y[place] = x's row of the place times its expert's weights, with bias and GLU.
struct ExpertGemmCall {
  ExpertWeights weights = {};
  const void* x = nullptr;        // [places, cols] of the weights' dtype, 16-bit or f32 (expert_tiles), e4m3 codes with
  const float* x_scales = nullptr;  // [rows of x], or where x_by_group [rows of x, cols / kExpertCodeGroup]
  bool x_by_group = false;          // only of weights without a GLU, with tiles of kSharedRows places
  int64_t places = 0;             // at most, with shared rows kSharedRows for every active expert
  ExpertPlan plan = {};
  int tile_places = 64;  // that the plan was made for, and
  int crowded_places = 0;
  bool shared_rows = false;       // x is [kSharedRows, cols] at the places of every tile
  int64_t x_rows = 0;             // of 16-bit weights in wide tiles: x is [x_rows, cols], of which plan.row_of says a place's
                                  // row; 0: x is by place
  int64_t few_tiles = 0;          // so many at most, of 64 places or fewer: where CTAs would have none, several share the
                                  // depth of one, and a row's bits depend on this number; 0: never
  int certain = 0;                // with shared rows: of the experts, the last ones, which norm_route() gives to all rows, so
                                  // that their weights are asked for before there is a plan
  EarlyExperts early = {};        // 16-bit weights, kEarlyTilePlaces, no shared rows, and the plan is not settled
  bool plan_settled = false;      // the plan was written before the kernel before this one let its successors begin
  void* y = nullptr;              // [places, outputs()] dense
  DType y_dtype = DType::bf16;
  uint8_t* codes = nullptr;      // in place of y, where expert_gemm_codes_outputs(): y in e4m3, [places, outputs()], with
  float* code_scales = nullptr;  // [places, outputs() / kExpertCodeGroup]
};
// WGMMA: compute capability 9.0, 16-bit weights (or e4m3).
bool expert_gemm_takes(const ExpertWeights& weights);
inline constexpr int kExpertCodeGroup = 32;  // outputs of a tile of gates and ups
bool expert_gemm_codes_outputs(const ExpertWeights& weights, int tile_places);
// The tile to plan for, by the weights' dtype; pairs 0: of shared rows.
int expert_gemm_tile_places(int64_t pairs, int experts, DType dtype = DType::bf16);
// Of ExpertPlanCall for tiles of so many places, where a layer's weights are multiplied without early experts. 0: never, since no expert
// can have more, or since other kernels lose more by it where rows do not crowd (8 bits, two warpgroups a tile).
int expert_gemm_crowded_places(const ExpertWeights& gate_up, const ExpertWeights& down, int64_t rows, int64_t pairs, int tile_places);
// Whether gate and up of such tiles should take rows as they are (x_rows), without spread_rows().
bool expert_gemm_takes_rows(int64_t pairs, int experts, DType dtype);
void expert_gemm(const ExpertGemmCall& call, Stream stream);
// Every GPU and dtype; e4m3 weights are widened on the way, x is 16-bit then. Tiles of kPortableTilePlaces.
inline constexpr int kPortableTilePlaces = 64;
void expert_tiles(const ExpertGemmCall& call, DType x_dtype, Stream stream);

// out[place_of[row * stride + j]] = x[row], j < k. The kernel behind it begins when the one before it has ended, or, with
// early_successor, with it.
struct SpreadRowsCall {
  const void* x = nullptr;        // [rows, row_bytes]
  int64_t rows = 0;
  int64_t row_bytes = 0;          // a multiple of 16
  const int32_t* place_of = nullptr;
  int k = 0;                      // up to 32
  void* out = nullptr;            // [rows * k, row_bytes]
  int stride = 0;                 // places of a row; 0: k
  bool early_successor = false;
};
void spread_rows(const SpreadRowsCall& call, Stream stream);

// What a row's experts left to be added up.
struct ExpertSums {
  const void* results = nullptr;  // [rows * k, hidden] by place; null: none
  const int32_t* place_of = nullptr;  // [rows, k]
  const float* weights = nullptr;     // [rows, k]
  int k = 0;
  bool settled = false;               // place_of and weights: as plan_settled of ExpertGemmCall
};

// y[row] += sum over j of weights[row, j] * results[place_of[row, j]], in the order of j.
struct CombineExpertsCall {
  ExpertSums sums;                // of `dtype`
  DType dtype = DType::bf16;
  int64_t rows = 0;
  int64_t hidden = 0;             // a multiple of 8
  float* y = nullptr;             // [rows, hidden]
};
void combine_experts(const CombineExpertsCall& call, Stream stream);

// The same sum and the RMS norm behind it in one kernel, with the same bits.
struct NormExpertsCall {
  RmsNormCall norm;               // x is y; no partial sums; up to kNormPartialCols cols, a multiple of 8
  ExpertSums sums;                // of norm.out_dtype
};
void norm_experts(const NormExpertsCall& call, Stream stream);

// y[row] *= sigmoid(x[row] . gate), the gate of shared experts.
struct ScaleByGateCall {
  const void* x = nullptr;        // [rows, hidden]
  DType dtype = DType::bf16;
  int64_t rows = 0;
  int64_t hidden = 0;
  const float* gate = nullptr;    // [hidden]
  void* y = nullptr;              // [rows, cols] of `dtype`
  int64_t cols = 0;
};
void scale_by_gate(const ScaleByGateCall& call, Stream stream);

}  // namespace warpweave::gpu
