// Checkpoints with 8-bit weights ("quantization_config": {"quant_method": "fp8"}): a weight is an
// F8_E4M3 (or F8_E5M2) tensor with scales beside it, in f32, f16 or bf16:
//   NAME_scale       one for the tensor (shape [], [1]) or one a row ([rows], [rows, 1])
//   NAME_scale_inv   one a block of config.block_rows x config.block_cols, rounded up; despite its
//                    name it, too, is what the stored value is multiplied with
// Other tensors are as usual. Scales of activations (input_scale) are not needed: activations stay in
// the serving dtype. Errors: `data_loss` naming the tensor for missing, misshapen or non-finite scales.
#pragma once

#include <memory>

#include "model/config.h"
#include "model/weight_source.h"

namespace warpweave {

// `inner` with its 8-bit matrices widened to f32 as they are found (stored value times scale, one
// rounding); what is found is freed by release().
std::shared_ptr<WeightSource> widen_fp8_weights(std::shared_ptr<WeightSource> inner, const Fp8Config& config);

}  // namespace warpweave
