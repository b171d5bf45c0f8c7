// An adapter of zeros: what a device tries its memory with before any adapter was asked for (engine/widest_step.h).
#pragma once

#include <memory>

#include "lora/target_modules.h"

namespace warpweave {

// Changes every module of the first `layers` layers of the model with this rank, on the host. Errors: those of packing.
Result<std::unique_ptr<LoraAdapter>> blank_lora_adapter(const LoraTargets& targets, int layers, int rank, DType dtype);

}  // namespace warpweave
