#include "attention/mods/named.h"

#include <string>

namespace warpweave::mods {
namespace {

using Part = Builder::Part;
using Parts = std::span<const Part>;

constexpr int kMaxDocuments = 128;

bool wants_integer(Builder& b, Part part, const char* usage) {
  if (b.type(part) == ValueType::integer) return true;
  b.fail(std::string(usage) + " takes integers, not " + type_name(b.type(part)));
  return false;
}

Part causal(Builder& b, Parts) {
  return b.binary(Op::less_equal, b.variable(Op::kv_idx), b.variable(Op::q_idx));
}

// The row itself and the n - 1 tokens before it.
Part window(Builder& b, Parts arguments) {
  if (!wants_integer(b, arguments[0], "window(n)")) return 0;
  const Part distance = b.binary(Op::sub, b.variable(Op::q_idx), b.variable(Op::kv_idx));
  return b.binary(Op::logical_and, causal(b, {}), b.binary(Op::less, distance, arguments[0]));
}

Part prefix_lm(Builder& b, Parts arguments) {
  if (!wants_integer(b, arguments[0], "prefix_lm(n)")) return 0;
  return b.binary(Op::logical_or, causal(b, {}),
                  b.binary(Op::less, b.variable(Op::kv_idx), arguments[0]));
}

Part chunked(Builder& b, Parts arguments) {
  if (!wants_integer(b, arguments[0], "chunked(n)")) return 0;
  const Part q = b.binary(Op::div, b.variable(Op::q_idx), arguments[0]);
  const Part kv = b.binary(Op::div, b.variable(Op::kv_idx), arguments[0]);
  return b.binary(Op::logical_and, causal(b, {}), b.binary(Op::equal, q, kv));
}

// How many of the documents' first positions lie at or before `position`.
Part document_of(Builder& b, Part position, Parts starts) {
  Part count = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    const Part passed = b.unary(Op::to_integer, b.binary(Op::less_equal, starts[i], position));
    count = i == 0 ? passed : b.binary(Op::add, count, passed);
  }
  return count;
}

Part document(Builder& b, Parts starts) {
  for (size_t i = 0; i < starts.size(); ++i) {
    if (!wants_integer(b, starts[i], "document(start, ...)")) return 0;
    const Node &node = b.node(starts[i]), &before = b.node(starts[i > 0 ? i - 1 : 0]);
    if (node.op != Op::constant || node.integer < 1 || (i > 0 && node.integer <= before.integer)) {
      b.fail("document(start, ...) takes ascending positive constants: where each document after "
             "the first begins");
      return 0;
    }
  }
  return b.binary(Op::equal, document_of(b, b.variable(Op::q_idx), starts),
                  document_of(b, b.variable(Op::kv_idx), starts));
}

Part score_or(Builder& b, Parts arguments, size_t index) {
  return arguments.size() > index ? b.as_real(arguments[index]) : b.variable(Op::score);
}

Part softcap(Builder& b, Parts arguments) {
  const Part cap = b.as_real(arguments[0]);
  const Part x = score_or(b, arguments, 1);
  return b.binary(Op::mul, cap, b.unary(Op::tanh, b.binary(Op::div, x, cap)));
}

Part alibi(Builder& b, Parts arguments) {
  const Part slope = b.binary(Op::alibi_slope, b.variable(Op::head), b.variable(Op::num_heads));
  const Part distance = b.binary(Op::sub, b.variable(Op::kv_idx), b.variable(Op::q_idx));
  return b.binary(Op::add, score_or(b, arguments, 0),
                  b.binary(Op::mul, slope, b.as_real(distance)));
}

constexpr NamedModifier kNamed[] = {
    {"causal", "causal", 0, 0, false, causal},
    {"window", "window(n)", 1, 1, false, window},
    {"chunked", "chunked(n)", 1, 1, false, chunked},
    {"prefix_lm", "prefix_lm(n)", 1, 1, false, prefix_lm},
    {"document", "document(start, ...)", 1, kMaxDocuments, false, document},
    {"alibi", "alibi or alibi(x)", 0, 1, true, alibi},
    {"softcap", "softcap(cap) or softcap(cap, x)", 1, 2, true, softcap},
};

}  // namespace

std::span<const NamedModifier> named_modifiers() { return kNamed; }

const NamedModifier* find_named_modifier(std::string_view name) {
  for (const NamedModifier& named : kNamed) {
    if (named.name == name) return &named;
  }
  return nullptr;
}

}  // namespace warpweave::mods
