// What a mask does over a whole block of cells, by interval arithmetic over the expression.
//
// Sound: `empty` means that no cell is visible and `full` that all are, also when reals are computed
// in f32 with the operations of this project's kernels. Exact for comparisons of affine expressions
// of q_idx and kv_idx; what cannot be decided is `partial`.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/mods/expression.h"

namespace warpweave::mods {

struct Span {
  int32_t first = 0, last = 0;  // inclusive
};

// Every combination of values in these ranges.
struct Box {
  Span q_idx, kv_idx, request, head, q_len, kv_len, num_heads{1, 1}, head_dim;
};

enum class Coverage : uint8_t { empty, partial, full };

// One thread at a time; keeps its scratch between calls. `expression` must outlive it.
class MaskBounds {
 public:
  explicit MaskBounds(const Expression& expression);

  Coverage classify(const Box& box);

 private:
  friend bool never_sees_future(const Expression& mask);

  // The value of a node: integers and booleans in [low, high], reals in [real_low, real_high].
  struct Bound {
    int64_t low = 0, high = 0;
    double real_low = 0, real_high = 0;
    bool may_be_nan = false;
    // value == by_x * x + by_y * y + offset, over the two position variables of this run.
    bool affine = false;
    int64_t by_x = 0, by_y = 0, offset = 0;
  };
  struct Positions {
    Span x, y;
    bool relative = false;  // x is q_idx and y is kv_idx - q_idx, not kv_idx
  };

  Coverage run(const Box& box, const Positions& positions);
  Bound variable(Op op, const Box& box) const;
  Bound of(const Node& node) const;
  Bound integer_op(Op op, const Bound& a, const Bound& b) const;
  Bound affine_op(Op op, const Bound& a, const Bound& b) const;
  Bound compare(Op op, ValueType operand, const Bound& a, const Bound& b) const;
  Bound from_affine(int64_t by_x, int64_t by_y, int64_t offset) const;
  static Bound real_op(Op op, const Bound& a, const Bound& b);
  static Bound growing_op(Op op, const Bound& a);
  static Bound join(const Bound& a, const Bound& b);

  const Expression& expression_;
  std::vector<Bound> bounds_;
  Positions positions_;
};

// Proven for every position and length: a row never sees a later token. Such a mask is safe with
// prompts that arrive in chunks and with cached prefixes.
bool never_sees_future(const Expression& mask);

}  // namespace warpweave::mods
