// What every CPU backend checks of a batch before it plans, and does for rows that see nothing.
#pragma once

#include "attention/backend.h"

namespace warpweave {

// `invalid_argument` for a request with more query rows than visible tokens (unless it sees none),
// or with a page table too short for its tokens; and for a tree mask that is too short or hides a row
// from itself.
Status check_batch(const ForwardBatch& batch);

// out = 0 and lse = -inf for the rows of requests with kv_len 0.
void clear_empty_requests(const ForwardBatch& batch, const AttentionCall& call);

}  // namespace warpweave
