// 8-bit weights. Checkpoints with them ("quantization_config": {"quant_method": "fp8"}, or
// "compressed-tensors" with nothing but 8-bit float weights): a weight is an F8_E4M3 (or F8_E5M2) tensor
// with scales beside it, in f32, f16 or bf16:
//   NAME_scale       one for the tensor (shape [], [1]) or one a row ([rows], [rows, 1]), or as below
//   NAME_scale_inv   one a block of config.block_rows x config.block_cols, rounded up; despite its
//                    name it, too, is what the stored value is multiplied with
// Other tensors are as usual. Scales of activations (input_scale) are not needed: where activations are
// rounded to 8 bits, each row gets a scale of its own. Errors: `data_loss` naming the tensor for missing,
// misshapen or non-finite scales and for NaN codes.
#pragma once

#include <memory>

#include "model/config.h"
#include "model/weight_source.h"

namespace warpweave {

// `inner` with its 8-bit matrices widened to f32 by find() (stored value times scale, one rounding),
// and the e4m3 ones among the layers' projections as they are by find_fp8(). What is found is freed by
// release().
std::shared_ptr<WeightSource> read_fp8_weights(std::shared_ptr<WeightSource> inner, const Fp8Config& config);

// `inner` with the matrices of the layers' projections (q, k, v, o, gate, up, down, those of experts stored
// one by one, too) rounded to e4m3 as they are found: with the blocks of `config`, or where it has none
// with one scale a row (an output feature). Embeddings, the head, norms and routers stay as they are.
std::shared_ptr<WeightSource> quantize_weights_fp8(std::shared_ptr<WeightSource> inner, const Fp8Config& config);

}  // namespace warpweave
