// One cell of the score matrix at a time, in f64: the definition of the language that vectorised
// code is tested against, and the folding of constants. Never used on a hot path.
#pragma once

#include <cstdint>

#include "attention/mods/expression.h"

namespace warpweave::mods {

// Where the expression is evaluated. Positions are those in the sequence.
struct Cell {
  int32_t q_idx = 0;
  int32_t kv_idx = 0;
  int32_t request = 0;
  int32_t head = 0;
  int32_t q_len = 0;
  int32_t kv_len = 0;
  int32_t num_heads = 1;
  int32_t head_dim = 0;
  double score = 0;
};

struct Value {
  int32_t integer = 0;  // integers, and booleans as 0 or 1
  double real = 0;
};

// One operation. `operand` is the type of the first operand.
Value apply(Op op, ValueType operand, ValueType type, const Value* operands);

Value evaluate(const Expression& expression, const Cell& cell);

}  // namespace warpweave::mods
