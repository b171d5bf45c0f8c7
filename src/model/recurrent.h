// What the recurrent layers of a model need beside its weights: the shape of their states, and on the host the states
// with the kernels that run them.
#pragma once

#include <memory>
#include <span>

#include "kv/state_cache.h"
#include "linear/dispatch.h"
#include "model/config.h"

namespace warpweave {

// Of the layers that config.linear describes, which must be given.
LinearAttnShape linear_attn_shape(const ModelConfig& config);
// Of a model with recurrent layers. Short convolutions alone have no recurrent part, and nothing of `recurrent_dtype`.
StateCacheShape state_cache_shape(const ModelConfig& config, int num_slots, DType recurrent_dtype);

// Whether the extend of those layers leaves checkpoints on its way (LinearAttnKernelCaps::checkpoints). False, too,
// where `names` have no kernels, which LinearAttnDispatcher::create refuses.
bool leaves_checkpoints(const ModelConfig& config, const LinearAttnNames& names, DType recurrent_dtype,
                        std::span<const LinearAttnBackend> backends);

// Used by one forward at a time.
struct HostRecurrent {
  StateCache states;             // its layers are the model's recurrent ones, counted from 0
  LinearAttnDispatcher kernels;  // of models with linear attention
  bool same_bits_drafted = false;  // LinearAttnCall::same_bits_drafted

  // Errors: those of StateCache::create and of the dispatcher's create and prepare. `team` outlives it.
  static Result<std::unique_ptr<HostRecurrent>> create(const ModelConfig& config, const StateCacheShape& shape,
                                                       const LinearAttnNames& names, ThreadTeam& team);
};

}  // namespace warpweave
