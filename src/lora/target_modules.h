// The modules of a model that adapters may change, by the names that PEFT's tensors have, and where each one's columns
// stand in the GEMM that computes it (ops/lora.h): q, k and v in one, gate and up in one.
//
// Modules of experts, latent attention and gated delta nets, the embedding and the head are not among them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "ops/lora.h"

namespace warpweave {

struct LoraModule {
  std::string path;            // within the layer: "self_attn.q_proj"
  LoraSite site;
  int64_t first_column = 0;
  int64_t columns = 0;
  int64_t in_features = 0;

  std::string_view name() const { return std::string_view(path).substr(path.rfind('.') + 1); }  // "q_proj"
};

struct LoraTargets {
  std::vector<std::vector<LoraModule>> layers;  // empty: none of that layer's
  std::string model;           // "LlamaForCausalLM", for messages

  std::vector<std::string> names() const;       // of all layers' modules, sorted, each once

  // The matrices of an adapter that changes every module with this rank.
  int64_t adapter_bytes(int rank, int64_t element_bytes) const;
};

// `unsupported` where no layer has one.
Result<LoraTargets> lora_targets(const ModelConfig& config);

}  // namespace warpweave
