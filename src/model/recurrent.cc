#include "model/recurrent.h"

#include "linear/host_backends.h"
#include "linear/short_conv.h"

namespace warpweave {

LinearAttnShape linear_attn_shape(const ModelConfig& config) {
  const LinearAttnConfig& linear = *config.linear;
  return {.kind = linear.channel_decay ? LinearAttnKind::kda : LinearAttnKind::gdn,
          .k_heads = linear.k_heads,
          .v_heads = linear.v_heads,
          .k_dim = linear.k_dim,
          .v_dim = linear.v_dim};
}

StateCacheShape state_cache_shape(const ModelConfig& config, int num_slots, DType recurrent_dtype) {
  StateCacheShape shape;
  shape.num_layers = config.num_recurrent_layers();
  shape.num_slots = num_slots;
  if (config.short_conv) {
    shape.conv_elements = int64_t{config.hidden_size} * (config.short_conv->width - 1);
    return shape;
  }
  const LinearAttnShape layer = linear_attn_shape(config);
  shape.recurrent_elements = int64_t{layer.v_heads} * layer.v_dim * layer.k_dim;
  shape.conv_elements = int64_t{layer.conv_channels()} * (config.linear->conv_width - 1);
  shape.recurrent_dtype = recurrent_dtype;
  return shape;
}

bool leaves_checkpoints(const ModelConfig& config, const LinearAttnNames& names, DType recurrent_dtype,
                        std::span<const LinearAttnBackend> backends) {
  if (config.short_conv) return kShortConvLeavesCheckpoints;
  const auto choice = choose_linear_attn(linear_attn_shape(config).kind, names, recurrent_dtype, backends);
  return choice.ok() && choice->extend->caps->checkpoints;
}

Result<std::unique_ptr<HostRecurrent>> HostRecurrent::create(const ModelConfig& config, const StateCacheShape& shape,
                                                             const LinearAttnNames& names, ThreadTeam& team) {
  WW_ASSIGN_OR_RETURN(StateCache states, StateCache::create(shape));
  LinearAttnDispatcher kernels;
  if (config.linear) {
    const LinearAttnShape layer = linear_attn_shape(config);
    WW_ASSIGN_OR_RETURN(kernels, LinearAttnDispatcher::create(layer.kind, names, shape.recurrent_dtype,
                                                              host_linear_attn_backends(team)));
    WW_RETURN_IF_ERROR(kernels.prepare(layer));
  }
  return std::make_unique<HostRecurrent>(HostRecurrent{std::move(states), std::move(kernels)});
}

}  // namespace warpweave
