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

struct OnHost {
  using Linear = PackedLinear;
  using Vector = std::vector<float>;
  using Expert = MoeExpert;
  using Experts = std::vector<MoeExpert>;
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
using DenseWeights = DenseWeightsOf<OnHost>;
using ExpertsWeights = ExpertsWeightsOf<OnHost>;

inline const float* data_or_null(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

}  // namespace warpweave
