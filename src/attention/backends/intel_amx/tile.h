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

// Scratch and code of one thread.
class TileRunner {
 public:
  void reserve(const LayerShape& shape);

  // Computes the tile for one KV head: a whole tile is written to call.out, a cut one to `partial`.
  void run(const LayerShape& shape, const Tile& tile, int kv_head, RowState partial);
  // Merges the parts of a cut tile and writes its rows to call.out.
  void merge(const LayerShape& shape, const Merge& merge, int kv_head, RowState parts);

 private:
  struct Range { int first, last; };  // KV tokens [first, last)

  void load_queries(const LayerShape& shape, const Tile& tile, int kv_head);
  void set_row_ranges(const LayerShape& shape, const Tile& tile);
  void run_chunk(const LayerShape& shape, const Tile& tile, int kv_head, Range range);
  void run_block(const LayerShape& shape, int block, int count, bool first);
  void find_rows(const LayerShape& shape, int request, int kv_head, Range tokens, int slot);
  void write_rows(const LayerShape& shape, const Tile& tile, int kv_head, RowState state);

  AlignedBuffer buffer_;
  uint32_t *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *p_ = nullptr;
  float *s_ = nullptr, *rescale_ = nullptr;
  RowState chunk_{}, total_{};
  std::vector<int> first_, last_;              // visible KV range of each row, absolute
  std::vector<int> block_first_, block_last_;  // the same within the current block
  int rows_ = 0;
  // Addresses of the tokens of this block and of the next, by turns.
  const char* k_rows_[2][kBlockTokens];
  const char* v_rows_[2][kBlockTokens];
  int row_count_[2] = {0, 0};
};

}  // namespace warpweave::intel_amx
