// The work list of one forward: tiles of query rows, longest first, and which of them are cut along
// the KV sequence so that all threads have work (flash-decoding).
//
// Cuts lie only at multiples of kChunkTokens of the absolute position, and every row, cut or not, is
// computed chunk by chunk and merged in chunk order. So the plan moves work between threads without
// changing a bit of the result.
//
// An item, what a thread takes at a time, is a tile for one or more KV heads. Few rows (decode) are
// bound by memory: there an item covers as many heads as the rows and the number of threads allow, so
// that whole tokens are read in order instead of one head's part of each.
//
// init(batch) does not allocate once the vectors have grown to the largest batch seen.
#pragma once

#include <cstdint>
#include <vector>

#include "batch/forward_batch.h"

namespace warpweave::intel_amx {

inline constexpr int kChunkTokens = 512;  // a multiple of kBlockTokens
inline constexpr int kTileRows = 64;      // query rows x heads of the group that share a packed block
inline constexpr int kItemRows = 128;     // padded rows of all KV heads of one item

struct Tile {
  int32_t request;
  int32_t q_begin;         // first row within the request
  int32_t q_count;
  int32_t chunk;           // the only chunk of this tile, or -1: all of them
  int32_t partial_row;     // first row in the partial buffer, of a cut tile
  int32_t kv_end;          // tokens that the tile's last row sees
};

// A cut tile's parts, to be merged: chunk c's rows start at partial_row + c * rows.
struct Merge {
  int32_t request;
  int32_t q_begin;
  int32_t q_count;
  int32_t chunks;
  int32_t partial_row;
};

struct PlanShape {
  int group = 1;           // query heads per KV head
  int kv_heads = 1;
  int threads = 1;
  bool operator==(const PlanShape&) const = default;
};

class Plan {
 public:
  void init(const ForwardBatch& batch, const PlanShape& shape);

  const PlanShape& shape() const { return shape_; }
  const std::vector<Tile>& tiles() const { return tiles_; }
  const std::vector<Merge>& merges() const { return merges_; }
  int64_t partial_rows() const { return partial_rows_; }  // per KV head
  int heads_per_item() const { return heads_per_item_; }

 private:
  void add_tile(int request, int q_begin, int q_count, int kv_end, bool cut);

  int64_t head_items() const { return (shape_.kv_heads + heads_per_item_ - 1) / heads_per_item_; }
  void choose_heads_per_item(const ForwardBatch& batch);

  PlanShape shape_;
  int heads_per_item_ = 1;
  std::vector<Tile> tiles_;
  std::vector<Merge> merges_;
  int64_t partial_rows_ = 0;
};

}  // namespace warpweave::intel_amx
