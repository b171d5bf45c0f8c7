// Choices shared by the ops and their kernels; plain enough for per-tier kernel files to include.
#pragma once

#include <stdint.h>

namespace warpweave {

enum class ComputeMode : uint8_t { f32, bf16 };

// How a gate/up pair becomes one value. `none`: the linear has no pairs.
enum class GluActivation : uint8_t {
  none,
  silu,        // silu(gate) * up: Llama, Mistral, Qwen
  gelu_tanh,   // gelu_tanh(gate) * up: Gemma
  gelu,        // gelu(gate) * up by the error function: encoders; on CPUs
  swiglu_oai,  // gate <= 7, up within [-7, 7], (up + 1) * gate * sigmoid(1.702 gate): gpt-oss
};

}  // namespace warpweave
