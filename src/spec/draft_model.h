// What runs a draft model's passes for Drafter: on the host (host_draft_model.h), or on a GPU (gpu_draft_model.h).
//
// run() may only enqueue; take_choices() waits. Between the two, a later pass may read what an earlier one chose: a
// chain of drafts needs the host once. One thread calls everything.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/batch_builder.h"
#include "model/config.h"
#include "spec/draft_tree.h"

namespace warpweave {

// Rows of the draft model and what is wanted of them. Requests stand in order, each with one row at least.
struct DraftPass {
  std::vector<int32_t> input_ids;    // [rows]; negative: the token of choice -1 - id among those that are not taken yet
  std::vector<int32_t> positions, kv_slots;      // [rows]
  std::vector<int32_t> q_indptr, kv_lens;        // [requests + 1], [requests]
  std::vector<int32_t> first_pages;              // [requests] of the page table, where what is seen begins
  std::vector<int32_t> requests;                 // [requests] their rows in the target's step
  std::vector<int32_t> logits_rows;              // rows that `topk` choices are made for, ascending
  std::vector<uint32_t> mask;                    // [rows, words of the longest request], or empty
  int topk = 1;
  // EAGLE: the hidden state that each row reads: row of the target's step, or else of the kept ones.
  bool reads_target = false;
  std::vector<int32_t> features;                 // [rows]
  std::vector<int32_t> keep;                     // [logits_rows] where the row's own hidden state is kept

  int rows() const { return static_cast<int>(input_ids.size()); }
  int num_requests() const { return static_cast<int>(kv_lens.size()); }
  int max_q_len() const;
  int mask_words() const { return mask.empty() ? 0 : (max_q_len() + 31) / 32; }
  void clear();
  // Then to be filled: so many requests of one row each, all of which choices are made for.
  void clear(int num_requests);
};

// Trees of `topk` branches that grow level by level as DraftTree's do (spec/draft_tree.h), each pass over all nodes so
// far.
struct TreeDraft {
  int topk = 1;
  int passes = 0;
  std::vector<int32_t> requests;     // their rows in the target's step
  std::vector<DraftChoice> first;    // [requests, topk] the first level, the likeliest first
  std::vector<int32_t> begins;       // [requests] the position of its nodes
  std::vector<int32_t> kv_slots;     // [requests, topk * passes] of all nodes, as they are expanded
  // EAGLE: the hidden states that the first level reads, and from where on those of the nodes are kept:
  // [passes, requests, topk].
  std::vector<int32_t> features;     // [requests]
  int first_kept = 0;

  int num_requests() const { return static_cast<int>(requests.size()); }
  void clear();
};

class DraftModel {
 public:
  virtual ~DraftModel() = default;
  virtual int page_size() const = 0;
  virtual int max_rows() const = 0;              // of a pass
  virtual bool chooses_at_once() const { return false; }  // take_choices() has nothing to wait for
  virtual bool sees_from_any_page() const { return false; }  // DraftPass::first_pages may be above 0
  virtual size_t weight_bytes() const = 0;
  virtual size_t cache_bytes() const = 0;
  virtual Status copy_pages(std::span<const PageCopy> copies) = 0;
  // `pass` has rows; `step` is the target's, whose page tables say where its requests' K/V stand.
  virtual Status run(const DraftPass& pass, const BatchBuilder& step) = 0;
  // run() of each pass in turn, which a device may do at once: of requests that draft chains.
  virtual Status run_chain(std::span<const DraftPass> passes, const BatchBuilder& step);
  // Likewise, but no choices are left to take: the device itself puts them into the step that verifies them. False: it
  // does not for these passes, and did nothing.
  virtual Result<bool> run_chain_ahead(std::span<const DraftPass> passes, const BatchBuilder& step);
  // All passes of trees without a look at what was chosen, which leave the choices [passes, requests, topk, topk];
  // false: this device does not grow trees of that shape at once, and did nothing. No choices are left to take.
  virtual Result<bool> run_trees(const TreeDraft& trees, const BatchBuilder& step);
  // The choices of all passes since the last call: by pass, by logits row, the likeliest first. Valid until the next
  // run().
  virtual Result<std::span<const DraftChoice>> take_choices() = 0;
  // There are none to take.
  virtual void forget_choices() = 0;
};

}  // namespace warpweave
