// The types of a model in host memory, for the templates of this folder.
#pragma once

#include <vector>

#include "kv/kv_cache.h"
#include "model/layers/layer.h"
#include "model/layers/layer_weights.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/rope.h"

namespace warpweave {

class ResidualStream;
struct HostRecurrent;

// The up-projections of latent attention, a GEMM a head.
struct HostLatentHeads {
  std::vector<PackedLinear> into_latent;  // nope -> kv_rank
  std::vector<PackedLinear> from_latent;  // kv_rank -> v_dim

  template <typename Visit>
  void each_linear(Visit&& visit) const {
    for (const PackedLinear& head : into_latent) visit(head);
    for (const PackedLinear& head : from_latent) visit(head);
  }
};

struct OnHost {
  using Linear = PackedLinear;
  using Vector = std::vector<float>;
  using Expert = MoeExpert;
  using Experts = std::vector<MoeExpert>;
  using LatentHeads = HostLatentHeads;
  using Rope = RopeTable;
  using Cache = KvCache;
  using Residual = ResidualStream;
  using Recurrent = HostRecurrent;
};

using LayerCall = LayerCallOf<OnHost>;
using Mixer = MixerOf<OnHost>;
using FeedForward = FeedForwardOf<OnHost>;
using Layer = LayerOf<OnHost>;
using RowNorm = RowNormOf<OnHost>;
using LayerWeights = LayerWeightsOf<OnHost>;
using AttentionWeights = AttentionWeightsOf<OnHost>;
using LatentWeights = LatentWeightsOf<OnHost>;
using GdnWeights = GdnWeightsOf<OnHost>;
using ShortConvWeights = ShortConvWeightsOf<OnHost>;
using DenseWeights = DenseWeightsOf<OnHost>;
using ExpertsWeights = ExpertsWeightsOf<OnHost>;

inline const float* data_or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

}  // namespace warpweave
