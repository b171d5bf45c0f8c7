// The weights of one layer: those of its mixer's kind and of its feed-forward's (../layer_plan.h).
#pragma once

#include <type_traits>
#include <variant>

#include "model/layers/attention_weights.h"
#include "model/layers/dense_weights.h"
#include "model/layers/experts_weights.h"
#include "model/layers/gdn_weights.h"
#include "model/layers/latent_weights.h"
#include "model/layers/short_conv_weights.h"

namespace warpweave {

template <typename Device>
struct LayerWeightsOf {
  std::variant<AttentionWeightsOf<Device>, LatentWeightsOf<Device>, GdnWeightsOf<Device>, ShortConvWeightsOf<Device>>
      mixer;
  std::variant<std::monostate, DenseWeightsOf<Device>, ExpertsWeightsOf<Device>> feed_forward;  // monostate: none

  // visit(weights) for the parts that are there.
  template <typename Visit>
  void each_part(Visit&& visit) const {
    std::visit(visit, mixer);
    std::visit([&](const auto& part) {
      if constexpr (!std::is_same_v<decltype(part), const std::monostate&>) visit(part);
    }, feed_forward);
  }
  // visit(linear) for every GEMM of a single matrix.
  template <typename Visit>
  void each_linear(Visit&& visit) const {
    each_part([&](const auto& part) { part.each_linear(visit); });
  }
};

}  // namespace warpweave
