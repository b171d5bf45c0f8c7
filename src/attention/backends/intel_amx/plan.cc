#include "attention/backends/intel_amx/plan.h"

#include <algorithm>

#include "attention/backends/intel_amx/kernels.h"

namespace warpweave::intel_amx {
namespace {

constexpr int kItemsPerThread = 4;            // enough for the last ones to even out
constexpr int64_t kMaxPartialRows = 1 << 15;  // bounds the partial buffer

int chunks_of(int tokens) { return (tokens + kChunkTokens - 1) / kChunkTokens; }

int64_t work_of(const Tile& tile) {
  const int64_t end = std::min<int64_t>(tile.kv_end, int64_t{tile.chunk_end} * kChunkTokens);
  return tile.rows * (end - int64_t{tile.chunk_begin} * kChunkTokens);
}

}  // namespace

void Plan::init(const ForwardBatch& batch, const PlanShape& shape) {
  shape_ = shape;
  members_.clear();
  tiles_.clear();
  items_.clear();
  merges_.clear();
  partial_rows_ = 0;
  choose_sizes(batch);
  if (batch.num_reqs > 1) {
    shared_.find(batch, std::max(1, shape_.group_rows / shape_.group), kChunkTokens);
  }
  for (int r = 0; r < batch.num_reqs; ++r) {
    if (batch.q_len(r) > 0 && batch.kv_lens[r] > 0) add_request(batch, r);
  }
  if (batch.num_reqs > 1) add_shared(batch);
  make_items();
}

// Large tiles read the KV pages least often; smaller ones are for more threads than those would feed.
void Plan::choose_sizes(const ForwardBatch& batch) {
  wanted_items_ = shape_.threads == 1 ? 1 : int64_t{shape_.threads} * kItemsPerThread;
  const int64_t rows = int64_t{batch.num_tokens} * shape_.group;
  int tile_rows = shape_.tile_rows;
  while (tile_rows > 2 * shape_.group_rows && rows * shape_.kv_heads < wanted_items_ * tile_rows) {
    tile_rows = (tile_rows / shape_.group_rows + 1) / 2 * shape_.group_rows;
  }
  tile_tokens_ = std::max(1, tile_rows / shape_.group);
  // In units of one row of one KV head against one token.
  int64_t work = 0;
  for (int r = 0; r < batch.num_reqs; ++r) work += int64_t{batch.q_len(r)} * batch.kv_lens[r];
  share_ = work * shape_.group / wanted_items_;
}

void Plan::add_request(const ForwardBatch& batch, int request) {
  const int q_len = batch.q_len(request), kv_len = batch.kv_lens[request];
  const int first_chunk = batch.num_reqs > 1 ? shared_.chunks_of(request) : 0;
  const bool bidirectional = !batch.causal || !batch.tree_mask.empty();
  for (int q = (q_len - 1) / tile_tokens_ * tile_tokens_; q >= 0; q -= tile_tokens_) {
    const int count = std::min(tile_tokens_, q_len - q);
    const int kv_end = bidirectional ? kv_len : kv_len - q_len + q + count;
    const int chunks = chunks_of(kv_end), rows = count * shape_.group;
    TileMember member = {request, q, count, 0};
    Tile tile = {static_cast<int32_t>(members_.size()), 1, rows, kv_end, 0, chunks, false};
    tile.cut = q_len <= tile_tokens_ && chunks > 1 &&
               (first_chunk > 0 || int64_t{rows} * kv_end > share_of(tile)) &&
               partial_rows_ + int64_t{chunks} * rows <= kMaxPartialRows;
    if (tile.cut) member.partial_row = add_merge(member, chunks);
    members_.push_back(member);
    if (tile.cut) {
      add_spans(tile, first_chunk, chunks);
    } else {
      tiles_.push_back(tile);
    }
  }
}

int Plan::add_merge(const TileMember& member, int chunks) {
  const int first_row = static_cast<int>(partial_rows_);
  merges_.push_back({member.request, member.q_begin, member.q_count, chunks, first_row});
  partial_rows_ += int64_t{chunks} * member.q_count * shape_.group;
  return first_row;
}

// A cut tile's chunks, in runs of about an item's share.
void Plan::add_spans(Tile tile, int first_chunk, int end_chunk) {
  if (tile.num_members == 0) return;
  const int64_t chunk_work = int64_t{tile.rows} * kChunkTokens;
  const int span = static_cast<int>(std::max<int64_t>(1, share_of(tile) / chunk_work));
  for (int chunk = first_chunk; chunk < end_chunk; chunk += span) {
    tile.chunk_begin = chunk;
    tile.chunk_end = std::min(chunk + span, end_chunk);
    tiles_.push_back(tile);
  }
}

// The shared chunks of each group of requests, as tiles with the rows of as many as fit: of those that
// add_request() has cut.
void Plan::add_shared(const ForwardBatch& batch) {
  for (const SharedPrefixes::Group& group : shared_.groups()) {
    Tile tile = {static_cast<int32_t>(members_.size()), 0, 0, group.chunks * kChunkTokens, 0, 0, true};
    for (int i = group.first; i < group.first + group.count; ++i) {
      const int request = shared_.members()[i], q_len = batch.q_len(request);
      const auto merge = std::lower_bound(
          merges_.begin(), merges_.end(), request,
          [](const Merge& m, int wanted) { return m.request < wanted; });
      if (merge == merges_.end() || merge->request != request) continue;
      if (tile.rows + q_len * shape_.group > shape_.tile_rows) {
        add_spans(tile, 0, group.chunks);
        tile.first_member = static_cast<int32_t>(members_.size());
        tile.num_members = tile.rows = 0;
      }
      members_.push_back({request, 0, q_len, merge->partial_row});
      ++tile.num_members;
      tile.rows += q_len * shape_.group;
    }
    add_spans(tile, 0, group.chunks);
  }
}

int Plan::heads_per_item(const Tile& tile) const {
  if (tile.rows > shape_.group_rows) return 1;
  const int padded = (tile.rows + 15) / 16 * 16;
  return std::clamp(kItemRows / padded, 1, shape_.kv_heads);
}

// Work of a tile and head set that keeps all threads busy.
int64_t Plan::share_of(const Tile& tile) const {
  const int heads = heads_per_item(tile);
  return share_ * ((shape_.kv_heads + heads - 1) / heads);
}

// Longest first, the heads of a tile side by side: threads then work on the same pages.
void Plan::make_items() {
  order_.clear();
  int64_t items = 0;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    const int heads = heads_per_item(tiles_[i]);
    order_.push_back({-work_of(tiles_[i]) * heads, static_cast<int32_t>(i)});
    items += (shape_.kv_heads + heads - 1) / heads;
  }
  std::sort(order_.begin(), order_.end());
  int limit = shape_.kv_heads;
  for (; limit > 1 && items < wanted_items_; limit = (limit + 1) / 2) items *= 2;
  for (const auto& [work, index] : order_) {
    const int heads = std::min(limit, heads_per_item(tiles_[index]));
    for (int head = 0; head < shape_.kv_heads; head += heads) {
      items_.push_back({index, head, std::min(head + heads, shape_.kv_heads)});
    }
  }
}

}  // namespace warpweave::intel_amx
