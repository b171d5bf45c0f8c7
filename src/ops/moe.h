// The mixture-of-experts feed-forward of a set of rows: route, group rows by expert, run each
// chosen expert's packed GEMMs once, and sum per row in the order of its chosen experts, the
// shared ones last (so a row's bits do not depend on the rest of the batch).
#pragma once

#include <span>
#include <vector>

#include "ops/elementwise.h"
#include "ops/linear.h"
#include "ops/router_rule.h"

namespace warpweave {

struct MoeExpert {
  PackedLinear gate_up;  // GLU, hidden -> ffn
  PackedLinear down;     // ffn -> hidden
};

struct MoeCall {
  const float* x = nullptr;       // [rows, hidden], the normed input
  int64_t rows = 0;
  int64_t x_stride = 0;
  const PackedLinear* router = nullptr;  // hidden -> experts, ComputeMode::f32
  std::span<const MoeExpert> experts;
  RouterRule rule;
  const float* correction = nullptr;     // [experts] of the rule, or null
  // A feed-forward that every row passes beside those it chooses, or null; times sigmoid(x . shared_gate)
  // where that is given ([hidden]).
  const PackedLinear* shared_gate_up = nullptr;
  const PackedLinear* shared_down = nullptr;
  const float* shared_gate = nullptr;
  int32_t* rows_by_expert = nullptr;     // [experts] out: how many rows chose each, or null
  float* y = nullptr;             // [rows, hidden], y += result
  int64_t y_stride = 0;
};

void moe_forward(const MoeCall& call, ThreadTeam& team);

}  // namespace warpweave
