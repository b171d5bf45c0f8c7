// The work list of one forward: tiles of query rows and the KV blocks that the mask lets them see.
// A mask that differs by head lists a block when any head sees some of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/mods/bounds.h"
#include "batch/forward_batch.h"

namespace warpweave::flex_attention {

struct PlannedTile {
  int32_t request;
  int32_t q_begin;       // first row within the request
  int32_t q_count;
  int32_t blocks_begin;  // its blocks: [blocks_begin, blocks_end) of Plan::blocks
  int32_t blocks_end;
};

struct PlannedBlock {
  int32_t index;         // tokens [index * kBlockTokens, ...)
  bool full;             // the mask shows all of it to every row: no need to evaluate it
};

struct PlanShape {
  int group = 1;
  int num_heads = 1;
  int head_dim = 0;
  bool operator==(const PlanShape&) const = default;
};

class Plan {
 public:
  // `mask` null: causal, or everything where the batch is not causal.
  void init(const ForwardBatch& batch, const PlanShape& shape, mods::MaskBounds* mask);
  void clear() { shape_ = {0, 0, 0}; }

  const PlanShape& shape() const { return shape_; }
  const std::vector<PlannedTile>& tiles() const { return tiles_; }  // most blocks first
  std::span<const PlannedBlock> blocks(const PlannedTile& tile) const {
    return std::span(blocks_).subspan(tile.blocks_begin, tile.blocks_end - tile.blocks_begin);
  }

 private:
  void add_blocks(const ForwardBatch& batch, const PlannedTile& tile, mods::MaskBounds* mask);

  PlanShape shape_{0, 0, 0};
  std::vector<PlannedTile> tiles_;
  std::vector<PlannedBlock> blocks_;
};

// Position of row i of a request, and of the token at kv index t: a node of a draft tree has the
// position of its depth.
int32_t row_position(const ForwardBatch& batch, int request, int row);
int32_t token_position(const ForwardBatch& batch, int request, int token);

}  // namespace warpweave::flex_attention
