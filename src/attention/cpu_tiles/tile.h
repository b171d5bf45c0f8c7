// A tile: query rows of one request and KV head that share packed KV blocks, with their online
// softmax. The caller walks the blocks in order of position and may change scores in between:
//
//   tile.start(shape, rows);  tile.set_queries(...) for each token;
//   for each block: tile.load(...); tile.score(variant); change tile.scores(); tile.accumulate();
//   tile.finish_row(row, ...) for each row.
//
// Scratch of one thread; grows to the largest tile seen. Blocks lie at absolute positions and each
// row runs the same operations whatever stands beside it, so results do not depend on the tiling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "attention/backend.h"
#include "attention/cpu_tiles/kernels.h"
#include "device/cpu/cpu_info.h"

namespace warpweave::cpu_tiles {

inline constexpr int kTileRows = 128;  // query tokens x heads of the group; one token at least

// The kernels for these pools on this tier.
const Kernels& kernels_for(CpuTier tier, KvFormat k, KvFormat v);

// What all tiles of one call share.
struct TileShape {
  const Kernels* kernels = nullptr;
  const ForwardBatch* batch = nullptr;
  const AttentionCall* call = nullptr;
  int group = 1;
  int padded_dim = 0;
  int padded_v_dim = 0;
  int depth = 0;          // units of a packed query row

  TileShape(CpuTier tier, const ForwardBatch& batch, const AttentionCall& call);
};

struct BlockRange {
  int first = 0;          // tokens [first, end), within one block
  int end = 0;
  int start() const { return first / kBlockTokens * kBlockTokens; }
  bool empty() const { return first >= end; }
};

class Tile {
 public:
  // `variants`: how many forms of each query there are (1, or 3 under dual chunk attention).
  void start(const TileShape& shape, int rows, int request, int kv_head, int variants = 1);
  // Rows [row, row + group) of a variant: the heads of the KV head's group, at `q`.
  void set_queries(const TileShape& shape, int variant, int row, const float* q);

  void load(const TileShape& shape, BlockRange range);
  // scores()[row][token - range.start()]; tokens outside the range score 0 until masked.
  void score(const TileShape& shape, int variant = 0);
  float* scores() { return s_; }
  // Hides everything of a row but tokens [first, end), counted from the block's start.
  void show(int row, int first, int end);
  void accumulate(const TileShape& shape);

  // Writes one row; `sink` or null is one more logit of the sum. A row that saw nothing is 0, -inf.
  struct RowOutput {
    const float* sink = nullptr;
    float* out = nullptr;
    float* lse = nullptr;  // or null
  };
  void finish_row(const TileShape& shape, int row, const RowOutput& to);

 private:
  void reserve(const TileShape& shape, int rows, int variants);
  void widen_packed(const TileShape& shape);

  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<uint32_t, Free> buffer_;
  size_t capacity_ = 0;   // units
  int rows_ = 0;
  bool first_block_ = true;
  int request_ = 0, kv_head_ = 0;
  BlockRows k_rows_, v_rows_;
  std::vector<uint16_t> wide_;  // [kBlockTokens, head_dim] in bf16, of packed tokens
  uint32_t *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *p_ = nullptr;
  float *scratch_ = nullptr, *s_ = nullptr, *o_ = nullptr, *m_ = nullptr, *l_ = nullptr, *rescale_ = nullptr;
};

}  // namespace warpweave::cpu_tiles
