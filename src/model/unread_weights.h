// Tensors that a checkpoint holds and the model built of it does not read: a configuration that says fewer layers than
// there are, or of another family, would else be served without a word.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"
#include "model/weight_source.h"

namespace warpweave {

// What to tell of them, without those that no model reads (buffers that are computed, layers that guess further tokens,
// a head that is tied all the same, scales of activations): how many, and the first by name. Empty: nothing.
std::vector<std::string> unread_weights_lines(const std::vector<std::string>& unread, const ModelConfig& config);

// Those lines in the log.
void warn_of_unread_weights(const WeightSource& source, const ModelConfig& config);

// Of layers behind the last that the configuration counts, told by their names alone. Empty: there are none.
std::string layers_beyond_line(const std::vector<std::string>& names, const ModelConfig& config);

}  // namespace warpweave
