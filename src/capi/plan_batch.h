// The caller's lengths and page tables, checked and turned into the ForwardBatch that backends
// read.
//
// Everything is copied. A causal request with more rows than tokens becomes two: rows that see
// nothing and the rest. Tokens without pages get pages of the largest size that fits where they
// stand. After set() nothing allocates until the next set().
#pragma once

#include <cstdint>
#include <vector>

#include "attention/caps.h"
#include "batch/forward_batch.h"
#include "warpweave/c.h"
#include "warpweave/status.h"

namespace warpweave::capi {

struct BatchRules {
  int page_size = 0;                 // 0: each batch says
  int max_pages_per_request = 0;     // of every batch's table; 0: as many as the batch needs
  bool causal = true;
  bool tree_mask = false;
  const Caps* prefill = nullptr;     // which page sizes tokens without pages may get
  const Caps* decode = nullptr;
};

class PlanBatch {
 public:
  Status set(const ww_batch& batch, const BatchRules& rules);

  const ForwardBatch& batch() const { return batch_; }
  int64_t rows() const { return batch_.num_tokens; }
  // Of the KV tensors; 0: they have no pages.
  int kv_page_size() const { return kv_page_size_; }
  // Pages (or tokens, without pages) that the KV tensors must have at least.
  int64_t needed_extent() const { return needed_extent_; }

 private:
  Status read_kv_lens(const ww_batch& batch);
  Status read_page_size(const ww_batch& batch, const BatchRules& rules);
  Status read_pages(const ww_batch& batch, const BatchRules& rules);
  Status read_contiguous(const ww_batch& batch, const BatchRules& rules);
  Status read_tree_mask(const ww_batch& batch);
  void split_requests(bool causal);
  int32_t position_of(int row, int prefix, int index) const;
  void add_request(int request, int rows, int kv_len);
  void finish(const BatchRules& rules);

  std::vector<int32_t> user_q_indptr_, user_kv_lens_, user_pages_;
  std::vector<int32_t> q_indptr_, kv_lens_, positions_, kv_slots_, page_table_;
  std::vector<uint32_t> tree_mask_;
  int64_t user_stride_ = 0;
  int64_t needed_extent_ = 0;
  int page_size_ = 1;      // of the batch that backends see
  int kv_page_size_ = 0;
  int tree_mask_words_ = 0;
  ForwardBatch batch_;
};

}  // namespace warpweave::capi
