#include "attention/mods/expression.h"

#include <algorithm>

namespace warpweave::mods {

int operand_count(Op op) {
  if (op <= Op::score) return 0;
  switch (op) {
    case Op::to_integer:
    case Op::to_real:
    case Op::negate:
    case Op::absolute:
    case Op::logical_not:
    case Op::exp:
    case Op::log:
    case Op::tanh:
    case Op::sqrt: return 1;
    case Op::select: return 3;
    default: return 2;
  }
}

const char* op_name(Op op) {
  constexpr const char* kNames[] = {
      "constant", "q_idx",   "kv_idx", "b",     "h",          "q_len", "kv_len",     "num_heads",
      "head_dim", "score",   "int",    "float", "+",          "-",     "*",          "/",
      "-",        "abs",     "min",    "max",   "%",          "<",     "<=",         "==",
      "!=",       "&&",      "||",     "!",     "?:",         "exp",   "log",        "tanh",
      "sqrt",     "alibi_slope"};
  return kNames[static_cast<int>(op)];
}

bool Expression::uses(Op op) const {
  return std::any_of(nodes.begin(), nodes.end(), [op](const Node& node) { return node.op == op; });
}

}  // namespace warpweave::mods
