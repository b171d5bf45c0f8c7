#include "attention/mods/evaluate.h"

#include <bit>
#include <cmath>

namespace warpweave::mods {
namespace {

int32_t wrap(int64_t value) { return static_cast<int32_t>(static_cast<uint64_t>(value)); }

int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

int32_t integer_op(Op op, int64_t a, int64_t b) {
  switch (op) {
    case Op::add: return wrap(a + b);
    case Op::sub: return wrap(a - b);
    case Op::mul: return wrap(a * b);
    case Op::div: return wrap(floor_divide(a, b));
    case Op::modulo: return b == 0 ? 0 : wrap(a - floor_divide(a, b) * b);
    case Op::negate: return wrap(-a);
    case Op::absolute: return wrap(a < 0 ? -a : a);
    case Op::minimum: return wrap(a < b ? a : b);
    default: return wrap(a > b ? a : b);  // maximum
  }
}

double real_op(Op op, double a, double b) {
  switch (op) {
    case Op::add: return a + b;
    case Op::sub: return a - b;
    case Op::mul: return a * b;
    case Op::div: return a / b;
    case Op::negate: return -a;
    case Op::absolute: return std::fabs(a);
    case Op::minimum: return b < a ? b : a;
    case Op::maximum: return a < b ? b : a;
    case Op::exp: return std::exp(a);
    case Op::log: return std::log(a);
    case Op::tanh: return std::tanh(a);
    default: return std::sqrt(a);
  }
}

template <typename T>
bool compare(Op op, T a, T b) {
  switch (op) {
    case Op::less: return a < b;
    case Op::less_equal: return a <= b;
    case Op::equal: return a == b;
    default: return a != b;
  }
}

// Heads beyond the largest power of two take every other slope of twice as many heads.
double alibi_slope(int32_t head, int32_t num_heads) {
  if (num_heads < 1) return 0;
  const auto power = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(num_heads)));
  const double exponent = head < power ? -8.0 * (head + 1.0) / power
                                       : -4.0 * (2.0 * (head - power) + 1.0) / power;
  return std::exp2(exponent);
}

}  // namespace

Value apply(Op op, ValueType operand, ValueType type, const Value* v) {
  switch (op) {
    case Op::to_integer: return {v[0].integer, 0};
    case Op::to_real: return {0, static_cast<double>(v[0].integer)};
    case Op::less:
    case Op::less_equal:
    case Op::equal:
    case Op::not_equal:
      return {operand == ValueType::real ? compare(op, v[0].real, v[1].real)
                                         : compare(op, v[0].integer, v[1].integer),
              0};
    case Op::logical_and: return {v[0].integer & v[1].integer, 0};
    case Op::logical_or: return {v[0].integer | v[1].integer, 0};
    case Op::logical_not: return {!v[0].integer, 0};
    case Op::select: return v[0].integer ? v[1] : v[2];
    case Op::alibi_slope: return {0, alibi_slope(v[0].integer, v[1].integer)};
    default: break;
  }
  if (type == ValueType::real) return {0, real_op(op, v[0].real, v[1].real)};
  return {integer_op(op, v[0].integer, v[1].integer), 0};
}

Value evaluate(const Expression& expression, const Cell& cell) {
  std::vector<Value> values;
  values.reserve(expression.nodes.size());
  for (const Node& node : expression.nodes) {
    switch (node.op) {
      case Op::constant: values.push_back({node.integer, node.real}); continue;
      case Op::q_idx: values.push_back({cell.q_idx, 0}); continue;
      case Op::kv_idx: values.push_back({cell.kv_idx, 0}); continue;
      case Op::request: values.push_back({cell.request, 0}); continue;
      case Op::head: values.push_back({cell.head, 0}); continue;
      case Op::q_len: values.push_back({cell.q_len, 0}); continue;
      case Op::kv_len: values.push_back({cell.kv_len, 0}); continue;
      case Op::num_heads: values.push_back({cell.num_heads, 0}); continue;
      case Op::head_dim: values.push_back({cell.head_dim, 0}); continue;
      case Op::score: values.push_back({0, cell.score}); continue;
      default: break;
    }
    const Value operands[] = {values[node.a], values[node.b], values[node.c]};
    values.push_back(apply(node.op, expression.nodes[node.a].type, node.type, operands));
  }
  return values.back();
}

}  // namespace warpweave::mods
