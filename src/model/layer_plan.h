// What the layers of a model are made of: for each a mixer, in which rows meet the rows before them, and a
// feed-forward, which takes every row alone. The list follows from the configuration; host and GPU are built from it,
// and nothing else asks what a layer is.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace warpweave {

enum class MixerKind : uint8_t {
  attention,        // over pages of K and V: MHA, GQA, MQA
  latent,           // over pages of latent tokens: MLA
  gated_delta_net,  // linear attention: a short convolution and a state
  short_conv,       // a gated short convolution alone
};
enum class FeedForwardKind : uint8_t { none, dense, experts };

struct LayerPlan {
  MixerKind mixer = MixerKind::attention;
  FeedForwardKind feed_forward = FeedForwardKind::dense;
  int window_left = -1;   // of attention: a row sees so many tokens before its own; -1: all
  int window_right = -1;  // where the model attends both ways: and so many after it; -1: all
  int rope_index = 0;     // of attention: into the weights' ropes; -1: q and k are not rotated
  bool parallel = false;  // the feed-forward reads the rows as the mixer does, without what the mixer adds
};

// Attention in every layer, latent where the configuration has ranks for it, linear or sliding where it says so;
// experts where its rules say so, else dense.
std::vector<LayerPlan> transformer_layers(const ModelConfig& config);

}  // namespace warpweave
