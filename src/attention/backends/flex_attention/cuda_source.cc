#include "attention/backends/flex_attention/cuda_source.h"

#include <fmt/format.h>

#include <bit>
#include <cstdint>

namespace warpweave::flex_attention {
namespace {

using mods::Node;
using mods::Op;
using mods::ValueType;

constexpr const char* kCellText = R"(
typedef struct ModCell {
  int q_idx, request, head, q_len, kv_len, num_heads;
} ModCell;

INLINE int mod_divide(int a, int b) {
  if (b == 0) return 0;
  if (b == -1) return (int)(0u - (u32)a);
  const int quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}
INLINE int mod_modulo(int a, int b) {
  if (b == 0 || b == -1) return 0;
  const int rest = a % b;
  return rest != 0 && (a < 0) != (b < 0) ? rest + b : rest;
}
INLINE float mod_alibi_slope(int head, int num_heads) {
  if (num_heads < 1) return 0.0f;
  int power = 1;
  while (power <= num_heads / 2) power *= 2;
  const float exponent = head < power ? -8.0f * (head + 1.0f) / power
                                      : -4.0f * (2.0f * (head - power) + 1.0f) / power;
  return exp2f(exponent);
}
)";

constexpr const char* kSpanText = R"(
typedef struct ModBox {
  int q_low, q_high, kv_low, kv_high, head_low, head_high, request, q_len, kv_len, num_heads;
} ModBox;
typedef struct ModSpan {
  long long low, high;   // inclusive
} ModSpan;

INLINE long long mod_least(long long a, long long b) { return a < b ? a : b; }
INLINE long long mod_most(long long a, long long b) { return a > b ? a : b; }
INLINE long long mod_size(long long a) { return a < 0 ? -a : a; }
INLINE ModSpan span_of(long long low, long long high) {
  const ModSpan span = {low, high};
  return span;
}
// A sum or product that may wrap around may be anything.
INLINE ModSpan span_wrap(long long low, long long high) {
  return low < -2147483648ll || high > 2147483647ll ? span_of(-2147483648ll, 2147483647ll) : span_of(low, high);
}
INLINE ModSpan span_join(ModSpan a, ModSpan b) { return span_of(mod_least(a.low, b.low), mod_most(a.high, b.high)); }
INLINE ModSpan span_add(ModSpan a, ModSpan b) { return span_wrap(a.low + b.low, a.high + b.high); }
INLINE ModSpan span_sub(ModSpan a, ModSpan b) { return span_wrap(a.low - b.high, a.high - b.low); }
INLINE ModSpan span_negate(ModSpan a) { return span_wrap(-a.high, -a.low); }
INLINE ModSpan span_mul(ModSpan a, ModSpan b) {
  const long long w = a.low * b.low, x = a.low * b.high, y = a.high * b.low, z = a.high * b.high;
  return span_wrap(mod_least(mod_least(w, x), mod_least(y, z)), mod_most(mod_most(w, x), mod_most(y, z)));
}
INLINE long long mod_floor(long long a, long long b) {
  const long long quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0));
}
INLINE ModSpan span_divide(ModSpan a, ModSpan b) {
  const long long size = mod_most(mod_size(a.low), mod_size(a.high));
  if (b.low <= 0 && b.high >= 0) return span_wrap(-size, size);
  const long long w = mod_floor(a.low, b.low), x = mod_floor(a.low, b.high), y = mod_floor(a.high, b.low),
                  z = mod_floor(a.high, b.high);
  return span_wrap(mod_least(mod_least(w, x), mod_least(y, z)), mod_most(mod_most(w, x), mod_most(y, z)));
}
INLINE ModSpan span_modulo(ModSpan a, ModSpan b) {
  const long long limit = mod_most(1, mod_most(mod_size(b.low), mod_size(b.high))) - 1;
  if (b.low == b.high && b.low > 0) {
    const long long first = mod_floor(a.low, b.low);
    if (first == mod_floor(a.high, b.low)) return span_of(a.low - first * b.low, a.high - first * b.low);
  }
  return span_of(b.low > 0 ? 0 : -limit, b.high < 0 ? 0 : limit);
}
INLINE ModSpan span_absolute(ModSpan a) {
  const long long low = mod_size(a.low), high = mod_size(a.high);
  return span_wrap(a.low <= 0 && a.high >= 0 ? 0 : mod_least(low, high), mod_most(low, high));
}
INLINE ModSpan span_minimum(ModSpan a, ModSpan b) { return span_of(mod_least(a.low, b.low), mod_least(a.high, b.high)); }
INLINE ModSpan span_maximum(ModSpan a, ModSpan b) { return span_of(mod_most(a.low, b.low), mod_most(a.high, b.high)); }
INLINE ModSpan span_less(ModSpan a, ModSpan b) { return span_of(a.high < b.low, a.low < b.high); }
INLINE ModSpan span_less_equal(ModSpan a, ModSpan b) { return span_of(a.high <= b.low, a.low <= b.high); }
INLINE ModSpan span_equal(ModSpan a, ModSpan b) {
  return span_of(a.low == a.high && b.low == b.high && a.low == b.low, a.low <= b.high && b.low <= a.high);
}
INLINE ModSpan span_not(ModSpan a) { return span_of(1 - a.high, 1 - a.low); }
INLINE ModSpan span_and(ModSpan a, ModSpan b) { return span_of(a.low & b.low, a.high & b.high); }
INLINE ModSpan span_or(ModSpan a, ModSpan b) { return span_of(a.low | b.low, a.high | b.high); }
INLINE ModSpan span_select(ModSpan c, ModSpan a, ModSpan b) { return c.low ? a : !c.high ? b : span_join(a, b); }
)";

