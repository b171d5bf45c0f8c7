// Everything that a tier's .cc compiles: include it once, with the tier's flags.
#pragma once

#include "linear/cpu/chunk.h"
#include "linear/cpu/step.h"

namespace {

constexpr LinearCpuKernels linear_attn_kernels() {
  return {.widen = widen,
          .narrow = narrow,
          .conv = conv,
          .l2norm = l2norm,
          .exp_row = exp_row,
          .decay_row = decay_row,
          .multiply = multiply,
          .dot = dot,
          .scale = scale,
          .transpose = transpose,
          .gemm = gemm,
          .solve = solve,
          .remainder = remainder,
          .scalar_pairs = scalar_pairs,
          .channel_pairs = channel_pairs,
          .step = step,
          .norm_gate = norm_gate,
          .tiles = nullptr};
}

}  // namespace
