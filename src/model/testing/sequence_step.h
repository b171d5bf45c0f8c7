// What one sequence's tests on either device have in common: its shuffled pages, the arrays of a forward over its next
// tokens, and greedy continuations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "batch/forward_batch.h"
#include "ops/elementwise.h"
#include "warpweave/status.h"

namespace warpweave {

// The same order in every run.
inline std::vector<int32_t> shuffled_pages(int count) {
  std::vector<int32_t> pages(count);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(5));
  return pages;
}

class SequenceStep {
 public:
  // `ids` behind the `length` tokens that are there; logits of the last `wanted_rows` of them, -1: of all.
  // `pages`, the sequence's own, outlive the step.
  SequenceStep(std::span<const int32_t> ids, int wanted_rows, int length, int page_size, std::span<const int32_t> pages)
      : input_ids(ids.begin(), ids.end()), positions(ids.size()), kv_slots(ids.size()),
        logits_rows(wanted_rows < 0 ? ids.size() : wanted_rows), q_indptr{0, static_cast<int32_t>(ids.size())},
        kv_lens{length + static_cast<int32_t>(ids.size())}, page_size_(page_size), pages_(pages) {
    std::iota(positions.begin(), positions.end(), length);
    for (size_t i = 0; i < positions.size(); ++i) {
      kv_slots[i] = pages[positions[i] / page_size] * page_size + positions[i] % page_size;
    }
    std::iota(logits_rows.begin(), logits_rows.end(), static_cast<int32_t>(ids.size() - logits_rows.size()));
  }

  // Points into this and the pages: a decode step of one id, a prefill chunk of more.
  ForwardBatch batch() const {
    ForwardBatch batch;
    batch.mode = input_ids.size() == 1 ? ForwardMode::decode : ForwardMode::extend;
    batch.num_reqs = 1;
    batch.num_tokens = batch.max_q_len = q_indptr[1];
    batch.max_kv_len = kv_lens[0];
    batch.page_size = page_size_;
    batch.input_ids = input_ids;
    batch.positions = positions;
    batch.kv_slots = kv_slots;
    batch.q_indptr = q_indptr;
    batch.kv_lens = kv_lens;
    batch.page_table = pages_;
    batch.page_table_stride = static_cast<int>(pages_.size());
    batch.logits_rows = logits_rows;
    return batch;
  }

  std::vector<int32_t> input_ids, positions, kv_slots, logits_rows, q_indptr, kv_lens;

 private:
  int page_size_;
  std::span<const int32_t> pages_;
};

// Feeds `prompt` to `run` (PagedRun, GpuRun) and then what is most likely, `count` times.
template <typename Run>
Result<std::vector<int32_t>> greedy_ids(Run& run, std::span<const int32_t> prompt, int count) {
  std::vector<int32_t> out;
  WW_ASSIGN_OR_RETURN(std::vector<float> logits, run.feed(prompt, 1));
  while (static_cast<int>(out.size()) < count) {
    out.push_back(static_cast<int32_t>(argmax(logits.data(), logits.size())));
    WW_ASSIGN_OR_RETURN(logits, run.feed(std::span(&out.back(), 1)));
  }
  return out;
}

}  // namespace warpweave
