#include "attention/mods/builder.h"

#include <algorithm>

#include "attention/mods/evaluate.h"

namespace warpweave::mods {

const char* type_name(ValueType type) {
  switch (type) {
    case ValueType::boolean: return "a condition";
    case ValueType::integer: return "an integer";
    case ValueType::real: return "a real number";
  }
  return "";
}

Builder::Builder(std::string what, std::string text) : what_(std::move(what)) {
  expression_.text = std::move(text);
  expression_.nodes.push_back({});  // what failed calls return
}

void Builder::fail(const std::string& why) {
  if (!status_.ok()) return;
  status_ = Status::invalid_argument(what_ + ", column " + std::to_string(column_) + ": " + why);
}

Builder::Part Builder::add(Node node) {
  if (!status_.ok()) return 0;
  std::vector<Node>& nodes = expression_.nodes;
  const int operands = operand_count(node.op);
  const uint16_t parts[] = {node.a, node.b, node.c};
  const auto is_constant = [&](uint16_t part) { return nodes[part].op == Op::constant; };
  if (operands > 0 && std::all_of(parts, parts + operands, is_constant)) {
    Value values[3];
    for (int i = 0; i < operands; ++i) values[i] = {nodes[parts[i]].integer, nodes[parts[i]].real};
    const Value value = apply(node.op, nodes[node.a].type, node.type, values);
    node = {.op = Op::constant, .type = node.type, .integer = value.integer, .real = value.real};
  }
  const auto same = std::find(nodes.begin(), nodes.end(), node);
  if (same != nodes.end()) return static_cast<Part>(same - nodes.begin());
  if (nodes.size() >= kMaxNodes) {
    fail("the expression has more than " + std::to_string(kMaxNodes) + " operations; shorten it");
    return 0;
  }
  nodes.push_back(node);
  return static_cast<Part>(nodes.size() - 1);
}

Builder::Part Builder::variable(Op op) {
  return add({.op = op, .type = op == Op::score ? ValueType::real : ValueType::integer});
}
Builder::Part Builder::integer(int32_t value) {
  return add({.op = Op::constant, .type = ValueType::integer, .integer = value});
}
Builder::Part Builder::real(double value) {
  return add({.op = Op::constant, .type = ValueType::real, .real = value});
}

bool Builder::want(Part a, ValueType wanted, const char* op) {
  if (type(a) == wanted) return true;
  fail(std::string("'") + op + "' takes " + type_name(wanted) + " here, not " + type_name(type(a)));
  return false;
}

Builder::Part Builder::as_real(Part a) {
  if (type(a) == ValueType::real) return a;
  if (type(a) == ValueType::boolean) {
    fail("a condition is not a number; write condition ? 1 : 0");
    return 0;
  }
  return add({.op = Op::to_real, .type = ValueType::real, .a = a});
}

void Builder::unite(Part& a, Part& b, const char* op) {
  if (type(a) == type(b)) return;
  if (type(a) == ValueType::boolean || type(b) == ValueType::boolean) {
    fail(std::string("'") + op + "' has " + type_name(type(a)) + " on one side and " +
         type_name(type(b)) + " on the other");
    return;
  }
  a = as_real(a);
  b = as_real(b);
}

Builder::Part Builder::unary(Op op, Part a) {
  switch (op) {
    case Op::logical_not:
      if (!want(a, ValueType::boolean, "!")) return 0;
      return add({.op = op, .type = ValueType::boolean, .a = a});
    case Op::to_integer:
      if (!want(a, ValueType::boolean, "int")) return 0;
      return add({.op = op, .type = ValueType::integer, .a = a});
    case Op::negate:
    case Op::absolute:
      if (type(a) == ValueType::boolean) {
        fail(std::string("'") + op_name(op) + "' takes a number, not a condition");
        return 0;
      }
      return add({.op = op, .type = type(a), .a = a});
    default:
      a = as_real(a);
      return add({.op = op, .type = ValueType::real, .a = a});
  }
}

Builder::Part Builder::arithmetic(Op op, Part a, Part b) {
  if (type(a) == ValueType::boolean) {
    fail(std::string("'") + op_name(op) + "' takes numbers, not conditions");
    return 0;
  }
  const Node& divisor = node(b);
  if ((op == Op::div || op == Op::modulo) && divisor.op == Op::constant &&
      divisor.integer == 0 && divisor.real == 0) {
    fail("division by zero");
    return 0;
  }
  if (op == Op::modulo && type(a) == ValueType::real) {
    fail("'%' takes integers, not real numbers");
    return 0;
  }
  return add({.op = op, .type = type(a), .a = a, .b = b});
}

Builder::Part Builder::binary(Op op, Part a, Part b) {
  if (!status_.ok()) return 0;
  switch (op) {
    case Op::logical_and:
    case Op::logical_or:
      if (!want(a, ValueType::boolean, op_name(op)) || !want(b, ValueType::boolean, op_name(op))) {
        return 0;
      }
      return add({.op = op, .type = ValueType::boolean, .a = a, .b = b});
    case Op::alibi_slope:
      if (!want(a, ValueType::integer, op_name(op))) return 0;
      return add({.op = op, .type = ValueType::real, .a = a, .b = b});
    default: break;
  }
  unite(a, b, op_name(op));
  if (!status_.ok()) return 0;
  if (op < Op::less || op > Op::not_equal) return arithmetic(op, a, b);
  if (type(a) == ValueType::boolean && op != Op::equal && op != Op::not_equal) {
    fail(std::string("'") + op_name(op) + "' compares numbers, not conditions");
    return 0;
  }
  return add({.op = op, .type = ValueType::boolean, .a = a, .b = b});
}

Builder::Part Builder::select(Part condition, Part yes, Part no) {
  if (!status_.ok() || !want(condition, ValueType::boolean, "?")) return 0;
  unite(yes, no, "?:");
  if (!status_.ok()) return 0;
  return add({.op = Op::select, .type = type(yes), .a = condition, .b = yes, .c = no});
}

Expression Builder::finish(Part root) const {
  const std::vector<Node>& nodes = expression_.nodes;
  std::vector<bool> needed(nodes.size(), false);
  needed[root] = true;
  for (size_t i = nodes.size(); i-- > 0;) {
    if (!needed[i]) continue;
    const uint16_t parts[] = {nodes[i].a, nodes[i].b, nodes[i].c};
    for (int k = 0; k < operand_count(nodes[i].op); ++k) needed[parts[k]] = true;
  }
  Expression out;
  out.text = expression_.text;
  std::vector<uint16_t> moved(nodes.size(), 0);
  for (size_t i = 0; i <= root; ++i) {
    if (!needed[i]) continue;
    moved[i] = static_cast<uint16_t>(out.nodes.size());
    Node node = nodes[i];
    const int operands = operand_count(node.op);
    if (operands > 0) node.a = moved[node.a];
    if (operands > 1) node.b = moved[node.b];
    if (operands > 2) node.c = moved[node.c];
    out.nodes.push_back(node);
  }
  return out;
}

}  // namespace warpweave::mods
