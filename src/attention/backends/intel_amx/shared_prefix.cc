#include "attention/backends/intel_amx/shared_prefix.h"

#include <algorithm>
#include <bit>

namespace warpweave::intel_amx {
namespace {

int common_pages(const int32_t* a, const int32_t* b, int limit) {
  return static_cast<int>(std::mismatch(a, a + limit, b).first - a);
}

}  // namespace

void SharedPrefixes::find(const ForwardBatch& batch, int max_rows, int chunk_tokens) {
  groups_.clear();
  members_.clear();
  chunks_.assign(batch.num_reqs, 0);
  link_by_first_page(batch, max_rows, chunk_tokens);
  for (int leader : leaders_) add_group(batch, leader, chunk_tokens);
}

// Chains requests with the same first page, in order; leaders_ gets chains of two and more.
void SharedPrefixes::link_by_first_page(const ForwardBatch& batch, int max_rows, int chunk_tokens) {
  leaders_.clear();
  next_.assign(batch.num_reqs, -1);
  const size_t slots = std::bit_ceil(static_cast<size_t>(batch.num_reqs) * 2 + 1);
  // Of a slot: the chain's first and its last request.
  table_.assign(2 * slots, -1);
  for (int r = 0; r < batch.num_reqs; ++r) {
    const int rows = batch.q_len(r);
    if (rows < 1 || rows > max_rows || batch.kv_lens[r] <= chunk_tokens) continue;
    const int32_t page = batch.pages_of(r)[0];
    size_t slot = static_cast<uint32_t>(page) * 2654435761u & (slots - 1);
    while (table_[2 * slot] >= 0 && batch.pages_of(table_[2 * slot])[0] != page) {
      slot = (slot + 1) & (slots - 1);
    }
    if (table_[2 * slot] < 0) {
      table_[2 * slot] = table_[2 * slot + 1] = r;
      continue;
    }
    const int last = table_[2 * slot + 1];
    if (last == table_[2 * slot]) leaders_.push_back(last);
    next_[last] = table_[2 * slot + 1] = r;
  }
}

void SharedPrefixes::add_group(const ForwardBatch& batch, int leader, int chunk_tokens) {
  const int first = static_cast<int>(members_.size());
  const int32_t* pages = batch.pages_of(leader);
  int chunks = batch.kv_lens[leader] / chunk_tokens;
  members_.push_back(leader);
  for (int r = next_[leader]; r >= 0; r = next_[r]) {
    const int most = std::min(chunks, batch.kv_lens[r] / chunk_tokens);
    const int64_t tokens = int64_t{most} * chunk_tokens;
    const int limit = static_cast<int>((tokens + batch.page_size - 1) / batch.page_size);
    const int common = common_pages(pages, batch.pages_of(r), limit);
    const int shared = std::min<int64_t>(most, int64_t{common} * batch.page_size / chunk_tokens);
    if (shared == 0) continue;
    chunks = shared;
    members_.push_back(r);
  }
  const int count = static_cast<int>(members_.size()) - first;
  if (count < 2) {
    members_.pop_back();
    return;
  }
  groups_.push_back({first, count, chunks});
  for (int i = first; i < first + count; ++i) chunks_[members_[i]] = chunks;
}

}  // namespace warpweave::intel_amx
