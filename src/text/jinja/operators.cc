#include <algorithm>
#include <cmath>

#include "text/jinja/format.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace warpweave::jinja {

namespace {

[[noreturn]] void bad_operands(std::string_view op, const Value& a, const Value& b) {
  throw Error("unsupported operand types for " + std::string(op) + ": '" + a.type_name() +
              "' and '" + b.type_name() + "'");
}

[[noreturn]] void overflow(std::string_view op) {
  throw Error("the result of " + std::string(op) + " is no integer of at most 64 bits");
}

Value repeat(Runtime& runtime, const Value& sequence, const Value& times) {
  const size_t count = static_cast<size_t>(std::max<int64_t>(0, times.as_integer()));
  if (sequence.is(Kind::string)) {
    const std::string& unit = sequence.string();
    runtime.charge_bytes(count, unit.size());
    if (unit.size() == 1) return Value(std::string(count, unit[0]));
    if (unit.empty()) return Value(std::string());
    runtime.charge(count / 4);
    std::string out;
    out.reserve(count * unit.size());
    for (size_t i = 0; i < count; ++i) out += unit;
    return Value(std::move(out));
  }
  const auto& items = sequence.list_items();
  if (count > static_cast<size_t>(kMaxRange) || items.size() > static_cast<size_t>(kMaxRange)) {
    throw Error("a repeated list would be too long");
  }
  runtime.charge(count * items.size());
  std::vector<Value> out;
  for (size_t i = 0; i < count; ++i) out.insert(out.end(), items.begin(), items.end());
  return sequence.is_tuple() ? Value::tuple(std::move(out)) : Value::list(std::move(out));
}

Value add_sequences(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is(Kind::string)) {
    runtime.charge_bytes(a.string().size() + b.string().size());
    return Value(a.string() + b.string());
  }
  runtime.charge(a.list_items().size() + b.list_items().size());
  std::vector<Value> out = a.list_items();
  out.insert(out.end(), b.list_items().begin(), b.list_items().end());
  return a.is_tuple() ? Value::tuple(std::move(out)) : Value::list(std::move(out));
}

// Python's // and %: rounded towards minus infinity.
Value floor_divide(int64_t a, int64_t b, bool want_remainder) {
  if (b == 0) throw Error("integer division or modulo by zero");
  if (b == -1) {
    int64_t negated = 0;
    if (want_remainder) return Value(int64_t{0});
    if (__builtin_sub_overflow(int64_t{0}, a, &negated)) overflow("//");
    return Value(negated);
  }
  int64_t quotient = a / b;
  int64_t remainder = a % b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    --quotient;
    remainder += b;
  }
  return Value(want_remainder ? remainder : quotient);
}

Value integer_power(int64_t base, int64_t exponent) {
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) overflow("**");
    if (base == 0 || base == 1) break;
    if (base == -1) return Value(exponent % 2 == 0 ? int64_t{1} : int64_t{-1});
  }
  return Value(result);
}

Value integer_arithmetic(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflowed = false;
  if (op == "+") {
    overflowed = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflowed = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflowed = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    return integer_power(a, b);
  } else {
    return floor_divide(a, b, op == "%");
  }
  if (overflowed) overflow(op);
  return Value(result);
}

Value real_arithmetic(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  if (b == 0) throw Error("float division by zero");
  if (op == "/") return Value(a / b);
  if (op == "//") return Value(std::floor(a / b));
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return Value(remainder);
}

bool contains(Runtime& runtime, const Value& item, const Value& container) {
  switch (container.kind()) {
    case Kind::undefined: return false;
    case Kind::string:
      require_defined(item);
      if (!item.is(Kind::string)) {
        throw Error("'in <string>' needs a string on its left, got '" + item.type_name() + "'");
      }
      runtime.charge_scan(container.string());
      runtime.charge_scan(item.string());
      return find_text(container.string(), item.string()) != std::string::npos;
    case Kind::dict: return find_item(runtime, container.dict(), item) != nullptr;
    case Kind::list: return holds(runtime, container.list_items(), item);
    default: throw Error("argument of type '" + container.type_name() + "' is not iterable");
  }
}

}  // namespace

Value arithmetic(Runtime& runtime, std::string_view op, const Value& a, const Value& b) {
  require_defined(a);
  if (op == "%" && a.is(Kind::string)) return percent_format(runtime, a.string(), b);
  require_defined(b);
  if (a.is_number() && b.is_number()) {
    const bool negative_power = op == "**" && b.is_integral() && b.as_integer() < 0;
    if (a.is_integral() && b.is_integral() && op != "/" && !negative_power) {
      return integer_arithmetic(op, a.as_integer(), b.as_integer());
    }
    return real_arithmetic(op, a.as_real(), b.as_real());
  }
  auto is_sequence = [](const Value& v) { return v.is(Kind::string) || v.is(Kind::list); };
  if (op == "+" && is_sequence(a) && a.kind() == b.kind() && a.is_tuple() == b.is_tuple()) {
    return add_sequences(runtime, a, b);
  }
  if (op == "*" && is_sequence(a) && b.is_integral()) return repeat(runtime, a, b);
  if (op == "*" && is_sequence(b) && a.is_integral()) return repeat(runtime, b, a);
  bad_operands(op, a, b);
}

Value negate(const Value& value) {
  require_defined(value);
  if (value.is(Kind::real)) return Value(-value.real());
  if (!value.is_integral()) throw Error("bad operand type for unary -: '" + value.type_name() + "'");
  return integer_arithmetic("-", 0, value.as_integer());
}

bool compare(Runtime& runtime, std::string_view op, const Value& a, const Value& b) {
  if (op == "in") return contains(runtime, a, b);
  if (op == "not in") return !contains(runtime, a, b);
  runtime.charge_equal(a, b);
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  runtime.charge_less(a, b);
  if (op == "<") return less(a, b);
  if (op == ">") return less(b, a);
  // For floats a <= b is not !(b < a) when one is NaN.
  return op == "<=" ? less(a, b) || equal(a, b) : less(b, a) || equal(a, b);
}

}  // namespace warpweave::jinja
