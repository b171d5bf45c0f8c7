// The mixture-of-experts feed-forward of a set of rows: route, group rows by expert, run each
// chosen expert's packed products once, and sum per row in the order of its chosen experts
// (so a row's bits do not depend on the rest of the batch).
#pragma once

#include <span>
#include <vector>

#include "ops/elementwise.h"
#include "ops/linear.h"

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
  int experts_per_token = 0;
  RouterNorm norm = RouterNorm::softmax_all_renorm;
  float* y = nullptr;             // [rows, hidden], y += result
  int64_t y_stride = 0;
};


void moe_forward(const MoeCall& call, ThreadTeam& team);

}  // namespace warpweave
