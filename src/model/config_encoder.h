// The configurations of encoders: BERT, RoBERTa and ModernBERT.
#pragma once

#include <optional>
#include <string_view>

#include "model/config.h"
#include "model/config_reader.h"

namespace warpweave {

// An encoder's class name taken apart, as declared_model() says; nullopt for other models.
std::optional<DeclaredModel> declared_encoder(std::string_view architecture);

// What out.architecture's encoder has beside a decoder's shape, which has been read.
void read_encoder(ConfigReader& config, ModelConfig& out);

}  // namespace warpweave
