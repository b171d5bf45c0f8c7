#include "attention/backends/intel_amx/plan.h"

#include <algorithm>

#include "attention/backends/intel_amx/kernels.h"

namespace warpweave::intel_amx {
namespace {

constexpr int kItemsPerThread = 4;           // enough for the last ones to even out
constexpr int64_t kMaxPartialRows = 1 << 15;  // bounds the partial buffer

int64_t tile_work(const Tile& tile) {
  return int64_t{tile.q_count} * (tile.chunk < 0 ? tile.kv_end : kChunkTokens);
}

}  // namespace

void Plan::choose_heads_per_item(const ForwardBatch& batch) {
  int max_q_len = 1;
  for (int r = 0; r < batch.num_reqs; ++r) max_q_len = std::max(max_q_len, batch.q_len(r));
  const int tile_tokens = std::max(1, kTileRows / shape_.group);
  const int rows = padded_rows(std::min(max_q_len, tile_tokens) * shape_.group);
  heads_per_item_ = std::clamp(kItemRows / rows, 1, shape_.kv_heads);
}

void Plan::init(const ForwardBatch& batch, const PlanShape& shape) {
  shape_ = shape;
  tiles_.clear();
  merges_.clear();
  partial_rows_ = 0;
  choose_heads_per_item(batch);

  int64_t total_work = 0;
  for (int r = 0; r < batch.num_reqs; ++r) total_work += int64_t{batch.q_len(r)} * batch.kv_lens[r];
  const int64_t wanted_items = shape.threads == 1 ? 1 : int64_t{shape.threads} * kItemsPerThread;
  const int64_t share = total_work * head_items() / wanted_items;

  const int tile_tokens = std::max(1, kTileRows / shape.group);
  for (int r = 0; r < batch.num_reqs; ++r) {
    const int q_len = batch.q_len(r), cached = batch.kv_lens[r] - q_len;
    if (q_len == 0 || batch.kv_lens[r] == 0) continue;
    for (int q = (q_len - 1) / tile_tokens * tile_tokens; q >= 0; q -= tile_tokens) {
      const int count = std::min(tile_tokens, q_len - q);
      const int kv_end = cached + q + count;
      const bool cut = q_len <= tile_tokens && kv_end > kChunkTokens &&
                       int64_t{count} * kv_end > share;
      add_tile(r, q, count, kv_end, cut);
    }
  }
  while (heads_per_item_ > 1 && static_cast<int64_t>(tiles_.size()) * head_items() < wanted_items) {
    heads_per_item_ = (heads_per_item_ + 1) / 2;
  }
  if (batch.num_reqs > 1) {
    std::sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) {
      const int64_t work_a = tile_work(a), work_b = tile_work(b);
      if (work_a != work_b) return work_a > work_b;
      return a.request != b.request ? a.request < b.request : a.kv_end > b.kv_end;
    });
  }
}

void Plan::add_tile(int request, int q_begin, int q_count, int kv_end, bool cut) {
  const int chunks = (kv_end + kChunkTokens - 1) / kChunkTokens;
  const int rows = q_count * shape_.group;
  if (!cut || partial_rows_ + int64_t{chunks} * rows > kMaxPartialRows) {
    tiles_.push_back({request, q_begin, q_count, -1, 0, kv_end});
    return;
  }
  const int first_row = static_cast<int>(partial_rows_);
  for (int c = 0; c < chunks; ++c) {
    tiles_.push_back({request, q_begin, q_count, c, first_row + c * rows, kv_end});
  }
  merges_.push_back({request, q_begin, q_count, chunks, first_row});
  partial_rows_ += int64_t{chunks} * rows;
}

}  // namespace warpweave::intel_amx
