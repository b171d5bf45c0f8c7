#include "attention/mods/bounds.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <tuple>

namespace warpweave::mods {
namespace {

constexpr int64_t kIntMin = std::numeric_limits<int32_t>::min();
constexpr int64_t kIntMax = std::numeric_limits<int32_t>::max();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFloatMax = 3.4e38;
// One f32 operation errs by at most this; exp, log and tanh by kFunctionError.
constexpr double kRoundoff = 1e-6, kFunctionError = 1e-5, kTiny = 1e-37;

int64_t floor_divide(int64_t a, int64_t b) {
  const int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}

}  // namespace

MaskBounds::MaskBounds(const Expression& expression)
    : expression_(expression), bounds_(expression.nodes.size()) {}

Coverage MaskBounds::classify(const Box& box) { return run(box, {box.q_idx, box.kv_idx, false}); }

Coverage MaskBounds::run(const Box& box, const Positions& positions) {
  positions_ = positions;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    const Node& node = expression_.nodes[i];
    if (node.op == Op::constant) {
      bounds_[i] = {node.integer, node.integer, node.real, node.real, std::isnan(node.real),
                    node.type == ValueType::integer, 0, 0, node.integer};
    } else if (operand_count(node.op) == 0) {
      bounds_[i] = variable(node.op, box);
    } else {
      bounds_[i] = of(node);
    }
  }
  if (bounds_.back().high == 0) return Coverage::empty;
  return bounds_.back().low == 1 ? Coverage::full : Coverage::partial;
}

MaskBounds::Bound MaskBounds::from_affine(int64_t by_x, int64_t by_y, int64_t offset) const {
  const auto [low_x, high_x] = std::minmax({by_x * positions_.x.first, by_x * positions_.x.last});
  const auto [low_y, high_y] = std::minmax({by_y * positions_.y.first, by_y * positions_.y.last});
  return {offset + low_x + low_y, offset + high_x + high_y, 0, 0, false, true, by_x, by_y, offset};
}

MaskBounds::Bound MaskBounds::variable(Op op, const Box& box) const {
  Span span;
  switch (op) {
    case Op::q_idx: return from_affine(1, 0, 0);
    case Op::kv_idx: return from_affine(positions_.relative ? 1 : 0, 1, 0);
    case Op::request: span = box.request; break;
    case Op::head: span = box.head; break;
    case Op::q_len: span = box.q_len; break;
    case Op::kv_len: span = box.kv_len; break;
    case Op::num_heads: span = box.num_heads; break;
    case Op::head_dim: span = box.head_dim; break;
    default: return {0, 0, -kInfinity, kInfinity, true};  // score
  }
  return {span.first, span.last, 0, 0, false, span.first == span.last, 0, 0, span.first};
}

MaskBounds::Bound MaskBounds::join(const Bound& a, const Bound& b) {
  return {std::min(a.low, b.low), std::max(a.high, b.high), std::min(a.real_low, b.real_low),
          std::max(a.real_high, b.real_high), a.may_be_nan || b.may_be_nan};
}

MaskBounds::Bound MaskBounds::of(const Node& node) const {
  const Bound& a = bounds_[node.a];
  const Bound& b = bounds_[node.b];
  const ValueType operand = expression_.nodes[node.a].type;
  switch (node.op) {
    case Op::to_integer: return {a.low, a.high};
    case Op::to_real: {
      const auto rounded = [](int64_t v, int sign) {
        const double exact = static_cast<double>(v);
        return std::llabs(v) <= 1 << 24 ? exact : exact + sign * std::fabs(exact) * kRoundoff;
      };
      return {0, 0, rounded(a.low, -1), rounded(a.high, 1)};
    }
    case Op::less:
    case Op::less_equal:
    case Op::equal:
    case Op::not_equal: return compare(node.op, operand, a, b);
    case Op::logical_and: return {a.low & b.low, a.high & b.high};
    case Op::logical_or: return {a.low | b.low, a.high | b.high};
    case Op::logical_not: return {1 - a.high, 1 - a.low};
    case Op::select:
      if (a.low == 1) return b;
      if (a.high == 0) return bounds_[node.c];
      return join(b, bounds_[node.c]);
    case Op::alibi_slope: return {0, 0, 0, kInfinity};
    default: break;
  }
  if (node.type == ValueType::real) return real_op(node.op, a, b);
  Bound result = integer_op(node.op, a, b);
  const Bound affine = affine_op(node.op, a, b);
  if (affine.affine) {
    result = affine;
  }
  if (result.low < kIntMin || result.high > kIntMax) return {kIntMin, kIntMax};  // may wrap
  return result;
}

