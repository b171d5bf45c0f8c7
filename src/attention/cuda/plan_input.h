// What the kernels that make plans take, and what follows from it without a device. Nothing of CUDA in it.
#pragma once

#include <cstdint>

#include "attention/cuda/attention_params.h"

namespace warpweave::cuda {

struct PlanInput {
  const int32_t* kv_lens = nullptr;
  const int32_t* q_indptr = nullptr;
  int num_requests = 0;
  int num_kv_heads = 0;
  int window_left = -1;
  // The decode plan takes requests of up to this many query tokens, the extend plan the longer ones.
  int decode_q_len = 0;
  int head_token_bytes = 512;  // K and V of one token and head
  // Extend: tiles come in sections of as many kv heads as have so many bytes of K and V. About half of a large L2
  // cache unless another size was measured to be faster: the rest is for Q, the output and what is being evicted.
  int section_bytes = 24 << 20;
  bool causal = true;
  bool cut_long_pairs = false;  // decode: pairs of one length are cut, too, where runs are long, so that none is idle
  // Decode, in the time that one tile takes: what beginning and ending a pair costs (segment_tiles), what merging any
  // pieces costs (merge_tiles), and how many merged pieces cost one tile more. The line is cut by these
  // (weighed_cuts.cuh); segment_tiles 0: it is cut into runs of one length.
  int segment_tiles = 0, merge_tiles = 0, merged_pieces_a_tile = 1;
  int tile_tokens = kDecodeTileTokens;  // decode
  int32_t* arrivals = nullptr;  // decode: SplitWork's, which the plan sets to zero, or null
  bool whole_tiles = false;  // decode: tiles stand at multiples of tile_tokens, also where a window begins within one
  bool tiles_in_turn = false;  // CTA i takes tiles i, i + CTAs, ..., rather than the next one when it is done
  ExtendCopies copies;         // for the extend plan to fill in, where max_blocks is not 0
};

// How many neighbouring kv heads are read in lockstep, by as many neighbouring workers of the decode plan
// (DecodeWorker): at most kMaxLockstepHeads, a divisor of the number of kv heads and nearly one of that of workers.
constexpr int kMaxLockstepHeads = 8;
inline int lockstep_heads(int num_kv_heads, int num_workers) {
  for (int heads = kMaxLockstepHeads; heads > 1; --heads) {
    if (num_kv_heads % heads == 0 && num_workers >= heads && num_workers % heads <= num_workers / 32) return heads;
  }
  return 1;
}
// The input of the decode plan where `heads` kv heads, and as many workers, count as one.
inline PlanInput of_lockstep(PlanInput input, int heads) {
  input.num_kv_heads /= heads;
  return input;
}

// What the decode kernel takes, as measured on an H200 (docs/gpu-tuning.md). The last worker of a pair merges its
// pieces by itself.
inline PlanInput weighed_for_decode(PlanInput input) {
  input.segment_tiles = 2;
  input.merge_tiles = 1;
  input.merged_pieces_a_tile = 100;
  return input;
}

// Plans fixed splits (DecodePiece): pieces of up to `tokens_per_piece` query tokens of every request. Draft trees come
// as requests of one row each (tree_requests.h).
struct FixedSplitPlan {
  int tokens_per_piece = 1;
  int split_tokens = 1024;
  int max_cut_units = 0;              // a longer line is not cut within a pair
  DecodePiece* pieces = nullptr;      // as many as num_fixed_pieces() may say
  long long* unit_ends = nullptr;     // the same number
  DecodeWorker* workers = nullptr;
  int num_workers = 0;
};

// An upper bound.
inline int num_fixed_pieces(int num_tokens, int num_requests, int tokens_per_piece) {
  return num_tokens / tokens_per_piece + num_requests;
}

// Of the visible range [begin, end), cut at multiples of split_tokens; an empty one is one split.
#ifdef __CUDACC__
__host__ __device__
#endif
inline int fixed_splits(int begin, int end, int split_tokens) {
  const int splits = (end + split_tokens - 1) / split_tokens - begin / split_tokens;
  return splits > 1 ? splits : 1;
}

}  // namespace warpweave::cuda
