// Any bytes as adapter_config.json: refused, or within the ranges that a loader relies on.
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "lora/adapter_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto config = warpweave::parse_adapter_config({reinterpret_cast<const char*>(data), size});
  if (!config.ok()) {
    if (config.status().message().empty()) std::abort();
    return 0;
  }
  for (const char* module : {"model.layers.0.self_attn.q_proj", "model.layers.31.mlp.down_proj"}) {
    const int rank = config->rank_of(module);
    if (rank < 1 || rank > warpweave::kMostLoraRank || !std::isfinite(config->scale_of(module))) std::abort();
  }
  return 0;
}
