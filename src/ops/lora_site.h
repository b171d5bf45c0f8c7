// The GEMMs of a model that adapters (LoRA) may change.
#pragma once

#include <cstdint>

namespace warpweave {

enum class LoraSite : uint8_t { qkv, o, gate_up, down };
inline constexpr int kLoraSites = 4;

// One of them, in one layer.
struct LoraPlace {
  int layer;
  LoraSite site;
};

}  // namespace warpweave
