// The weights of a model that stands within a larger one, beside a vision tower, say.
#pragma once

#include <memory>

#include "model/weight_source.h"

namespace warpweave {

// `source` itself, or, where its language model's tensors are "model.language_model.X", one that knows them as "model.X".
std::shared_ptr<WeightSource> language_model_weights(std::shared_ptr<WeightSource> source);

}  // namespace warpweave