std::string constant(const Node& node) {
  if (node.type == ValueType::real) {
    return fmt::format("AS_F32(0x{:08x}u)", std::bit_cast<uint32_t>(static_cast<float>(node.real)));
  }
  return node.integer == INT32_MIN ? "(-2147483647 - 1)" : fmt::format("{}", node.integer);
}

std::string variable(Op op) {
  switch (op) {
    case Op::q_idx: return "c.q_idx";
    case Op::kv_idx: return "kv_idx";
    case Op::request: return "c.request";
    case Op::head: return "c.head";
    case Op::q_len: return "c.q_len";
    case Op::kv_len: return "c.kv_len";
    case Op::num_heads: return "c.num_heads";
    case Op::head_dim: return "DK";
    default: return "score";
  }
}

// One operation on values named a, b and c.
std::string value_of(const Node& node, const std::string& a, const std::string& b, const std::string& c) {
  const bool real = node.type == ValueType::real;
  const auto wrapped = [&](char op) { return fmt::format("(int)((u32){} {} (u32){})", a, op, b); };
  switch (node.op) {
    case Op::to_integer: return a;
    case Op::to_real: return "(float)" + a;
    case Op::add: return real ? a + " + " + b : wrapped('+');
    case Op::sub: return real ? a + " - " + b : wrapped('-');
    case Op::mul: return real ? a + " * " + b : wrapped('*');
    case Op::div: return real ? a + " / " + b : fmt::format("mod_divide({}, {})", a, b);
    case Op::modulo: return fmt::format("mod_modulo({}, {})", a, b);
    case Op::negate: return real ? "-" + a : fmt::format("(int)(0u - (u32){})", a);
    case Op::absolute:
      return real ? fmt::format("fabsf({})", a) : fmt::format("{0} < 0 ? (int)(0u - (u32){0}) : {0}", a);
    case Op::minimum: return fmt::format("{1} < {0} ? {1} : {0}", a, b);
    case Op::maximum: return fmt::format("{0} < {1} ? {1} : {0}", a, b);
    case Op::less: return a + " < " + b;
    case Op::less_equal: return a + " <= " + b;
    case Op::equal: return a + " == " + b;
    case Op::not_equal: return a + " != " + b;
    case Op::logical_and: return a + " & " + b;
    case Op::logical_or: return a + " | " + b;
    case Op::logical_not: return "!" + a;
    case Op::select: return a + " ? " + b + " : " + c;
    case Op::exp: return fmt::format("expf({})", a);
    case Op::log: return fmt::format("logf({})", a);
    case Op::tanh: return fmt::format("tanhf({})", a);
    case Op::sqrt: return fmt::format("sqrtf({})", a);
    default: return fmt::format("mod_alibi_slope({}, {})", a, b);
  }
}

