// The work list of one forward: tiles of query rows, which of them are cut along the KV sequence so
// that all threads have work (flash-decoding), and which rows of several requests stand in one tile
// because they see the same pages (cascade).
//
// Cuts lie only at multiples of kChunkTokens of the absolute position, and every row, cut or not, is
// computed chunk by chunk and merged in chunk order. So the plan moves work between threads, and rows
// between tiles, without changing a bit of the result.
//
// An item, what a thread takes at a time, is a tile for one or more KV heads. Few rows (decode) are
// bound by memory: there an item covers as many heads as the rows and the number of threads allow, so
// that whole tokens are read in order instead of one head's part of each.
//
// init(batch) does not allocate once the vectors have grown to the largest batch seen.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "attention/backends/intel_amx/shared_prefix.h"
#include "batch/forward_batch.h"

namespace warpweave::intel_amx {

inline constexpr int kChunkTokens = 512;  // a multiple of kBlockTokens
inline constexpr int kItemRows = 128;     // padded rows of all KV heads of an item of several heads

// Rows of one request within a tile.
struct TileMember {
  int32_t request;
  int32_t q_begin;         // first row within the request
  int32_t q_count;
  int32_t partial_row;     // of a cut tile: where the member's chunk 0 stands in the partial buffer
};

struct Tile {
  int32_t first_member;
  int32_t num_members;     // requests; all see the pages of the first one
  int32_t rows;            // query rows x heads of the group
  int32_t kv_end;          // tokens that a row of the tile may see
  int32_t chunk_begin;
  int32_t chunk_end;
  bool cut;                // its chunks go to the partial buffer, to be merged
};

struct Item {
  int32_t tile;
  int32_t head_begin;
  int32_t head_end;
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
  int tile_rows = 240;     // rows of the largest tile
  int group_rows = 24;     // rows up to which an item may have several heads
  bool operator==(const PlanShape&) const = default;
};

class Plan {
 public:
  void init(const ForwardBatch& batch, const PlanShape& shape);

  const PlanShape& shape() const { return shape_; }
  const std::vector<TileMember>& members() const { return members_; }
  const std::vector<Tile>& tiles() const { return tiles_; }
  const std::vector<Item>& items() const { return items_; }
  const std::vector<Merge>& merges() const { return merges_; }
  int64_t partial_rows() const { return partial_rows_; }  // per KV head

 private:
  void choose_sizes(const ForwardBatch& batch);
  void add_request(const ForwardBatch& batch, int request);
  void add_shared(const ForwardBatch& batch);
  int add_merge(const TileMember& member, int chunks);
  void add_spans(Tile tile, int first_chunk, int end_chunk);
  int heads_per_item(const Tile& tile) const;
  int64_t share_of(const Tile& tile) const;
  void make_items();

  PlanShape shape_;
  int tile_tokens_ = 1;        // query rows per tile and head
  int64_t wanted_items_ = 1;
  int64_t share_ = 0;          // work of an item of all heads when all are equal
  std::vector<TileMember> members_;
  std::vector<Tile> tiles_;
  std::vector<Item> items_;
  std::vector<Merge> merges_;
  std::vector<std::pair<int64_t, int32_t>> order_;
  SharedPrefixes shared_;
  int64_t partial_rows_ = 0;
};

}  // namespace warpweave::intel_amx
