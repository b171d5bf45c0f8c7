// What the attention kernels read: one plain struct passed by value, and the device-made plans.
// All pointers are device pointers; strides are in elements of the pointer's own type.
#pragma once

#include <cstdint>

namespace warpweave::cuda {

struct AttentionParams {
  const void* q = nullptr;            // [tokens, q_heads, d]
  int64_t q_token_stride = 0;
  void* out = nullptr;                // [tokens, q_heads, d]
  int64_t out_token_stride = 0;
  float* lse = nullptr;               // [tokens, q_heads] natural log, or null
  const void* k = nullptr;            // the pools; K and V have the same strides
  const void* v = nullptr;
  int64_t page_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  const float* k_head_scales = nullptr;  // [kv_heads] or null
  const float* v_head_scales = nullptr;
  const uint8_t* k_block_scales = nullptr;  // fp4: e4m3 codes, one for 16 elements
  const uint8_t* v_block_scales = nullptr;
  const float* sinks = nullptr;       // [q_heads] or null
  const int32_t* page_table = nullptr;
  int page_table_stride = 0;
  const int32_t* kv_lens = nullptr;   // [requests]
  const int32_t* q_indptr = nullptr;  // [requests + 1]
  const int32_t* positions = nullptr; // [tokens]; read with a tree mask only
  const uint32_t* tree_mask = nullptr;
  int tree_mask_words = 0;
  int num_requests = 0;
  int num_tokens = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int group = 1;                      // q heads per kv head
  int page_size = 1;
  int page_shift = 0;                 // log2(page_size), or -1
  int window_left = -1;
  int decode_q_len = 0;               // requests with more query tokens are not the decode kernel's
  bool causal = true;
  bool earlier_kv_settled = false;    // AttentionCall
  float scale = 1;                    // of q.k, natural units
  float softcap = 0;
};

// The first kv position any row of the request sees.
#ifdef __CUDACC__
__host__ __device__
#endif
inline int first_visible(int kv_len, int q_len, int window_left) {
  if (window_left < 0) return 0;
  const int begin = kv_len - q_len - window_left;
  return begin > 0 ? begin : 0;
}

// Whether pages can be copied in boxes of at least this many tokens, none of which crosses a page, as the decode kernel
// for fp4 does (sm90_fp4_decode.cuh). Boxes of 8 take it 7 % longer than the one without them.
inline constexpr int kLeastBoxTokens = 16;
inline bool copied_in_boxes(const AttentionParams& p) {
  return p.page_size % kLeastBoxTokens == 0 && p.window_left < 0;
}

// ---- split-KV decode ---------------------------------------------------------------------------
// The work is the line of all (request, kv head) pairs, each of its number of kDecodeTileTokens
// tiles (at least one), request-major. It is cut into equal runs, one per worker (CTA). A pair that
// is cut has one piece per worker that it touches; the last of them to finish merges.
//
// Workers that read a token's kv heads, which stand side by side in memory, at about the same time find the memory
// faster than workers that read one head's tokens each. So lockstep_heads (plan.h) neighbouring heads count as one in
// the line, and a run is that of as many neighbouring workers, one for each head; the next piece of a worker's pair,
// and its own next head, stand that many further.
inline constexpr int kDecodeTileTokens = 64;

struct DecodeWorker {
  int32_t request = 0, head = 0, tile = 0;  // where the run starts
  int32_t num_tiles = 0;                    // its length; 0: idle
  int32_t first_pair_begin = 0;             // worker where the run's first pair begins
  int32_t first_pair_end = 0;               // worker where it ends
  int32_t last_pair_end = 0;                // worker where the run's last pair ends
  int32_t q_begin = 0, q_len = 0, kv_len = 0;  // of the first request, to spare a first read
  int32_t unit = 0;                         // fixed splits: where the run stands in the line
  int32_t cut_pairs = 0;                    // fixed splits: pairs may be cut between workers
};

// Fixed splits, for results that do not depend on the batch: every request is cut into pieces of a few
// query tokens, and the KV range of a piece at multiples of DecodeWorkspace::split_tokens counted from
// position 0. The line is made of (piece, kv head, split); the splits of a pair are merged one by one,
// in their order, so that a row's sums depend on its own position alone. `request`, `tile` and
// `num_tiles` of a worker's run then mean the piece, the split and the number of splits.
struct DecodePiece {
  int32_t q_begin = 0, q_len = 0;  // rows of Q
  int32_t position = 0;            // of the first row
  int32_t visible_begin = 0;       // kv positions that some row sees
  int32_t visible_end = 0;
  int32_t tree_begin = 0;          // kv position of the request's first query token
  int32_t request = 0;             // row of the page table
  int32_t unused = 0;
};

// A worker has at most two pieces: slot 2w when the pair began at an earlier worker, 2w + 1 when it
// begins here. Counters (one per worker that starts a cut pair) are zero between launches.
// With fixed splits and cut pairs a split's slot and a pair's counter are its (first) unit in the line;
// with whole pairs a worker merges as it goes, in slots 2w and 2w + 1 in turn.
struct DecodeWorkspace {
  const DecodeWorker* workers = nullptr;
  float* partial_out = nullptr;     // [2 * workers, rows, d] unnormalised
  float* partial_max_sum = nullptr; // [2 * workers, rows, 2] maximum (log2 units), sum
  int32_t* counters = nullptr;      // [workers]; fixed splits: [slots]
  const DecodePiece* pieces = nullptr;  // fixed splits, else null
  int split_tokens = 0;             // a multiple of kDecodeTileTokens
  // Another call has run since the plan was made: this one may be launched under its predecessor.
  bool plan_is_older = false;
  // The next kernel begins where CTAs of this one end, and touches what is written before this one.
  bool others_beside = false;
  // Where set, it runs beside its predecessor, touches nothing that that one writes, and ends after it. That one was
  // launched under its own: once this holds q_epoch, what was written before it is there.
  const int32_t* q_ready = nullptr;
  int32_t q_epoch = 0;
};

// ---- tiled extend ------------------------------------------------------------------------------
// One item is kTileRows rows of one request for every kv head (rows = query token * group + head in
// the group) or every q head; items are sorted, longest first.
struct ExtendItem {
  int32_t request = 0;
  int32_t tile = 0;
};

struct ExtendHeader {
  int32_t num_items = 0;
  // The kv heads are worked off this many at a time, so that their K and V stay in the L2 cache;
  // divides the number of kv heads.
  int32_t section_kv_heads = 1;
  // Of kernels whose CTAs fetch units (item and q head) when they are done; zero between launches.
  int32_t units_taken = 0;
  int32_t ctas_done = 0;
  // Of kernels that copy K and V first (ExtendCopies).
  int32_t num_blocks = 0;
  int32_t pieces_taken = 0;  // zero between launches
};

// K and V of small pages, copied into blocks of kCopyBlockTokens tokens of one kv head, from which TMA takes
// large boxes: [kv head][max_blocks][kCopyBlockTokens][d] each. By the prefill kernel itself, head by head, so that the
// first is multiplied while the others are copied; or by a kernel before it.
inline constexpr int kCopyBlockTokens = 128;

struct ExtendCopyBlock {
  int32_t request = 0;
  int32_t block = 0;  // of the request's tokens
};

struct ExtendCopies {
  void* k = nullptr;
  void* v = nullptr;
  ExtendCopyBlock* blocks = nullptr;  // [num_blocks]
  int32_t* first_blocks = nullptr;    // [requests] where block 0 of the request stands, or would
  int32_t* ready = nullptr;           // [kv heads] pieces copied; zero between launches. Null: a kernel before copies
  int max_blocks = 0;                 // 0: nothing is copied
};

struct ExtendWorklist {
  const ExtendItem* items = nullptr;
  ExtendHeader* header = nullptr;
  ExtendCopies copies;
  // It touches nothing that its predecessor writes: it runs beside it, and ends after it.
  bool beside_predecessor = false;
  // Launched under its predecessor: when that has ended, q_epoch is written here (DecodeWorkspace). Or null.
  int32_t* q_ready = nullptr;
  int32_t q_epoch = 0;
};

}  // namespace warpweave::cuda
