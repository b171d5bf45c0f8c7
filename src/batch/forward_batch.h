// ForwardBatch: the arrays that the model, the attention backends and the sampler read for one
// forward pass. Built by the engine's batch builder, owned by it, read-only for everybody else.
//
// Tokens of one request stand together, requests in order: request r owns rows
// [q_indptr[r], q_indptr[r+1]) of every per-token array. kv_lens counts the tokens visible to the
// last of those rows, itself included, so row i of request r has position
// kv_lens[r] - q_len(r) + i and sees kv positions [0, position].
// A row whose kv_slots entry is -1 is padding: it writes no KV and its output is ignored.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace warpweave {

struct LoraAdapter;
struct LoraTile;

// log2 of a page size, or -1 where it is no power of two: kernels shift by it, or divide.
inline int page_shift_of(int page_size) {
  const auto size = static_cast<unsigned>(page_size);
  return std::has_single_bit(size) ? std::countr_zero(size) : -1;
}

enum class ForwardMode { extend, decode, mixed, idle, target_verify, draft_extend };

// Rows of a batch by adapter (ops/lora_tiles.h), in the memory of the GPU.
struct LoraTileArray {
  const LoraTile* tiles = nullptr;
  int count = 0;                           // 0: no row has an adapter
  const int32_t* places = nullptr;         // of each row in the tiles, or -1
};

// Copies of recurrent states that a forward leaves on its way through prompts: request r's are entries
// [indptr[r], indptr[r + 1]), ascending by tokens; each says after how many of its rows, fewer than all, and in which
// slot.
struct StateCheckpointArrays {
  std::span<const int32_t> indptr;  // [num_reqs + 1]; all three are empty where there are none
  std::span<const int32_t> tokens;
  std::span<const int32_t> slots;
};

// The arrays of the same names in the memory of the GPU that runs the forward, and its stream
// (a CUstream); all null on the CPU. Work that a graph replays reads only these.
struct DeviceBatchArrays {
  void* stream = nullptr;
  const int32_t* input_ids = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* kv_slots = nullptr;
  const int32_t* q_indptr = nullptr;
  const int32_t* kv_lens = nullptr;
  const int32_t* page_table = nullptr;
  const int32_t* logits_rows = nullptr;
  const uint32_t* tree_mask = nullptr;
  // [num_reqs] with recurrent layers: state_slots, -1 for padding, and where a request's state before its rows is read
  // from: the same, or -1 where they begin at position 0.
  const int32_t* state_slots = nullptr;
  const int32_t* initial_state_slots = nullptr;
  // Of state_checkpoints; null where there are none.
  const int32_t* checkpoint_indptr = nullptr;
  const int32_t* checkpoint_tokens = nullptr;
  const int32_t* checkpoint_slots = nullptr;
  // Of the rows with adapters: of all rows, and of logits_rows counted by their place there.
  LoraTileArray lora_tiles;
  LoraTileArray logits_lora_tiles;
};

// What differs between the groups of a cache (kv/cache_layout.h): where a token's K/V stand.
struct CacheGroupArrays {
  std::span<const int32_t> kv_slots;
  std::span<const int32_t> page_table;
  const int32_t* device_kv_slots = nullptr;
  const int32_t* device_page_table = nullptr;
};

struct ForwardBatch {
  ForwardMode mode = ForwardMode::idle;
  int num_reqs = 0;
  int num_tokens = 0;
  int max_q_len = 0;
  int max_kv_len = 0;
  int page_size = 1;

  std::span<const int32_t> input_ids;      // [num_tokens]
  std::span<const int32_t> positions;      // [num_tokens]
  // [3, num_tokens] where rows stand in time, height and width, for models whose rotation has sections (ops/rope.h);
  // `positions` count tokens all the same. Empty: all three are `positions`.
  std::span<const int32_t> rope_positions;
  std::span<const int32_t> kv_slots;       // [num_tokens] page * page_size + offset to write, or -1
  std::span<const int32_t> q_indptr;       // [num_reqs + 1]
  std::span<const int32_t> kv_lens;        // [num_reqs]
  std::span<const int32_t> page_table;     // [num_reqs, page_table_stride] page ids
  int page_table_stride = 0;
  // With several cache groups: [groups]; kv_slots and page_table above are group 0's. Empty with one.
  std::span<const CacheGroupArrays> groups;
  // [num_reqs] where recurrent layers keep a request's state after the tokens before its rows; undefined for a request
  // whose rows begin at position 0, which has read nothing. Empty: the model has no such layers.
  std::span<const int32_t> state_slots;
  StateCheckpointArrays state_checkpoints;  // of extend and mixed batches
  // [num_reqs] the adapter of each request's rows, null: none (ops/lora.h). Empty: no request has one.
  std::span<const LoraAdapter* const> adapters;
  std::span<const int32_t> logits_rows;    // token rows whose logits are wanted, ascending
  // [num_tokens] 0 for tokens of a request's first text, 1 for those of its second, for encoders that tell them apart.
  // Empty: no request has two.
  std::span<const uint8_t> token_types;

  // Tree attention (target verify of a draft tree), or empty: [num_tokens, tree_mask_words]. Bit j
  // (of word j / 32) of row i says that row i of a request sees row j of the same request, which may
  // stand before or after it; a row sees itself, and bits from q_len on mean nothing. All rows see
  // the whole prefix of kv_len - q_len tokens. positions then hold each node's depth in the sequence,
  // from which the prefix's side of a sliding window is counted; within the tree the mask alone
  // decides.
  std::span<const uint32_t> tree_mask;
  int tree_mask_words = 0;                 // >= ceil(max_q_len / 32)
  // With a tree_mask: [num_tokens] the row that each row follows, counted from its request's first; -1: that first row.
  std::span<const int32_t> tree_parents;

  // False: bidirectional attention (encoders, vision towers, cross attention). Every row then sees all
  // kv_lens tokens of its request, which may have more rows than tokens; a layer's window bounds the
  // sides it names. For backends that claim Caps::non_causal.
  bool causal = true;

  DeviceBatchArrays device;

  // The batch as the layers of a group see it. Entries of its page table that no row sees any more name a page that
  // is always zero.
  ForwardBatch of_group(int group) const {
    ForwardBatch out = *this;
    if (groups.empty()) return out;
    const CacheGroupArrays& arrays = groups[group];
    out.groups = {};
    out.kv_slots = arrays.kv_slots;
    out.page_table = arrays.page_table;
    out.device.kv_slots = arrays.device_kv_slots;
    out.device.page_table = arrays.device_page_table;
    return out;
  }

  int q_len(int request) const { return q_indptr[request + 1] - q_indptr[request]; }
  const int32_t* pages_of(int request) const {
    return page_table.data() + int64_t{request} * page_table_stride;
  }
};

}  // namespace warpweave
