// How many drafts a draft model makes, in which shape, and what it is told of each request.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "spec/draft_tree.h"

namespace warpweave {

struct DraftOptions {
  bool eagle = false;   // goes on from the target's hidden states, as EAGLE, EAGLE3 and NEXTN do
  int num_steps = 1;
  int topk = 1;
  int num_draft_tokens = 2;   // verified at once, the last known token included
  bool looks_up = false;      // first in the text and what was served before (draft_room.h)

  // Slots behind a request's last token that drafting writes, and nodes that it proposes.
  int max_proposals() const {
    return topk == 1 ? num_steps : std::max(num_draft_tokens - 1, topk * (num_steps - 1));
  }
  // How many nodes `room` slots allow, and whether as a tree: a smaller room gets a chain.
  int nodes_for(int room, bool& tree) const {
    tree = topk > 1 && room >= max_proposals();
    if (!tree) return std::min(num_steps, room);
    const int candidates = topk + (num_steps - 1) * topk * topk;
    return std::min(num_draft_tokens - 1, candidates);
  }
};

// What is known of a request's draft. Belongs to the request; used on the device's thread, by others
// when no step is in flight.
struct DraftState {
  int kv_len = 0;                    // leading positions whose K/V are in the draft model's cache,
  int kv_begin = 0;                  // but for those before this one, where a page begins: it does not see them
  int slot = -1;                     // EAGLE: of the Drafter's, where its next draft begins; -1: nowhere yet
  uint64_t stamp = 0;                // the slot is its own if it says the same
  float first_logprob = 1;           // EAGLE on a host: of the first guess of its next draft; 1: unknown
};

// A row of the target's step.
struct DraftRow {
  DraftState* state = nullptr;
  int start = 0;                     // position of its first token
  int num_tokens = 0;                // without proposals
  bool prefill = false;
  bool follows = true;               // false: nothing will be guessed for it any more, and its text need not be read
  std::span<const int32_t> prompt, output;  // the text as far as it was known when the step was prepared

  int32_t token(int position) const {
    const int in_output = position - static_cast<int>(prompt.size());
    return in_output < 0 ? prompt[position] : output[in_output];
  }
  int known_tokens() const { return static_cast<int>(prompt.size() + output.size()); }
};

}  // namespace warpweave
