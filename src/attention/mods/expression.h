// A checked modifier: a score or mask expression as a list of typed nodes, operands before their
// users, equal subexpressions once. Made by parse.h; read by evaluators and code generators.
// Immutable and thread-safe once made. Knows nothing of devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/mods/op.h"

namespace warpweave::mods {

struct Node {
  Op op = Op::constant;
  ValueType type = ValueType::integer;
  uint16_t a = 0, b = 0, c = 0;     // operands: indices of earlier nodes
  int32_t integer = 0;              // of a constant; booleans are 0 or 1
  double real = 0;
  bool operator==(const Node&) const = default;
};

int operand_count(Op op);
const char* op_name(Op op);

struct Expression {
  std::string text;                 // as written
  std::vector<Node> nodes;          // the last one is the result; empty: no modifier

  bool empty() const { return nodes.empty(); }
  ValueType type() const { return nodes.back().type; }
  bool uses(Op op) const;
};

// What --flex-attention-* ask for. An empty mask leaves attention causal.
struct Modifiers {
  Expression score;                 // real
  Expression mask;                  // boolean; replaces the causal mask
  bool empty() const { return score.empty() && mask.empty(); }
};

}  // namespace warpweave::mods
