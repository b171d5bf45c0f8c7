// One tile of query rows against the KV blocks it sees.
//
// Chunk by chunk. Many rows share packed blocks: the chunk is packed once, then each group of rows runs
// over it, its accumulators staying in L1. Few rows take one block at a time for all heads of the item,
// so that memory is read in order: straight from the pages where the tier can, else packed.
#pragma once

#include <vector>

#include "attention/backend.h"
#include "attention/backends/intel_amx/kernels.h"
#include "attention/backends/intel_amx/plan.h"
#include "attention/backends/intel_amx/rows.h"

namespace warpweave::intel_amx {

// 64-byte aligned array that only grows.
class AlignedBuffer {
 public:
  ~AlignedBuffer();
  void reserve(size_t units);
  uint32_t* data() { return data_; }
  float* floats() { return reinterpret_cast<float*>(data_); }

 private:
  uint32_t* data_ = nullptr;
  size_t capacity_ = 0;
};

// What all tiles of one layer's call share.
struct LayerShape {
  const KernelSet* kernels = nullptr;
  const ForwardBatch* batch = nullptr;
  const AttentionCall* call = nullptr;
  Element element = Element::f32;
  int group = 1;
  int padded_dim = 0;
  int padded_v_dim = 0;
  int depth = 0;           // units per packed q row
  int v_block = 0;         // units of a packed V block

  LayerShape(const KernelSet& kernels, const ForwardBatch& batch, const AttentionCall& call);
  // Rows that the buffers of one tile and head are made for.
  int padded_rows(int rows) const;
};

// (m, l, o) of rows: running maximum (log2), sum, weighted values of padded_v_dim.
struct RowState {
  float* m;
  float* l;
  float* o;
};

// The partial results of a forward's cut tiles, rows of one head together.
struct Partials {
  float* base = nullptr;   // every o, then every m, then every l
  int64_t rows_per_head = 0;
  int heads = 0;
  int v_dim = 0;

  RowState at(int kv_head, int row) const {
    const int64_t rows = rows_per_head * heads, index = rows_per_head * kv_head + row;
    return {base + rows * v_dim + index, base + rows * (v_dim + 1) + index, base + index * v_dim};
  }
};

// Scratch and code of one thread.
class TileRunner {
 public:
  void reserve(const LayerShape& shape);

  // Computes an item: a whole tile is written to call.out, a cut one to partials.
  void run(const LayerShape& shape, const Plan& plan, const Item& item, const Partials& partials);
  // Merges the parts of a cut tile and writes its rows to call.out.
  void merge(const LayerShape& shape, const Merge& merge, int kv_head, const Partials& partials);

 private:
  void load_queries(const LayerShape& shape);
  void run_chunk(const LayerShape& shape, int chunk);
  void run_head(const LayerShape& shape, int kv_head);
  void pack_block(const LayerShape& shape, int kv_head, int block);
  void merge_rows(const LayerShape& shape, size_t row, int rows);
  void attend_group(const LayerShape& shape, int kv_head, int begin, int end);
  void start_prefetch(const LayerShape& shape);
  void finish_chunk(const LayerShape& shape, int chunk, const Partials& partials);
  void write_partial(const LayerShape& shape, int kv_head, int chunk, const Partials& partials);
  void write_member(const LayerShape& shape, const TileMember& member, int kv_head, RowState state);
  BlockRows block_rows(const LayerShape& shape, int kv_head, int block, bool values) const;
  int local_row(int kv_head) const { return (kv_head - item_.head_begin) * row_stride_; }
  int stripe_blocks(const LayerShape& shape) const;
  bool packs(const LayerShape& shape) const;  // or runs its few rows straight from the pages

  AlignedBuffer buffer_;
  uint32_t *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *p_ = nullptr;
  float *s_ = nullptr, *rescale_ = nullptr, *sums_ = nullptr;
  RowStates chunk_{};    // of all rows and heads of the item
  RowState total_{};
  std::vector<uint64_t> masks_;        // [kChunkTokens / kBlockTokens][rows of a group]
  std::vector<BlockView> views_;
  VisibleRows visible_;

  Tile tile_{};
  Item item_{};
  const TileMember* members_ = nullptr;
  int rows_ = 0;         // of the tile, per KV head
  int row_stride_ = 0;   // rows from one KV head to the next in q_, chunk_ and total_
  // Addresses of this stripe and of the next.
  TokenAddresses stripe_, next_;
  Prefetch prefetch_{};
};

}  // namespace warpweave::intel_amx
