// BatchBuilder: turns a scheduler Step into the arrays of a ForwardBatch.
//
// Owns the arrays and reuses them; a built batch stays valid until the next build() on the same
// builder, so a loop that overlaps steps uses two builders in turn. Page-table rows are copied
// only as far as they changed since this builder's last batch. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "batch/forward_batch.h"
#include "batch/proposal.h"
#include "sched/scheduler.h"

namespace warpweave {

// input_ids[token_row] is the token that the step before sampled at `sample_slot`.
struct FutureToken {
  int32_t token_row = 0;
  int32_t sample_slot = 0;
};

// Where a request's rows stand in time, height and width (ForwardBatch::rope_positions).
struct RowPlaces {
  std::span<const int32_t> prompt;  // [3, prompt tokens]; empty: all rows stand where they are counted
  int after_prompt = 0;             // what rows behind the prompt add to their count, on each axis

  int prompt_tokens() const { return static_cast<int>(prompt.size() / 3); }
};

// What a batch must know of the model and cache it is built for.
struct BatchCache {
  int page_size = 1;
  int num_groups = 1;
  int32_t blank_page = -1;  // stands for pages that a windowed group has given back; -1: there are none
  bool causal = true;       // as ForwardBatch::causal
  int32_t vocab_size =
      INT32_MAX;  // ids from it on stand for rows that requests bring: the model's input_ids have 0 there
  bool prompts_apart = false;  // prompts are no decode where each has one token, for models that give them other bits
};

class BatchBuilder {
 public:
  explicit BatchBuilder(const BatchCache& cache) : cache_(cache), groups_(cache.num_groups) {}

  // Reads the step's row pointers: call it before the next call on the scheduler.
  // logits_rows holds the last num_logits tokens of every row; sample_rows() says which of them
  // are sampled. A step in which every request has one token is ForwardMode::decode.
  // `proposals`, by row, or empty: none; each at most the row's max_proposals. logits_rows then holds all nodes of
  // such a row, and sample_rows() its node 0. With any tree there is a tree mask.
  const ForwardBatch& build(const Step& step, std::span<const Proposal> proposals = {});

  const ForwardBatch& batch() const { return batch_; }
  // [num_samples] by sample slot: index into logits_rows (= row of the logits matrix).
  std::span<const int32_t> sample_rows() const { return sample_rows_; }
  std::span<const FutureToken> futures() const { return futures_; }
  // How many entries at the beginning of a row's page table are blank.
  int num_blank(int row, int group) const { return table_rows_[row].num_blank[group]; }
  int num_groups() const { return cache_.num_groups; }
  // Of one group: the pool slot of each row of the batch, and a request's row of the page table.
  std::span<const int32_t> kv_slots(int group) const { return groups_[group].kv_slots; }
  const int32_t* pages_of(int row, int group) const {
    return groups_[group].page_table.data() + static_cast<size_t>(row) * page_table_stride_;
  }

  // Of the built batch: where the second text of each row begins among the tokens of its request; -1: it has none. Rows
  // begin at position 0, as whole prompts do.
  void mark_second_texts(std::span<const int> begins);

  // Of the built batch: where each row stands, [num_reqs], if any does not stand where it is counted.
  void place_rows(std::span<const RowPlaces> places);

  // Takes other proposals of the same sizes in place of those that build() was given: they decide the tokens,
  // positions and the tree mask.
  void replace_proposals(std::span<const Proposal> proposals);

  // Fills in the tokens that were unknown at build(): `sampled` of the step before.
  void patch_futures(std::span<const int32_t> sampled);

 private:
  struct TableRow {
    RequestId id = kNoRequest;
    uint32_t pages_version = 0;
    int num_pages = 0;
    std::array<int, kMaxCacheGroups> num_blank{};
  };
  struct Group {
    std::vector<int32_t> kv_slots;
    std::vector<int32_t> page_table;  // [table_rows_.size(), page_table_stride_]
  };
  void reserve_page_table(const Step& step);
  void copy_page_table_row(int index, const StepRow& row);
  void clear(const Step& step);
  void append_tokens(const StepRow& row, const Proposal& proposal);
  void append_slots(const StepRow& row, int num_tokens);
  void append_checkpoints(const StepRow& row, const Step& step);
  void build_tree(std::span<const Proposal> proposals);

  const BatchCache cache_;
  ForwardBatch batch_;
  std::vector<int32_t> input_ids_, positions_, q_indptr_, kv_lens_, logits_rows_;
  std::vector<Group> groups_;
  std::vector<CacheGroupArrays> group_arrays_;
  std::vector<int32_t> sample_rows_;
  std::vector<FutureToken> futures_;
  std::vector<uint32_t> tree_mask_;
  std::vector<int32_t> tree_parents_;
  std::vector<int32_t> state_slots_;
  std::vector<int32_t> checkpoint_indptr_, checkpoint_tokens_, checkpoint_slots_;
  std::vector<const LoraAdapter*> adapters_;
  std::vector<uint8_t> token_types_;
  std::vector<int32_t> rope_positions_;
  int page_table_stride_ = 0;
  std::vector<TableRow> table_rows_;  // what the page tables hold now
};

}  // namespace warpweave
