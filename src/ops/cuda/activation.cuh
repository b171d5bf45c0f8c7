// The activations of gate/up pairs, in device code.
#pragma once

#include "ops/compute_types.h"

namespace warpweave::gpu {

template <GluActivation kActivation>
__device__ __forceinline__ float activate(float gate, float up) {
  if constexpr (kActivation == GluActivation::silu) return __fdividef(gate, 1 + __expf(-gate)) * up;
  if constexpr (kActivation == GluActivation::gelu_tanh) {
    const float inner = 0.7978845608028654f * (gate + 0.044715f * gate * gate * gate);
    return 0.5f * gate * (1 + tanhf(inner)) * up;
  }
  const float clamped = fminf(gate, 7.0f);
  return (fminf(fmaxf(up, -7.0f), 7.0f) + 1) * __fdividef(clamped, 1 + __expf(-1.702f * clamped));
}

__device__ __forceinline__ float activate(GluActivation activation, float gate, float up) {
  switch (activation) {
    case GluActivation::gelu_tanh: return activate<GluActivation::gelu_tanh>(gate, up);
    case GluActivation::swiglu_oai: return activate<GluActivation::swiglu_oai>(gate, up);
    default: return activate<GluActivation::silu>(gate, up);
  }
}

}  // namespace warpweave::gpu
