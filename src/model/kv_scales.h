// The scales of fp8 and fp4 KV caches that a checkpoint carries.
//
// Per layer N and for k and v each, the first of these tensors that the source has:
//   model.layers.N.self_attn.k_scale            model.layers.N.self_attn.attn.k_scale
//   model.layers.N.self_attn.k_proj.k_scale     model.layers.N.self_attn.k_proj.output_scale
//   model.layers.N.self_attn.kv_scale           (one for both)
// as a scalar, [1] or [num_kv_heads]. A stored value times its scale is the value.
#pragma once

#include "kv/kv_cache.h"
#include "model/config.h"
#include "model/weight_source.h"

namespace warpweave {

// Empty when the checkpoint has none; a layer without one gets 1. `data_loss`, naming the tensor, for
// another shape or a scale that is not a positive number.
Result<KvHeadScales> load_kv_scales(const WeightSource& source, const ModelConfig& config);

}  // namespace warpweave
