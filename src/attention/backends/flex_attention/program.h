// An expression as tile operations. Each node is computed as often as it varies: once per row where
// it depends on the query only, once per block where it depends on the key only, else once per
// operation for the whole tile.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/backends/flex_attention/strips.h"
#include "attention/mods/evaluate.h"
#include "attention/mods/expression.h"

namespace warpweave::flex_attention {

// Immutable; shared by threads. Owns its copy of the expression.
class Program {
 public:
  explicit Program(mods::Expression expression);

  // What a node varies with.
  enum Variation : uint8_t { nothing = 0, row = 1, column = 2, cell = 3 };

  const mods::Expression& expression() const { return expression_; }
  Variation variation(size_t node) const { return variation_[node]; }
  int slot(size_t node) const { return slot_[node]; }  // of the per-cell nodes' storage
  int num_slots() const { return num_slots_; }
  bool empty() const { return expression_.empty(); }

 private:
  void assign_slots();

  mods::Expression expression_;
  std::vector<Variation> variation_;
  std::vector<int> slot_;
  int num_slots_ = 0;
};

// The values of one program over one tile; scratch of one thread.
class ProgramRun {
 public:
  // `rows`: the cell of each row; kv_idx and score are not read.
  void start_tile(const Program& program, std::span<const mods::Cell> rows);
  // Position of each of the kStripColumns tokens of the block.
  void start_block(const Program& program, const Strips& strips, const int32_t* kv_idx);
  // The mask over the tile, valid until the next call.
  StripOperand mask(const Program& program, const Strips& strips);
  // scores = modifier(scores), [rows][kStripColumns].
  void change_scores(const Program& program, const Strips& strips, float* scores);

 private:
  StripOperand operand(const Program& program, size_t node, const float* scores) const;
  struct Strip {
    size_t node;
    int rows;
    const float* scores;
  };
  void compute(const Program& program, const Strips& strips, const Strip& of, void* out) const;
  StripOperand run(const Program& program, const Strips& strips, float* scores, bool in_place);
  void row_values(const Program& program, const mods::Cell& cell, int row);

  int rows_ = 0;
  std::vector<mods::Value> values_;      // of one row
  std::vector<int32_t> row_storage_;     // [nodes][rows]
  std::vector<int32_t> column_storage_;  // [nodes][kStripColumns]
  std::vector<int32_t> cell_storage_;    // [slots][rows][kStripColumns]
};

}  // namespace warpweave::flex_attention
