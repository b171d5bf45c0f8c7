// A draft model on the CPU: STANDALONE, a small model of its own, or EAGLE, a layer that goes on from the target's
// hidden states (Li et al. 2024, "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty").
//
// The draft model's K/V stand in a cache of their own, in the slots that the target's have in theirs: whatever happens
// to a page - sharing, copying, retraction - happens to both. EAGLE's row of a position reads the target's hidden state
// there and the embedding of the next token, so it is computed when the target's step is done (observe()); its last row
// gives the first level of the next draft. A standalone model reads tokens only: prompts are observed with their step,
// what was accepted is caught up with when the next draft begins.
//
// draft() and observe() are called on the device's thread, beside nothing else that uses `team`.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "base/threads.h"
#include "batch/batch_builder.h"
#include "kv/kv_cache.h"
#include "model/decoder.h"
#include "ops/linear.h"
#include "spec/draft_options.h"
#include "spec/draft_tree.h"

namespace warpweave {

// What came of it.
struct ObservedRow {
  std::span<const int> nodes;        // accepted, node 0 first; of a prefill: empty
  std::span<const int32_t> sampled;  // the tokens found; empty: none was asked for
};

struct DrafterParts {
  std::unique_ptr<DecoderModel> model;
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<KvCache> cache;
  PackedLinear fc;                   // EAGLE: [hidden, embedding | hidden state]
  int cache_group = 0;               // of the target's, whose pages the draft model's K/V follow
};

class Drafter {
 public:
  Drafter(DrafterParts parts, const DraftOptions& options) : parts_(std::move(parts)), options_(options) {}

  size_t weight_bytes() const { return parts_.model->weight_bytes() + parts_.fc.size_bytes(); }
  size_t cache_bytes() const { return parts_.cache->size_bytes(); }
  const DraftOptions& options() const { return options_; }

  void copy_pages(std::span<const PageCopy> copies);
  // Replaces the placeholders in `proposals` (by row of the step; trees where they are no chains).
  Status draft(const BatchBuilder& builder, std::span<const DraftRow> rows, DecoderModel& target,
               std::vector<Proposal>& proposals, ThreadTeam& team);
  // After the target's forward, whose hidden() is still there, and its verification.
  Status observe(const BatchBuilder& builder, std::span<const DraftRow> rows, std::span<const ObservedRow> observed,
                 DecoderModel& target, ThreadTeam& team);

 private:
  // The batch of a pass of the draft model.
  struct Pass {
    std::vector<int32_t> input_ids, positions, kv_slots, q_indptr, kv_lens, logits_rows;
    std::vector<int32_t> page_table;
    std::vector<uint32_t> mask;
    std::vector<float> features;     // EAGLE: [rows, hidden]
    std::vector<int> target_rows;    // EAGLE, observing: whose hidden states they are, in the target's batch
    void clear();
    int rows() const { return static_cast<int>(input_ids.size()); }
  };
  struct Growing {
    int row = 0;
    int nodes = 0;                   // wanted
    int topk = 1;
    DraftTree tree;
    std::vector<std::vector<float>> features;  // EAGLE: by tree node, of its parent's row
  };

  void add_page_row(const BatchBuilder& builder, int row);
  int32_t slot(const BatchBuilder& builder, int row, int position) const;
  void add_row(const BatchBuilder& builder, int row, int position, int32_t token);
  void add_feature(const float* feature);
  void end_request(int kv_len);
  Status run(const BatchBuilder& builder, DecoderModel& target, ThreadTeam& team);
  void embed_with_features(DecoderModel& target, ThreadTeam& team);
  void choose(int row, int count, std::vector<DraftChoice>& out) const;
  Status start_standalone(const BatchBuilder& builder, std::span<const DraftRow> rows, DecoderModel& target,
                          ThreadTeam& team);
  void start_eagle(std::span<const DraftRow> rows);
  bool add_level(const BatchBuilder& builder, std::span<const DraftRow> rows);
  void build_mask();
  void take_level();
  void observe_row(const BatchBuilder& builder, const DraftRow& row, const ObservedRow& observed, int index);

  DrafterParts parts_;
  const DraftOptions options_;
  Pass pass_;
  std::vector<Growing> growing_;
  std::vector<int> in_pass_;          // of growing_, by request of the pass
  std::vector<float> x_, embedded_, logits_;
  std::vector<DraftChoice> choices_;
};

}  // namespace warpweave
