#include "spec/draft_model.h"

#include <algorithm>

namespace warpweave {

int DraftPass::max_q_len() const {
  int longest = 0;
  for (size_t r = 1; r < q_indptr.size(); ++r) longest = std::max(longest, q_indptr[r] - q_indptr[r - 1]);
  return longest;
}

Status DraftModel::run_chain(std::span<const DraftPass> passes, const BatchBuilder& step) {
  for (const DraftPass& pass : passes) WW_RETURN_IF_ERROR(run(pass, step));
  return {};
}

Result<bool> DraftModel::run_chain_ahead(std::span<const DraftPass>, const BatchBuilder&) { return false; }

Result<bool> DraftModel::run_trees(const TreeDraft&, const BatchBuilder&) { return false; }

void TreeDraft::clear() {
  for (auto* list : {&requests, &begins, &kv_slots, &features}) list->clear();
  first.clear();
}

void DraftPass::clear() { clear(0); }

void DraftPass::clear(int num_requests) {
  for (auto* list :
       {&input_ids, &positions, &kv_slots, &kv_lens, &first_pages, &requests, &logits_rows, &features, &keep}) {
    list->resize(num_requests);
  }
  q_indptr.resize(num_requests + 1);
  q_indptr[0] = 0;
  mask.clear();
  reads_target = false;
}

}  // namespace warpweave
