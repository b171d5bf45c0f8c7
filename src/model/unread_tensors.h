// Which tensors of a checkpoint a model of it would leave unread, found before any weight is read: the decoder's
// builder (decoder_builder.h) asks for every tensor, and gets its shape without values.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/weight_source.h"

namespace warpweave {

// Sorted names, for unread_weights_lines(). `source` names tensors as open_folder_weights() and load_gguf_model() do,
// without 8-bit weights being widened (fp8_weights.h). An error: what the build would fail with, a tensor that is
// missing or has another shape, say. Memory: one tensor's worth of addresses, hardly a page of it touched.
Result<std::vector<std::string>> unread_tensors(const ModelConfig& config, std::shared_ptr<WeightSource> source);

}  // namespace warpweave
