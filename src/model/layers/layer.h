// A layer of a model and the loop over layers, on any device.
//
// A mixer lets rows meet the tokens before them (attention, a state, a convolution) and keeps in the cache what later
// rows need; a feed-forward takes every row alone. Both read the residual stream through their norm and add their
// branch to it. Parts live as long as their model, hold references to its weights, and share memory for intermediate
// values among the layers of a kind, so one forward runs at a time. On a GPU forward() only enqueues.
// Architecture: Vaswani et al. 2017 with RMSNorm before each branch (Llama, 2023).
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "attention/backend.h"
#include "batch/forward_batch.h"
#include "warpweave/status.h"

namespace warpweave {

// What every part of a layer gets of a forward.
template <typename Device>
struct LayerCallOf {
  const ForwardBatch& batch;        // with the slots and page tables of the layer's cache group
  typename Device::Cache& cache;
  AttentionBackend& attention;      // has planned `batch`
  typename Device::Residual& x;     // the residual stream of the batch's rows, later of those that are left
  int layer = 0;                    // of the model and of the cache
  typename Device::Recurrent* recurrent =
      nullptr;                      // states of recurrent layers and their kernels; null: no such layers
  bool last_mixer = false;          // no row needs another one's values after this layer's mixer
};

template <typename Device>
class MixerOf {
 public:
  virtual ~MixerOf() = default;
  virtual std::string_view name() const = 0;  // for messages: "attention"
  // Writes the cache for every row, then x += branch(norm(x)). With last_mixer only batch.logits_rows are wanted: the
  // others leave x (Residual::keep) before the last GEMM, and where none is wanted the cache is all there is to do.
  virtual Status forward(const LayerCallOf<Device>& call) = 0;
};

template <typename Device>
class FeedForwardOf {
 public:
  virtual ~FeedForwardOf() = default;
  virtual std::string_view name() const = 0;
  virtual Status forward(const LayerCallOf<Device>& call) = 0;  // x += branch(norm(x))
};

template <typename Device>
struct LayerOf {
  std::unique_ptr<MixerOf<Device>> mixer;
  std::unique_ptr<FeedForwardOf<Device>> feed_forward;  // null: the layer has none
  bool parallel = false;                                // as LayerPlan::parallel
};

// Runs all layers. `after(layer, name)` is called after each part that left rows in x. Stops at the first failure.
template <typename Device, typename After>
Status run_layers(std::span<const LayerOf<Device>> layers, const LayerCallOf<Device>& model, After&& after) {
  const int count = static_cast<int>(layers.size());
  for (int i = 0; i < count; ++i) {
    const LayerOf<Device>& layer = layers[i];
    const ForwardBatch batch = model.batch.of_group(model.cache.group_of(i));
    const LayerCallOf<Device> call{.batch = batch, .cache = model.cache, .attention = model.attention, .x = model.x,
                                   .layer = i, .recurrent = model.recurrent, .last_mixer = i + 1 == count};
    const bool parallel = layer.parallel && layer.feed_forward != nullptr;
    if (parallel) call.x.fork();
    WW_RETURN_IF_ERROR(layer.mixer->forward(call));
    if (call.last_mixer && call.batch.logits_rows.empty()) return {};
    after(call.layer, layer.mixer->name());
    if (layer.feed_forward == nullptr) continue;
    WW_RETURN_IF_ERROR(layer.feed_forward->forward(call));
    if (parallel) call.x.join();
    after(call.layer, layer.feed_forward->name());
  }
  return {};
}

}  // namespace warpweave
