// The activations of all the gate/up pairs that a thread has.
#pragma once

#include "ops/cuda/activation.cuh"

namespace warpweave::gpu {

// gate[i] becomes the activation of gate[i] and up[i]. One branch for all of them: else each would wait for the one before.
template <int kCount>
__device__ __forceinline__ void activate_all(GluActivation activation, float* gate, const float* up) {
  const auto with = [&]<GluActivation kActivation>() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) gate[i] = activate<kActivation>(gate[i], up[i]);
  };
  if (activation == GluActivation::silu) return with.template operator()<GluActivation::silu>();
  if (activation == GluActivation::gelu_tanh) return with.template operator()<GluActivation::gelu_tanh>();
  with.template operator()<GluActivation::swiglu_oai>();
}

}  // namespace warpweave::gpu
