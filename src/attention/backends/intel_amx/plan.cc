#include "attention/backends/intel_amx/plan.h"

#include <algorithm>

#include "attention/backends/intel_amx/kernels.h"

namespace warpweave::intel_amx {
namespace {

constexpr int kTilesPerThread = 4;           // enough for the last ones to even out
constexpr int64_t kMaxPartialRows = 1 << 15;  // bounds the partial buffer

int64_t tile_work(const Tile& tile) {
  return int64_t{tile.q_count} * (tile.chunk < 0 ? tile.kv_end : kChunkTokens);
}

}  // namespace

void Plan::init(const ForwardBatch& batch, const PlanShape& shape) {
  shape_ = shape;
  tiles_.clear();
  merges_.clear();
  partial_rows_ = 0;

  int64_t total_work = 0;
  for (int r = 0; r < batch.num_reqs; ++r) total_work += int64_t{batch.q_len(r)} * batch.kv_lens[r];
  total_work *= shape.kv_heads;
  const int64_t share = total_work / (int64_t{shape.threads} * kTilesPerThread);

  const int tile_tokens = std::max(1, kTileRows / shape.group);
  int max_q_len = 1;
  for (int r = 0; r < batch.num_reqs; ++r) {
    const int q_len = batch.q_len(r), cached = batch.kv_lens[r] - q_len;
    max_q_len = std::max(max_q_len, q_len);
    if (q_len == 0 || batch.kv_lens[r] == 0) continue;
    for (int q = (q_len - 1) / tile_tokens * tile_tokens; q >= 0; q -= tile_tokens) {
      const int count = std::min(tile_tokens, q_len - q);
      const int kv_end = cached + q + count;
      const bool cut = shape.threads > 1 && kv_end > kChunkTokens &&
                       int64_t{count} * kv_end > share && q_len <= tile_tokens;
      add_tile(r, q, count, kv_end, cut);
    }
  }
  choose_heads_per_item(std::min(max_q_len, tile_tokens) * shape.group);
  if (batch.num_reqs > 1) {
    std::sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) {
      const int64_t work_a = tile_work(a), work_b = tile_work(b);
      if (work_a != work_b) return work_a > work_b;
      return a.request != b.request ? a.request < b.request : a.kv_end > b.kv_end;
    });
  }
}

void Plan::choose_heads_per_item(int max_rows) {
  const int64_t wanted_items = int64_t{shape_.threads} * kTilesPerThread;
  heads_per_item_ = std::clamp(kItemRows / padded_rows(max_rows), 1, shape_.kv_heads);
  auto items = [&] {
    return static_cast<int64_t>(tiles_.size()) *
           ((shape_.kv_heads + heads_per_item_ - 1) / heads_per_item_);
  };
  while (heads_per_item_ > 1 && items() < wanted_items) heads_per_item_ = (heads_per_item_ + 1) / 2;
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