std::string body(const mods::Expression& expression) {
  std::string text;
  for (size_t i = 0; i < expression.nodes.size(); ++i) {
    const Node& node = expression.nodes[i];
    const auto name = [](uint16_t part) { return fmt::format("v{}", part); };
    const std::string value = node.op == Op::constant ? constant(node)
                              : mods::operand_count(node.op) == 0
                                  ? variable(node.op)
                                  : value_of(node, name(node.a), name(node.b), name(node.c));
    text += fmt::format("  const {} v{} = {};\n", node.type == ValueType::real ? "float" : "int", i, value);
  }
  return text + fmt::format("  return v{};\n", expression.nodes.size() - 1);
}

const char* span_function(Op op) {
  switch (op) {
    case Op::add: return "span_add";
    case Op::sub: return "span_sub";
    case Op::mul: return "span_mul";
    case Op::div: return "span_divide";
    case Op::modulo: return "span_modulo";
    case Op::minimum: return "span_minimum";
    case Op::maximum: return "span_maximum";
    case Op::less: return "span_less";
    case Op::less_equal: return "span_less_equal";
    case Op::equal:
    case Op::not_equal: return "span_equal";
    case Op::logical_and: return "span_and";
    default: return "span_or";
  }
}

std::string span_variable(Op op) {
  switch (op) {
    case Op::q_idx: return "span_of(box.q_low, box.q_high)";
    case Op::kv_idx: return "span_of(box.kv_low, box.kv_high)";
    case Op::head: return "span_of(box.head_low, box.head_high)";
    case Op::request: return "span_of(box.request, box.request)";
    case Op::q_len: return "span_of(box.q_len, box.q_len)";
    case Op::kv_len: return "span_of(box.kv_len, box.kv_len)";
    case Op::num_heads: return "span_of(box.num_heads, box.num_heads)";
    default: return "span_of(DK, DK)";
  }
}

// The span of an integer or boolean node whose operands are no reals.
std::string span_of_node(const Node& node) {
  const std::string a = fmt::format("s{}", node.a), b = fmt::format("s{}", node.b);
  switch (node.op) {
    case Op::constant: return fmt::format("span_of({0}, {0})", constant(node));
    case Op::to_integer: return a;
    case Op::negate: return fmt::format("span_negate({})", a);
    case Op::absolute: return fmt::format("span_absolute({})", a);
    case Op::logical_not: return fmt::format("span_not({})", a);
    case Op::select: return fmt::format("span_select({}, {}, s{})", a, b, node.c);
    case Op::not_equal: return fmt::format("span_not(span_equal({}, {}))", a, b);
    default: break;
  }
  if (mods::operand_count(node.op) == 0) return span_variable(node.op);
  return fmt::format("{}({}, {})", span_function(node.op), a, b);
}

std::string coverage_body(const mods::Expression& mask) {
  std::string text;
  for (size_t i = 0; i < mask.nodes.size(); ++i) {
    const Node& node = mask.nodes[i];
    if (node.type == ValueType::real) continue;
    const bool compares_reals =
        mods::operand_count(node.op) == 2 && mask.nodes[node.a].type == ValueType::real;
    text += fmt::format("  const ModSpan s{} = {};\n", i, compares_reals ? "span_of(0, 1)" : span_of_node(node));
  }
  const size_t last = mask.nodes.size() - 1;
  return text + fmt::format("  return s{0}.low ? 2 : s{0}.high ? 1 : 0;\n", last);
}

}  // namespace

CudaSource cuda_source(const mods::Modifiers& modifiers) {
  CudaSource source;
  if (modifiers.empty()) return source;
  source.text = kCellText;
  if (!modifiers.score.empty()) {
    source.text += "INLINE float score_mod(ModCell c, int kv_idx, float score) {\n" + body(modifiers.score) + "}\n";
    source.defines.push_back("SCORE_MOD");
  }
  if (!modifiers.mask.empty()) {
    source.text += "INLINE int mask_mod(ModCell c, int kv_idx) {\n" + body(modifiers.mask) + "}\n";
    source.text += kSpanText;
    source.text += "INLINE int mask_coverage(ModBox box) {\n" + coverage_body(modifiers.mask) + "}\n";
    source.defines.push_back("MASK_MOD");
  }
  return source;
}

}  // namespace warpweave::flex_attention
