// BatchBuilder: turns a scheduler Step into the arrays of a ForwardBatch.
//
// Owns the arrays and reuses them; a built batch stays valid until the next build() on the same
// builder, so a loop that overlaps steps uses two builders in turn. Page-table rows are copied
// only as far as they changed since this builder's last batch. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/forward_batch.h"
#include "sched/scheduler.h"

namespace warpweave {

// input_ids[token_row] is the token that the step before sampled at `sample_slot`.
struct FutureToken {
  int32_t token_row = 0;
  int32_t sample_slot = 0;
};

class BatchBuilder {
 public:
  explicit BatchBuilder(int page_size) : page_size_(page_size) {}

  // Reads the step's row pointers: call it before the next call on the scheduler.
  // logits_rows holds the last num_logits tokens of every row; sample_rows() says which of them
  // are sampled. A step in which every request has one token is ForwardMode::decode.
  const ForwardBatch& build(const Step& step);

  const ForwardBatch& batch() const { return batch_; }
  // [num_samples] by sample slot: index into logits_rows (= row of the logits matrix).
  std::span<const int32_t> sample_rows() const { return sample_rows_; }
  std::span<const FutureToken> futures() const { return futures_; }

  // Fills in the tokens that were unknown at build(): `sampled` of the step before.
  void patch_futures(std::span<const int32_t> sampled);

 private:
  struct TableRow {
    RequestId id = kNoRequest;
    uint32_t pages_version = 0;
    int num_pages = 0;
  };
  void reserve_page_table(const Step& step);
  void copy_page_table_row(int index, const StepRow& row);
  void append_tokens(const StepRow& row);

  const int page_size_;
  ForwardBatch batch_;
  std::vector<int32_t> input_ids_, positions_, kv_slots_, q_indptr_, kv_lens_, logits_rows_;
  std::vector<int32_t> sample_rows_;
  std::vector<FutureToken> futures_;
  int page_table_stride_ = 0;
  std::vector<int32_t> page_table_;   // [table_rows_.size(), page_table_stride_]
  std::vector<TableRow> table_rows_;  // what page_table_ holds now
};

}  // namespace warpweave
