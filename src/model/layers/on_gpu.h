// The types of a model in GPU memory, for the templates of this folder.
#pragma once

#include <cstdint>

#include "model/gpu_kv_cache.h"
#include "model/gpu_state_cache.h"
#include "model/layers/layer.h"
#include "model/layers/layer_weights.h"
#include "ops/cuda/experts.h"
#include "ops/cuda/gemm.h"

namespace warpweave {

struct GpuVector {
  const float* data = nullptr;
  bool empty() const { return data == nullptr; }
};

struct GpuRope {
  int rotary_dim = 0;
  bool interleaved = false;
  const float* cos = nullptr;   // [positions, rotary_dim / 2]
  const float* sin = nullptr;
};

struct GpuExpert {
  gpu::GpuLinear gate_up;
  gpu::GpuLinear down;
};

// The experts of a layer as their kernels want them; they stand equally far apart in memory, gate and up in turns
// (ops/cuda/experts.h).
struct GpuExpertLayer {
  gpu::ExpertWeights gate_up;
  gpu::ExpertWeights down;
};

// The up-projections of latent attention, all heads' one below the other.
struct GpuLatentHeads {
  gpu::GpuLinear into_latent;  // [heads * kv_rank, nope]
  // kv_rank -> heads * [nope keys | rope_dim zeros | v_dim values]: what it makes of a latent is K and V of every head
  // but for the rope parts, which go in the zeros' place.
  gpu::GpuLinear up;

  // Their GEMMs are no GpuGemm's of the residual stream.
  template <typename Visit>
  void each_linear(Visit&&) const {}
};

class GpuResidual;

struct OnGpu {
  using Linear = gpu::GpuLinear;
  using Vector = GpuVector;
  using Expert = GpuExpert;
  using Experts = GpuExpertLayer;
  using LatentHeads = GpuLatentHeads;
  using Rope = GpuRope;
  using Cache = GpuKvCache;
  using Residual = GpuResidual;
  using Recurrent = GpuStateCache;
};

using GpuLayerCall = LayerCallOf<OnGpu>;
using GpuMixer = MixerOf<OnGpu>;
using GpuFeedForward = FeedForwardOf<OnGpu>;
using GpuLayer = LayerOf<OnGpu>;
using GpuRowNorm = RowNormOf<OnGpu>;
using GpuLayerWeights = LayerWeightsOf<OnGpu>;
using GpuAttentionWeights = AttentionWeightsOf<OnGpu>;
using GpuLatentWeights = LatentWeightsOf<OnGpu>;
using GpuGdnWeights = GdnWeightsOf<OnGpu>;
using GpuShortConvWeights = ShortConvWeightsOf<OnGpu>;
using GpuDenseWeights = DenseWeightsOf<OnGpu>;
using GpuExpertsWeights = ExpertsWeightsOf<OnGpu>;

}  // namespace warpweave
