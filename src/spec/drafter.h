// Drafts of a draft model, on any device: STANDALONE, a small model of its own, or EAGLE, a layer that goes on from the
// target's hidden states (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty").
//
// The draft model's K/V stand in a cache of their own, in the slots that the target's have in theirs: whatever happens
// to a page - sharing, copying, retraction - happens to both. EAGLE's row of a position reads the target's hidden state
// there and the embedding of the next token, so it is computed when the target's step is done (observe()); its last row
// gives the first level of the next draft. A standalone model reads tokens only: prompts are observed with their step,
// what was accepted is caught up with when the next draft begins. Chains are drafted without a look at the choices in
// between; so are trees where all have room to be one and the device grows them (DraftModel::run_trees).
//
// The host need not see chains before they are verified (draft_ahead()), nor, where a head drafts them, be there when
// it reads what became of them (observe_ahead()): then it prepares a step while the device drafts for it.
//
// draft() and observe() are called on the device's thread, beside nothing else that uses the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "batch/batch_builder.h"
#include "spec/draft_model.h"
#include "spec/draft_options.h"
#include "spec/draft_pages.h"
#include "spec/draft_tree.h"

namespace warpweave {

// What came of it.
struct ObservedRow {
  std::span<const int> nodes;        // accepted, node 0 first; of a prefill: empty
  std::span<const int32_t> sampled;  // the tokens found; empty: none was asked for
};

class Drafter {
 public:
  // `num_slots`: how many requests' first levels are kept (EAGLE); the one not seen for longest gives way.
  // `cache_group`: of the target's, whose pages the draft model's K/V follow.
  Drafter(std::unique_ptr<DraftModel> model, const DraftOptions& options, int num_slots, int cache_group);

  // Rows of hidden states that drafts of up to `rows` nodes a level keep besides those of the slots.
  static int kept_rows(const DraftOptions& options, int rows) { return rows * options.num_steps; }

  static constexpr int kMostCaughtUp = 16;  // tokens of a request that were not observed

  DraftModel& model() { return *model_; }
  Status copy_pages(std::span<const PageCopy> copies);
  const DraftOptions& options() const { return options_; }

  // Replaces the placeholders in `proposals` (by row of the step; trees where they are no chains).
  Status draft(const BatchBuilder& step, std::span<const DraftRow> rows, std::vector<Proposal>& proposals);
  // draft(), where the device itself puts chains into the step: their tokens are not set. False: draft() is still to be
  // called.
  Result<bool> draft_ahead(const BatchBuilder& step, std::span<const DraftRow> rows,
                           std::span<const Proposal> proposals);
  // After the target's forward, whose hidden states are still there, and its verification.
  Status observe(const BatchBuilder& step, std::span<const DraftRow> rows, std::span<const ObservedRow> observed);
  // Where the device makes that pass itself of what it verified, for a head and chains: [rows] where each request's
  // last hidden state is kept. Its choices, one a row, are the only ones that are not taken then. Empty: it cannot be;
  // else observed_ahead() is to follow, or observe(), which then begins anew.
  std::span<const int32_t> observe_ahead(std::span<const DraftRow> rows);
  static void observed_ahead(std::span<const DraftRow> rows, std::span<const ObservedRow> observed);

 private:
  struct Slot {
    uint64_t stamp = 0;                // of its last use
    std::vector<DraftChoice> first;    // the first level of the request's next draft; empty: there is none
    int choice = -1;                   // with topk 1: where that is among the choices that are not taken yet
  };
  struct Growing {
    int row = 0;
    int nodes = 0;                     // wanted
    int topk = 1;
    int slot = -1;                     // EAGLE: whose hidden state the first level reads; -1: there is none
    DraftTree tree;                    // with topk of the options above 1
    std::vector<int> features;         // EAGLE: by tree node, of its parent's row among the kept
    std::vector<int> choices;          // of a chain: by level, among those of the draft
  };

  int32_t slot(const BatchBuilder& step, int row, int position) const;
  void add_row(const BatchBuilder& step, int row, int position, int32_t token);
  void end_request(const DraftRow& row, int index, int kv_len);
  void finish_pass();
  Status run(const BatchBuilder& step);
  Status start_standalone(const BatchBuilder& step, std::span<const DraftRow> rows);
  Growing& grow(int row, int nodes);
  Status grow_chains(const BatchBuilder& step, std::span<const DraftRow> rows);
  Status grow_trees(const BatchBuilder& step, std::span<const DraftRow> rows);
  bool has_begun(const DraftRow& row);
  size_t plan_equal_chains(const BatchBuilder& step, std::span<const DraftRow> rows, int levels);
  size_t plan_chain(const BatchBuilder& step, std::span<const DraftRow> rows);
  bool add_chain_level(const BatchBuilder& step, std::span<const DraftRow> rows, int level);
  Status start_trees();
  Result<bool> grow_trees_at_once(const BatchBuilder& step, std::span<const DraftRow> rows);
  bool describe_trees(const BatchBuilder& step, std::span<const DraftRow> rows);
  bool add_tree_level(const BatchBuilder& step, std::span<const DraftRow> rows);
  void build_mask();
  Status take_level();
  void observe_row(const BatchBuilder& step, const DraftRow& row, const ObservedRow& observed, int index);
  void catch_up(const BatchBuilder& step, const DraftRow& row, int index, int feature);
  // Positions of a row from `begin` to its start, and the hidden state that stands in for theirs.
  struct Missing {
    int begin = 0, feature = 0;
  };
  void read_missing(const BatchBuilder& step, const DraftRow& row, int index, Missing missing);
  void begin_anew(const BatchBuilder& step, const DraftRow& row, int index, int feature);
  bool may_go_on(const BatchBuilder& step, const DraftRow& row, int index) const;
  void observe_standalone(const BatchBuilder& step, const DraftRow& row, const ObservedRow& observed, int index);
  void mark(const BatchBuilder& step, int index, int begin, int end, bool written);
  Status take_first_levels();
  void forget_choices();
  Result<std::span<const DraftChoice>> take_choices();
  std::span<const DraftChoice> first_level(const Growing& one) const;
  Slot* slot_of(const DraftState& state);
  int use_slot(DraftState& state);

  std::unique_ptr<DraftModel> model_;
  const DraftOptions options_;
  const int cache_group_;
  const bool knows_gaps_;              // pages_ says what the model's cache holds
  DraftPages pages_;
  std::vector<Slot> slots_;
  uint64_t clock_ = 0;
  std::vector<DraftState> observed_;   // whose first level is among the choices that are not taken yet

  DraftPass pass_;
  TreeDraft trees_;                    // of those of growing_ that in_pass_ names
  std::vector<DraftPass> chain_;       // passes to come, and memory of earlier ones behind them
  std::vector<Growing> grown_;         // memory of growing_
  std::span<Growing> growing_;
  std::vector<int> in_pass_;           // of growing_, by request of the pass
  std::vector<int32_t> keep_;          // of observe_ahead()
  int next_kept_ = 0;
  int num_choices_ = 0;                // rows of choices that are not taken yet
};

}  // namespace warpweave
