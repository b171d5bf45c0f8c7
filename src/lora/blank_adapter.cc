#include "lora/blank_adapter.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "lora/load_adapter.h"

namespace warpweave {

Result<std::unique_ptr<LoraAdapter>> blank_lora_adapter(const LoraTargets& targets, int layers, int rank, DType dtype) {
  const std::unique_ptr<LoraPlacer> placer = place_lora_on_host(targets.layers.size());
  const int64_t element_bytes = dtype_info(dtype).block_bytes;
  std::vector<std::byte> zeros;  // behind all matrices of a layer
  for (int layer = 0; layer < std::min(layers, static_cast<int>(targets.layers.size())); ++layer) {
    std::vector<LoraModule> modules = targets.layers[layer];
    std::sort(modules.begin(), modules.end(),
              [](const LoraModule& a, const LoraModule& b) { return a.first_column < b.first_column; });
    for (const LoraModule& module : modules) {
      zeros.resize(std::max<size_t>(zeros.size(), rank * std::max(module.columns, module.in_features) * element_bytes));
    }
    for (int site = 0; site < kLoraSites; ++site) {
      std::vector<LoraMatrices> parts;
      for (const LoraModule& module : modules) {
        if (static_cast<int>(module.site) != site) continue;
        LoraMatrices& part = parts.emplace_back();
        part.module = &module;
        part.a = {.data = zeros.data(), .dtype = dtype, .rank = 2, .shape = {rank, module.in_features}};
        part.b = {.data = zeros.data(), .dtype = dtype, .rank = 2, .shape = {module.columns, rank}};
      }
      if (!parts.empty()) WW_RETURN_IF_ERROR(placer->add({layer, static_cast<LoraSite>(site)}, parts));
    }
  }
  auto out = std::make_unique<LoraAdapter>();
  out->rank = rank;
  WW_RETURN_IF_ERROR(placer->finish(*out));
  return out;
}

}  // namespace warpweave
