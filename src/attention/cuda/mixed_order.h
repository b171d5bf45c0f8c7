// How the decode rows of a batch and the tiles of its prompts share the SMs: which of the two kernels comes first, and
// how much of the decode work its late CTAs take. An estimate from the lengths, with constants of the H200
// (docs/gpu.md has the measurements that it is held to). Pure, and nothing of CUDA in it.
#pragma once

#include "batch/forward_batch.h"

namespace warpweave::cuda {

enum class MixedOrder {
  apart,         // tiles, then decode rows, nothing beside each other
  decode_first,  // decode begins before Q is there; tiles begin where its CTAs end, some of them early
  tiles_first,   // few tiles that take long: decode CTAs begin on the SMs they leave free, and where they end
};

struct MixedWork {
  int num_sms = 0;
  int tile_rows = 0, rows_per_token = 1;  // ExtendLayout
  bool decode_may_be_first = false;       // ExtendLayout::beside_decode
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  int head_token_bytes = 0;               // K and V of one token and head
  int window_left = -1;
  int decode_q_len = 1;                   // requests with more query tokens are prompts
};

struct DecodePlace {
  MixedOrder order = MixedOrder::apart;
  // With tiles_first CTAs on SMs with a tile get less to do, or nothing: with equal shares all would wait for them.
  int sms = 0;            // that decode takes
  int early_sms = 0;      // of those, without tiles
  double late_share = 1;  // of an SM with a tile, in shares of one without
};

// `batch` has q_indptr and kv_lens.
DecodePlace place_decode(const ForwardBatch& batch, const MixedWork& work);

}  // namespace warpweave::cuda
