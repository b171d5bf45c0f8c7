// A folder with adapter_config.json and adapter_model.safetensors to an adapter in memory.
//
// Every tensor of the file is used or refused by name. Sizes are bounded before memory is taken: each shape follows
// from the model and a rank of at most LoraLimits::max_rank. Weights are kept in `dtype`; the scale is applied apart.
// Errors: `not_found` for files that lack, `unsupported` for what is not served, `data_loss` for files that contradict
// themselves; `field` names the file or the tensor. Thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lora/target_modules.h"
#include "warpweave/tensor.h"

namespace warpweave {

// The files of an adapter's folder that are read.
inline constexpr const char* kAdapterConfigName = "adapter_config.json";
inline constexpr const char* kAdapterWeightsName = "adapter_model.safetensors";

struct LoraLimits {
  int max_rank = 0;
  std::vector<std::string> modules;  // that adapters may have, as in "q_proj"; empty: all of the model's
};

// One module's matrices, in the type that was asked for; valid during LoraPlacer::add().
struct LoraMatrices {
  const LoraModule* module = nullptr;
  TensorView a;                // [rank, in_features]
  TensorView b;                // [columns, rank]
  float scale = 1;
};

// Puts one adapter's matrices where they are multiplied.
class LoraPlacer {
 public:
  virtual ~LoraPlacer() = default;
  // All matrices of a GEMM, in the order of their columns; once for each that the adapter changes.
  virtual Status add(LoraPlace place, std::span<const LoraMatrices> parts) = 0;
  // Sets `layers` or `on_device`, and `bytes`.
  virtual Status finish(LoraAdapter& out) = 0;
};

// Packed for the host's GEMMs.
std::unique_ptr<LoraPlacer> place_lora_on_host(size_t num_layers);

// `bytes`, `rank`, `path` and what the placer sets are set, name and id are the caller's.
struct LoraSource {
  const LoraTargets& targets;
  const LoraLimits& limits;
  DType dtype;
};
Result<std::unique_ptr<LoraAdapter>> load_lora_adapter(const std::string& folder, const LoraSource& source,
                                                       LoraPlacer& placer);
// For the host.
Result<std::unique_ptr<LoraAdapter>> load_lora_adapter(const std::string& folder, const LoraTargets& targets,
                                                       const LoraLimits& limits, DType dtype);

}  // namespace warpweave
