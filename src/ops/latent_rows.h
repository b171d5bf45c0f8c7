// Between the GEMMs of latent attention and attention itself: the norm of the latent, rotary embedding of the rope
// parts of queries and token, and the write of the token's row to the pool, in one pass over the rows.
// Source: DeepSeek-V2 (2405.04434).
#pragma once

#include <cstdint>

#include "base/threads.h"
#include "kv/kv_pool_view.h"
#include "ops/rope.h"

namespace warpweave {

struct LatentRowsCall {
  int64_t rows = 0;
  int num_heads = 0;
  int kv_rank = 0;
  int rope_dim = 0;                   // that of the table, where there is one
  float* q_rope = nullptr;            // of row 0, head 0: the rope part, changed in place
  int64_t q_stride = 0;               // from row to row, in elements
  int64_t q_head_stride = 0;
  float* token = nullptr;             // [rows, kv_rank + rope_dim], changed in place
  int64_t token_stride = 0;
  const float* latent_norm = nullptr; // [kv_rank]
  float norm_eps = 1e-6f;
  const RopeTable* rope = nullptr;    // null: nothing is rotated
  const int32_t* positions = nullptr; // [rows], each < rope->positions; not read without a table
  const int32_t* kv_slots = nullptr;  // [rows] page * page_size + offset, or -1: write nothing
  int page_size = 1;
  KvPoolView out;                     // one head; data == nullptr: no write at all
};
void norm_rope_write_latent(const LatentRowsCall& call, ThreadTeam& team);

}  // namespace warpweave
