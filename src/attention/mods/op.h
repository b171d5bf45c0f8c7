// Operations and types of the modifier language. Plain enums: kernel files compiled with special
// instruction-set flags include this header too.
#pragma once

#include <stdint.h>

namespace warpweave::mods {

enum class ValueType : uint8_t { boolean, integer, real };

// Operands of arithmetic and comparisons have one common type, which the builder makes them have.
// Integers are 32-bit and wrap around; `/` on them rounds down, `%` has the divisor's sign, and both
// give 0 for a divisor of 0. Reals are f32 on devices; the evaluator of evaluate.h uses f64.
enum class Op : uint8_t {
  constant,
  // Variables.
  q_idx, kv_idx, request, head, q_len, kv_len, num_heads, head_dim, score,
  // Conversions: false/true to 0/1, integer to real.
  to_integer, to_real,
  // Integer or real.
  add, sub, mul, div, negate, absolute, minimum, maximum,
  modulo,       // integer only
  // Integer or real to boolean; a > b is built as b < a.
  less, less_equal, equal, not_equal,
  // Boolean.
  logical_and, logical_or, logical_not,
  select,       // a ? b : c, of any type
  // Real.
  exp, log, tanh, sqrt,
  // Slope of ALiBi (Press et al. 2021) for head `a` of num_heads `b`, both integers.
  alibi_slope,
};

}  // namespace warpweave::mods
