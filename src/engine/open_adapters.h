// The adapters of a served model: the flags' rules, and those that --lora-paths names, loaded.
#pragma once

#include <memory>

#include "flags/server_args.h"
#include "lora/registry.h"
#include "warpweave/engine.h"

namespace warpweave {

// Null where no flag asks for adapters. Errors name the flag.
Result<std::unique_ptr<LoraRegistry>> open_adapters(const ServerArgs& args, const ModelConfig& config, const EngineInfo& info,
                                                    DType dtype);

// Whether adapters can be served for this model on this device, or no flag asks for them.
Status check_adapters(const ServerArgs& args, const ModelConfig& config, bool gpu);

}  // namespace warpweave
