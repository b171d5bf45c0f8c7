// A folder with adapter_config.json and adapter_model.safetensors to an adapter in memory.
//
// Every tensor of the file is used or refused by name. Sizes are bounded before memory is taken: each shape follows from
// the model and a rank of at most LoraLimits::max_rank. Weights are kept in `dtype`; the scale is applied apart.
// Errors: `not_found` for files that lack, `unsupported` for what is not served, `data_loss` for files that contradict
// themselves; `field` names the file or the tensor. Thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lora/target_modules.h"

namespace warpweave {

struct LoraLimits {
  int max_rank = 0;
  std::vector<std::string> modules;  // that adapters may have, as in "q_proj"; empty: all of the model's
};

// `bytes`, `rank`, `path` and `layers` are set, name and id are the caller's.
Result<std::unique_ptr<LoraAdapter>> load_lora_adapter(const std::string& folder, const LoraTargets& targets,
                                                       const LoraLimits& limits, DType dtype);

}  // namespace warpweave
