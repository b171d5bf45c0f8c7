// adapter_config.json of an adapter as PEFT saves it (https://github.com/huggingface/peft, LoraConfig).
//
// Only what changes the result is kept. A setting that asks for more than x A^T B^T with one scale a module, and a
// field that is not known and not empty, is `unsupported` and named; nothing is accepted and ignored.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "warpweave/status.h"

namespace warpweave {

inline constexpr size_t kMaxAdapterConfigBytes = 1 << 20;
inline constexpr int kMostLoraRank = 512;
inline constexpr size_t kMaxLoraPatterns = 4096;

struct LoraConfig {
  int rank = 8;
  double alpha = 8;
  bool rank_stabilized = false;               // the scale is alpha / sqrt(rank), not alpha / rank (rsLoRA)
  // Of modules whose path is this, or ends with "." and this; the first that fits counts.
  std::vector<std::pair<std::string, int>> rank_pattern;
  std::vector<std::pair<std::string, double>> alpha_pattern;

  // Of a module by its path in the model, as in "model.layers.0.self_attn.q_proj".
  int rank_of(std::string_view module) const;
  float scale_of(std::string_view module) const;
};

// `field` of an error is the member that it is about.
Result<LoraConfig> parse_adapter_config(std::string_view json_text);

}  // namespace warpweave
