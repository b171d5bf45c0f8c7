// What a layer's attention asks of the backend, the same on every device but for the rows' own pointers.
#pragma once

#include "attention/backend.h"
#include "model/decoder_spec.h"

namespace warpweave {

template <typename Cache>
AttentionCall attention_call(const AttentionSpec& spec, const LayerPlan& plan, const Cache& cache, int layer) {
  AttentionCall call;
  call.layer = layer;
  call.num_q_heads = spec.num_q_heads;
  call.num_kv_heads = spec.num_kv_heads;
  call.head_dim = call.v_head_dim = spec.head_dim;
  call.scale = spec.scale;
  call.window_left = plan.window_left;
  call.window_right = plan.window_right;
  call.logit_softcap = spec.softcap;
  call.q_token_stride = spec.qkv_dim();
  call.k = cache.k(layer);
  call.v = cache.v(layer);
  call.out_token_stride = spec.q_dim();
  return call;
}

// The same of latent attention: the cache's rows are K, and V is their first part.
template <typename Cache>
AttentionCall latent_attention_call(const LatentSpec& spec, const Cache& cache, int layer) {
  AttentionCall call;
  call.layer = layer;
  call.num_q_heads = spec.num_heads;
  call.num_kv_heads = 1;
  call.head_dim = spec.dims.token_dim();
  call.v_head_dim = spec.dims.kv_rank;
  call.scale = spec.scale;
  call.q_token_stride = spec.latent_q_dim();
  call.k = call.v = cache.k(layer);
  call.out_token_stride = spec.latent_out_dim();
  return call;
}

// By the function for the batch's mode.
inline Status attend(AttentionBackend& attention, const ForwardBatch& batch, const AttentionCall& call) {
  return batch.mode == ForwardMode::decode ? attention.forward_decode(batch, call)
                                           : attention.forward_extend(batch, call);
}

}  // namespace warpweave
