#include "attention/backends/flex_attention/plan.h"

#include <algorithm>

#include "attention/cpu_tiles/tile.h"

namespace warpweave::flex_attention {

using cpu_tiles::kBlockTokens;

int32_t row_position(const ForwardBatch& batch, int request, int row) {
  if (!batch.tree_mask.empty()) return batch.positions[batch.q_indptr[request] + row];
  return batch.kv_lens[request] - batch.q_len(request) + row;
}

int32_t token_position(const ForwardBatch& batch, int request, int token) {
  const int prefix = batch.kv_lens[request] - batch.q_len(request);
  if (batch.tree_mask.empty() || token < prefix) return token;
  return batch.positions[batch.q_indptr[request] + token - prefix];
}

void Plan::init(const ForwardBatch& batch, const PlanShape& shape, mods::MaskBounds* mask) {
  shape_ = shape;
  tiles_.clear();
  blocks_.clear();
  const int tile_tokens = std::max(1, cpu_tiles::kTileRows / shape.group);
  for (int r = 0; r < batch.num_reqs; ++r) {
    if (batch.kv_lens[r] == 0) continue;
    for (int q = 0; q < batch.q_len(r); q += tile_tokens) {
      PlannedTile tile = {r, q, std::min(tile_tokens, batch.q_len(r) - q),
                          static_cast<int32_t>(blocks_.size()), 0};
      add_blocks(batch, tile, mask);
      tile.blocks_end = static_cast<int32_t>(blocks_.size());
      tiles_.push_back(tile);
    }
  }
  std::stable_sort(tiles_.begin(), tiles_.end(), [](const PlannedTile& a, const PlannedTile& b) {
    return a.blocks_end - a.blocks_begin > b.blocks_end - b.blocks_begin;
  });
}

void Plan::add_blocks(const ForwardBatch& batch, const PlannedTile& tile, mods::MaskBounds* mask) {
  const int kv_len = batch.kv_lens[tile.request], q_len = batch.q_len(tile.request);
  const bool tree = !batch.tree_mask.empty();
  const int last_row = tile.q_begin + tile.q_count - 1;
  // Without a mask the rows' ranges decide inside the block.
  if (mask == nullptr) {
    const int end = tree || !batch.causal ? kv_len : kv_len - q_len + last_row + 1;
    for (int block = 0; block * kBlockTokens < end; ++block) blocks_.push_back({block, true});
    return;
  }
  mods::Box box;
  box.q_idx = {INT32_MAX, INT32_MIN};
  for (int row = tile.q_begin; row <= last_row; row += tree ? 1 : std::max(1, tile.q_count - 1)) {
    const int32_t position = row_position(batch, tile.request, row);
    box.q_idx = {std::min(box.q_idx.first, position), std::max(box.q_idx.last, position)};
  }
  box.request = {tile.request, tile.request};
  box.head = {0, shape_.num_heads - 1};
  box.q_len = {q_len, q_len};
  box.kv_len = {kv_len, kv_len};
  box.num_heads = {shape_.num_heads, shape_.num_heads};
  box.head_dim = {shape_.head_dim, shape_.head_dim};
  for (int block = 0; block * kBlockTokens < kv_len; ++block) {
    const int first = block * kBlockTokens, end = std::min(kv_len, first + kBlockTokens);
    if (tree && end > kv_len - q_len) {  // the tree decides for its own tokens
      blocks_.push_back({block, false});
      continue;
    }
    box.kv_idx = {first, end - 1};
    const mods::Coverage coverage = mask->classify(box);
    if (coverage != mods::Coverage::empty) {
      blocks_.push_back({block, coverage == mods::Coverage::full});
    }
  }
}

}  // namespace warpweave::flex_attention
