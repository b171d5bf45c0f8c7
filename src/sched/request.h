// Scheduler::Request: what the scheduler knows about one request. Private to this folder.
#pragma once

#include <array>
#include <limits>

#include "sched/scheduler.h"

namespace warpweave {

inline constexpr int kNoLogits = std::numeric_limits<int>::max();

struct Scheduler::Request {
  enum class State { waiting, prefilling, running, ended };

  // Up to `spec`, what every step of decoding reads stands together.
  std::vector<int32_t> tokens;      // prompt and output as far as known
  std::vector<int32_t> pages;       // page tables, [pages, groups], one reference each; kNoPage: none
  uint64_t last_step = 0;           // number of the newest step with a row of it
  int sample_slot = -1;             // of that row
  int uncommitted_steps = 0;
  int uncommitted_samples = 0;
  State state = State::waiting;
  bool retracted = false;
  bool retracting = false;          // is retracted as soon as its uncommitted step is committed
  int prompt_len = 0;
  // K/V. Positions [0, written) are committed, [written, scheduled) in uncommitted steps.
  int written = 0;
  int scheduled = 0;
  int prefill_len = 0;              // tokens to prefill since the last admission
  uint32_t pages_version = 0;
  std::array<int, kMaxCacheGroups> kept_from{};  // pages before it are gone from a windowed group
  int window_end = 0;                            // pages from here on have not been taken by windowed groups
  int32_t state_slot = kNoStateSlot;
  int logits_from = kNoLogits;  // first prompt position whose logits are still owed
  int cached_tokens = -1;       // at the first admission; -1: never admitted
  int cached_kv_tokens = 0;     // then: prompt tokens whose K and V were cached, as far as a state does not matter
  int retractions = 0;
  ScheduledRequestSpec spec;  // input_ids moved to `tokens`

  uint64_t sequence = 0;                           // order of arrival
  int64_t rank = 0;                                // smaller goes first: -priority under that policy, else 0
  RadixTree::Node* node = nullptr;                 // where it stands in the tree; null: not admitted, or no cache
  std::array<int, kMaxCacheGroups> window_from{};  // pages from kept_from to it linger: out of the window, still there
  bool kv_shared = false;           // the prefill since the last admission is in the tree
  bool kv_suspect = false;          // the model failed on it: what it wrote is not cached
  bool prompt_cached = false;       // the prompt was in the tree once

  struct SavedState {
    int position;
    int32_t slot;
  };
  int branch_at = 0;                // where its prompt leaves what was cached, if no checkpoint was there
  int state_saved_at = 0;           // tokens before its newest checkpoint
  std::vector<SavedState> saved_states;  // checkpoints that are not in the tree yet

  int match_len = 0;                // cached prefix, valid while match_version is the tree's
  uint64_t match_version = std::numeric_limits<uint64_t>::max();
  int overtaken = 0;                // admissions of others while it was first in the queue
  int share_waits = 0;              // requests it has waited for to share their prefix
  RequestId share_waited_for = kNoRequest;

  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int num_output() const { return num_tokens() - prompt_len; }
  // Output tokens, those being sampled in uncommitted steps included.
  int num_output_scheduled() const { return num_output() + uncommitted_samples; }
};

}  // namespace warpweave
