// Weights under other names than their files have: of a model that stands within a larger one, beside a vision tower, say,
// or that was saved without its head.
//
// Each returns `source` itself where its names are as wanted. Thread-safe as the source is, which lives as long.
#pragma once

#include <memory>

#include "model/weight_source.h"

namespace warpweave {

// "model.X" for the language model's "model.language_model.X".
std::shared_ptr<WeightSource> language_model_weights(std::shared_ptr<WeightSource> source);

// "model.X" for the "X" of a model that was saved without its head.
std::shared_ptr<WeightSource> with_model_prefix(std::shared_ptr<WeightSource> source);

// "model.X" for "X", always: an EAGLE head has no embedding to tell by.
std::shared_ptr<WeightSource> eagle_weight_names(std::shared_ptr<WeightSource> source);

}  // namespace warpweave