MaskBounds::Bound MaskBounds::affine_op(Op op, const Bound& a, const Bound& b) const {
  constexpr int64_t kMaxFactor = 1 << 20;  // keeps every product here far from overflow
  Bound none;
  if (!a.affine) return none;
  int64_t by_x = a.by_x, by_y = a.by_y, offset = a.offset;
  if (op == Op::negate) {
    by_x = -by_x, by_y = -by_y, offset = -offset;
  } else if (!b.affine) {
    return none;
  } else if (op == Op::add || op == Op::sub) {
    const int sign = op == Op::add ? 1 : -1;
    by_x += sign * b.by_x, by_y += sign * b.by_y, offset += sign * b.offset;
  } else if (op == Op::mul && (b.low == b.high || a.low == a.high)) {
    const Bound& form = b.low == b.high ? a : b;
    const int64_t factor = b.low == b.high ? b.low : a.low;
    if (std::llabs(factor) > kMaxFactor) return none;
    by_x = form.by_x * factor, by_y = form.by_y * factor, offset = form.offset * factor;
  } else {
    return none;
  }
  if (std::llabs(by_x) > kMaxFactor || std::llabs(by_y) > kMaxFactor) return none;
  return from_affine(by_x, by_y, offset);
}

MaskBounds::Bound MaskBounds::integer_op(Op op, const Bound& a, const Bound& b) const {
  const auto corners = [&](auto f) -> Bound {
    const auto [low, high] = std::minmax(
        {f(a.low, b.low), f(a.low, b.high), f(a.high, b.low), f(a.high, b.high)});
    return {low, high};
  };
  const int64_t largest = std::max(std::llabs(a.low), std::llabs(a.high));
  const bool zero_divisor = b.low <= 0 && b.high >= 0;
  switch (op) {
    case Op::add: return {a.low + b.low, a.high + b.high};
    case Op::sub: return {a.low - b.high, a.high - b.low};
    case Op::mul: return corners([](int64_t x, int64_t y) { return x * y; });
    case Op::div: return zero_divisor ? Bound{-largest, largest} : corners(floor_divide);
    case Op::modulo: {
      const int64_t limit = std::max<int64_t>({std::llabs(b.low), std::llabs(b.high), 1}) - 1;
      if (b.low == b.high && b.low > 0) {
        const int64_t first = floor_divide(a.low, b.low);
        if (first == floor_divide(a.high, b.low)) return {a.low - first * b.low, a.high - first * b.low};
      }
      return {b.low > 0 ? 0 : -limit, b.high < 0 ? 0 : limit};
    }
    case Op::negate: return {-a.high, -a.low};
    case Op::absolute: {
      const bool crosses = a.low <= 0 && a.high >= 0;
      return {crosses ? 0 : std::min(std::llabs(a.low), std::llabs(a.high)), largest};
    }
    case Op::minimum: return {std::min(a.low, b.low), std::min(a.high, b.high)};
    default: return {std::max(a.low, b.low), std::max(a.high, b.high)};  // maximum
  }
}

MaskBounds::Bound MaskBounds::compare(Op op, ValueType operand, const Bound& a,
                                      const Bound& b) const {
  bool always, never;
  if (operand == ValueType::real) {
    switch (op) {
      case Op::less: always = a.real_high < b.real_low, never = a.real_low >= b.real_high; break;
      case Op::less_equal: always = a.real_high <= b.real_low, never = a.real_low > b.real_high; break;
      default:
        always = a.real_low == a.real_high && b.real_low == b.real_high && a.real_low == b.real_low;
        never = a.real_high < b.real_low || a.real_low > b.real_high;
    }
    // A comparison with NaN is false, and != is true.
    if (a.may_be_nan || b.may_be_nan) always = false;
  } else {
    int64_t low = a.low - b.high, high = a.high - b.low;  // of a - b
    if (a.affine && b.affine) {
      const Bound difference = from_affine(a.by_x - b.by_x, a.by_y - b.by_y, a.offset - b.offset);
      low = difference.low, high = difference.high;
    }
    switch (op) {
      case Op::less: always = high < 0, never = low >= 0; break;
      case Op::less_equal: always = high <= 0, never = low > 0; break;
      default: always = low == 0 && high == 0, never = low > 0 || high < 0;
    }
  }
  if (op == Op::not_equal) std::swap(always, never);
  return {always ? 1 : 0, never ? 0 : 1};
}

