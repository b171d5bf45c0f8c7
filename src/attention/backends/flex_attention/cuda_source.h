// Modifiers as kernel text for the tile kernels on CUDA (attention/tile/kernels/modifiers.cl):
//   float score_mod(ModCell c, int kv_idx, float score)
//   int mask_mod(ModCell c, int kv_idx)
//   int mask_coverage(ModBox box)   0: the mask hides the whole box, 2: it hides nothing, 1: else
// Integers exactly as attention/mods/evaluate.h has them, reals in f32. Coverage by interval
// arithmetic over integers; a comparison of reals counts as undecided.
// The text needs u32, AS_F32 and INLINE and the usual math functions, and is plain C besides.
#pragma once

#include <string>
#include <vector>

#include "attention/mods/expression.h"

namespace warpweave::flex_attention {

struct CudaSource {
  std::string text;                  // empty: no modifiers
  std::vector<std::string> defines;  // SCORE_MOD, MASK_MOD
};

CudaSource cuda_source(const mods::Modifiers& modifiers);

}  // namespace warpweave::flex_attention
