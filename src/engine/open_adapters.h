// The adapters of a served model: the flags' rules, and those that --lora-paths names, loaded.
#pragma once

#include <functional>
#include <memory>

#include "flags/server_args.h"
#include "lora/registry.h"
#include "warpweave/engine.h"

namespace warpweave {

struct AdapterSetup {
  const ModelConfig& config;
  const EngineInfo& info;
  DType dtype;
  std::function<std::unique_ptr<LoraPlacer>()> placer;  // LoraRegistryOptions::placer
};
// Null where no flag asks for adapters. Errors name the flag.
Result<std::unique_ptr<LoraRegistry>> open_adapters(const ServerArgs& args, const AdapterSetup& setup);

// Whether adapters can be served for this model, or no flag asks for them.
Status check_adapters(const ServerArgs& args, const ModelConfig& config);

}  // namespace warpweave