// exp, log, tanh and sqrt, before rounding.
MaskBounds::Bound MaskBounds::growing_op(Op op, const Bound& a) {
  const bool nan = a.may_be_nan || ((op == Op::log || op == Op::sqrt) && a.real_low < 0);
  switch (op) {
    case Op::exp:
      return {0, 0, a.real_low < -80 ? 0 : std::exp(a.real_low), a.real_high > 85 ? kInfinity : std::exp(a.real_high),
              nan};
    case Op::log:
      return {0, 0, a.real_low < 1e-30 ? -kInfinity : std::log(a.real_low) - kFunctionError,
              a.real_high < 1e-30 ? 0 : std::log(a.real_high) + kFunctionError, nan};
    case Op::tanh: return {0, 0, std::tanh(a.real_low), std::tanh(a.real_high), nan};
    default:  // sqrt
      return {0, 0, a.real_low > 0 ? std::sqrt(a.real_low) : 0, a.real_high > 0 ? std::sqrt(a.real_high) : 0, nan};
  }
}

MaskBounds::Bound MaskBounds::real_op(Op op, const Bound& a, const Bound& b) {
  const bool binary = operand_count(op) == 2;
  const auto infinite = [](const Bound& x) { return std::isinf(x.real_low) || std::isinf(x.real_high); };
  bool nan = a.may_be_nan || (binary && b.may_be_nan);
  double low = -kInfinity, high = kInfinity;
  const auto corners = [&](auto f) {
    if (infinite(a) || infinite(b)) {
      nan = true;
      return;
    }
    std::tie(low, high) = std::minmax({f(a.real_low, b.real_low), f(a.real_low, b.real_high),
                                       f(a.real_high, b.real_low), f(a.real_high, b.real_high)});
  };
  double error = kRoundoff;
  switch (op) {
    case Op::add: corners([](double x, double y) { return x + y; }); break;
    case Op::sub: corners([](double x, double y) { return x - y; }); break;
    case Op::mul: corners([](double x, double y) { return x * y; }); break;
    case Op::div:
      if (b.real_low <= 0 && b.real_high >= 0) {
        nan = true;
      } else {
        corners([](double x, double y) { return x / y; });
      }
      break;
    case Op::negate: return {0, 0, -a.real_high, -a.real_low, nan};
    case Op::absolute: {
      const double x = std::fabs(a.real_low), y = std::fabs(a.real_high);
      const bool crosses = a.real_low <= 0 && a.real_high >= 0;
      return {0, 0, crosses ? 0 : std::min(x, y), std::max(x, y), nan};
    }
    // With a NaN on one side kernels may return the other.
    case Op::minimum:
    case Op::maximum: {
      if (nan) return {0, 0, -kInfinity, kInfinity, true};
      const auto pick = [op](double x, double y) {
        return op == Op::minimum ? std::min(x, y) : std::max(x, y);
      };
      return {0, 0, pick(a.real_low, b.real_low), pick(a.real_high, b.real_high), false};
    }
    default: {
      const Bound grown = growing_op(op, a);
      low = grown.real_low, high = grown.real_high, nan = grown.may_be_nan;
      if (op != Op::sqrt) error = kFunctionError;
    }
  }
  low -= std::fabs(low) * error + kTiny;
  high += std::fabs(high) * error + kTiny;
  // Beyond f32 lies infinity.
  if (low < -kFloatMax) low = -kInfinity;
  if (high > kFloatMax) high = kInfinity;
  if (low > kFloatMax) low = kFloatMax;
  if (high < -kFloatMax) high = -kFloatMax;
  return {0, 0, low, high, nan};
}

bool never_sees_future(const Expression& mask) {
  constexpr int32_t kFar = 1 << 28;  // longer than any context; sums of two stay 32-bit
  MaskBounds bounds(mask);
  const Span lengths = {0, kFar};
  const Box box = {.q_idx = {}, .kv_idx = {}, .request = lengths, .head = {0, 1 << 20},
                   .q_len = lengths, .kv_len = lengths, .num_heads = {1, 1 << 20},
                   .head_dim = {1, 1 << 20}};
  return bounds.run(box, {{0, kFar}, {1, kFar}, true}) == Coverage::empty;
}

}  // namespace warpweave::mods
