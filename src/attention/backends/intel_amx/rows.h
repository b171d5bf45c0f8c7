// Which KV tokens the rows of a tile see, and where those tokens lie.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/backend.h"
#include "attention/backends/intel_amx/kernels.h"
#include "attention/backends/intel_amx/plan.h"

namespace warpweave::intel_amx {

struct TokenRange { int first, last; };  // KV tokens [first, last)

// How many tokens a row sees before its own, and after it where the batch is not causal; -1: all.
struct Window { int left, right; };

// A row sees [first, last) of its request, and of the draft tree that begins at tree_base the tokens
// whose bits are set.
class VisibleRows {
 public:
  void reserve(int rows);
  // Rows of the tile's members in order, the heads of a query row side by side.
  void set(const ForwardBatch& batch, const Tile& tile, const TileMember* members, int group,
           Window window);

  int count() const { return static_cast<int>(rows_.size()); }
  // From the first to the last token that any row of [begin, end) sees.
  TokenRange range(int begin, int end) const;
  // The rows [begin, end) against block `block` of `tokens` tokens: fills `masks` if need be.
  BlockView view(int begin, int end, int block, int tokens, uint64_t* masks) const;

 private:
  struct Row {
    int first, last;
    const uint32_t* tree;  // null: no tree
    int tree_base;
    int tree_end;
  };
  uint64_t mask(const Row& row, int begin, int tokens) const;

  std::vector<Row> rows_;
};

// The addresses of consecutive tokens of one request.
struct TokenAddresses {
  std::vector<const char*> k, v;
  std::vector<const uint8_t*> k_scales, v_scales;  // fp4 only
  std::vector<uint16_t> wide;                      // packed tokens in bf16, where k and v point then
  TokenRange tokens{0, 0};

  void reserve(int tokens);
  void find(const ForwardBatch& batch, const AttentionCall& call, int request, TokenRange range);
  int count() const { return tokens.last - tokens.first; }

 private:
  void widen_packed(KvFormat format, int dim);
};

}  // namespace warpweave::intel_amx
