// One tile of query rows against the KV blocks it sees: pack, multiply, softmax, multiply.
#pragma once

#include <vector>

#include "attention/backend.h"
#include "attention/backends/intel_amx/kernels.h"
#include "attention/backends/intel_amx/plan.h"

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
  int group = 1;
  bool pairs = false;      // operands are bf16 pairs
  int padded_dim = 0;
  int padded_v_dim = 0;
  int depth = 0;           // units per packed q row

  LayerShape(const KernelSet& kernels, const ForwardBatch& batch, const AttentionCall& call);
};

// (m, l, o) of `rows` rows: running maximum, running sum, weighted values of padded_v_dim.
struct RowState {
  float* m;
  float* l;
  float* o;
};

struct HeadRange { int begin, end; };

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

  // Computes the tile for some KV heads: a whole tile is written to call.out, a cut one to partials.
  void run(const LayerShape& shape, const Tile& tile, HeadRange heads, const Partials& partials);
  // Merges the parts of a cut tile and writes its rows to call.out.
  void merge(const LayerShape& shape, const Merge& merge, int kv_head, const Partials& partials);

 private:
  struct Range { int first, last; };  // KV tokens [first, last)

  void load_queries(const LayerShape& shape, const Tile& tile, HeadRange heads);
  void set_row_ranges(const LayerShape& shape, const Tile& tile);
  void run_chunk(const LayerShape& shape, const Tile& tile, HeadRange heads, Range range);
  void run_block(const LayerShape& shape, int block, int kv_head, int local_head, bool first);
  void find_rows(const LayerShape& shape, int request, Range tokens, int slot);
  void finish_chunk(const LayerShape& shape, const Tile& tile, HeadRange heads,
                    const Partials& partials);
  void write_rows(const LayerShape& shape, const Tile& tile, int kv_head, RowState state);
  RowState head_state(const LayerShape& shape, RowState all, int local_head) const;

  AlignedBuffer buffer_;
  uint32_t *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *p_ = nullptr;
  float *s_ = nullptr, *rescale_ = nullptr;
  RowState chunk_{}, total_{};
  std::vector<int> first_, last_;              // visible KV range of each row, absolute
  std::vector<int> block_first_, block_last_;  // the same within the current block
  int rows_ = 0;         // of the tile, per KV head
  int row_stride_ = 0;   // rows from one KV head to the next in q_, chunk_ and total_
  // Addresses of the tokens of this block and of the next, by turns.
  const char* k_rows_[2][kBlockTokens];
  const char* v_rows_[2][kBlockTokens];
  int row_count_[2] = {0, 0};
};

}  // namespace warpweave::intel_amx
