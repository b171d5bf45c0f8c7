// How the decode rows of a batch and the tiles of its prompts share the SMs. An estimate from the lengths, with
// constants of the H200 (docs/gpu-tuning.md has the measurements that it is held to). Pure, and nothing of CUDA in it.
#pragma once

#include "batch/forward_batch.h"

namespace warpweave::cuda {

enum class MixedOrder {
  apart,         // tiles, then decode rows, nothing beside each other
  decode_first,  // decode begins before Q is there; tiles begin where its CTAs end, some of them early
  // Each has SMs of its own. Decode is bound by memory and needs about half of them to draw all of its speed; tiles are
  // bound by arithmetic, and cost it little (Kamath et al. 2024, POD-Attention).
  side_by_side,
};

struct MixedWork {
  int num_sms = 0;
  int tile_rows = 0, rows_per_token = 1;  // ExtendLayout
  bool decode_may_be_first = false;       // ExtendLayout::after_decode
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  int head_token_bytes = 0;               // K and V of one token and head
  int window_left = -1;
  int decode_q_len = 1;                   // requests with more query tokens are prompts
};

struct SmShares {
  MixedOrder order = MixedOrder::apart;
  int tile_sms = 0, decode_sms = 0;  // all of them but with side_by_side
};

// `batch` has q_indptr and kv_lens.
SmShares share_sms(const ForwardBatch& batch, const MixedWork& work);

}  // namespace warpweave::cuda
