// Recursive descent over the grammar of docs/flex-attention.md, straight into the builder.
#include "attention/mods/parse.h"

#include <algorithm>

#include "attention/mods/builder.h"
#include "attention/mods/lexer.h"
#include "attention/mods/named.h"

namespace warpweave::mods {
namespace {

using Part = Builder::Part;

struct Variable {
  std::string_view name;
  Op op;
};
constexpr Variable kVariables[] = {
    {"q_idx", Op::q_idx},   {"kv_idx", Op::kv_idx},       {"b", Op::request},
    {"h", Op::head},        {"q_len", Op::q_len},         {"kv_len", Op::kv_len},
    {"score", Op::score},   {"num_heads", Op::num_heads}, {"head_dim", Op::head_dim},
};

struct Function {
  std::string_view name;
  Op op;
  int min_arguments, max_arguments;
};
constexpr Function kFunctions[] = {
    {"min", Op::minimum, 2, 16}, {"max", Op::maximum, 2, 16}, {"abs", Op::absolute, 1, 1},
    {"exp", Op::exp, 1, 1},      {"log", Op::log, 1, 1},      {"tanh", Op::tanh, 1, 1},
    {"sqrt", Op::sqrt, 1, 1},    {"float", Op::to_real, 1, 1}, {"int", Op::to_integer, 1, 1},
    {"alibi_slope", Op::alibi_slope, 1, 1},
};

template <typename Table>
const auto* find_in(const Table& table, std::string_view name) {
  const auto found = std::find_if(std::begin(table), std::end(table),
                                  [name](const auto& row) { return row.name == name; });
  return found == std::end(table) ? nullptr : &*found;
}

class Parser {
 public:
  Parser(std::string_view text, const char* what, std::span<const Parameter> parameters,
         bool allow_score)
      : lexer_(text), builder_(what, std::string(text)), parameters_(parameters),
        allow_score_(allow_score) {
    advance();
  }

  Builder& builder() { return builder_; }
  Part parse() {
    const Part root = expression();
    if (ok() && token_.kind != Token::Kind::end) {
      fail("expected an operator or the end, got " + token_.shown());
    }
    return root;
  }

 private:
  bool ok() const { return builder_.status().ok(); }
  void fail(const std::string& why) {
    builder_.at(token_.column);
    builder_.fail(why);
  }
  void advance() {
    token_ = lexer_.next();
    if (token_.kind == Token::Kind::bad) {
      fail(token_.shown() + ": " + token_.problem);
      token_.kind = Token::Kind::end;
    }
  }
  bool take(std::string_view symbol) {
    if (!ok() || !token_.is(symbol)) return false;
    operator_column_ = token_.column;
    advance();
    return true;
  }
  void expect(std::string_view symbol) {
    if (ok() && !take(symbol)) {
      fail("expected '" + std::string(symbol) + "', got " + token_.shown());
    }
  }
  Part binary(Op op, size_t column, Part a, Part b) {
    builder_.at(column);
    return builder_.binary(op, a, b);
  }

  Part expression();
  Part any_of();
  Part all_of();
  Part comparison();
  Part sum();
  Part term();
  Part unary();
  Part primary();
  Part named(std::string_view name, size_t column);
  std::vector<Part> arguments();
  Part call(std::string_view name, size_t column);
  bool check_count(std::string_view usage, size_t count, int min, int max, size_t column);

  Lexer lexer_;
  Builder builder_;
  std::span<const Parameter> parameters_;
  bool allow_score_;
  Token token_;
  size_t operator_column_ = 1;
  int depth_ = 0;
};

Part Parser::expression() {
  if (++depth_ > kMaxDepth) {
    fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    return 0;
  }
  Part result = any_of();
  if (take("?")) {
    const size_t column = operator_column_;
    const Part yes = expression();
    expect(":");
    const Part no = expression();
    builder_.at(column);
    result = builder_.select(result, yes, no);
  }
  --depth_;
  return result;
}

Part Parser::any_of() {
  Part result = all_of();
  while (take("||")) {
    const size_t column = operator_column_;
    result = binary(Op::logical_or, column, result, all_of());
  }
  return result;
}

Part Parser::all_of() {
  Part result = comparison();
  while (take("&&")) {
    const size_t column = operator_column_;
    result = binary(Op::logical_and, column, result, comparison());
  }
  return result;
}

Part Parser::comparison() {
  struct Comparison { std::string_view symbol; Op op; bool swapped; };
  constexpr Comparison kComparisons[] = {
      {"<", Op::less, false},       {"<=", Op::less_equal, false}, {">", Op::less, true},
      {">=", Op::less_equal, true}, {"==", Op::equal, false},      {"!=", Op::not_equal, false}};
  Part result = sum();
  for (bool compared = false;; compared = true) {
    const auto* found = std::find_if(std::begin(kComparisons), std::end(kComparisons),
                                     [this](const Comparison& c) { return token_.is(c.symbol); });
    if (found == std::end(kComparisons) || !ok()) return result;
    if (compared) {
      fail("comparisons do not chain; write a < b && b < c");
      return 0;
    }
    take(found->symbol);
    const size_t column = operator_column_;
    const Part right = sum();
    result = found->swapped ? binary(found->op, column, right, result)
                            : binary(found->op, column, result, right);
  }
}

Part Parser::sum() {
  Part result = term();
  while (ok()) {
    const Op op = token_.is("+") ? Op::add : Op::sub;
    if (!take("+") && !take("-")) break;
    const size_t column = operator_column_;
    result = binary(op, column, result, term());
  }
  return result;
}

Part Parser::term() {
  Part result = unary();
  while (ok()) {
    const Op op = token_.is("*") ? Op::mul : token_.is("/") ? Op::div : Op::modulo;
    if (!take("*") && !take("/") && !take("%")) break;
    const size_t column = operator_column_;
    result = binary(op, column, result, unary());
  }
  return result;
}

Part Parser::unary() {
  const bool negate = token_.is("-");
  if (!take("-") && !take("!")) return primary();
  const size_t column = operator_column_;
  if (++depth_ > kMaxDepth) {
    fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    return 0;
  }
  const Part operand = unary();
  --depth_;
  builder_.at(column);
  return ok() ? builder_.unary(negate ? Op::negate : Op::logical_not, operand) : 0;
}

Part Parser::primary() {
  if (!ok()) return 0;
  const Token token = token_;
  builder_.at(token.column);
  switch (token.kind) {
    case Token::Kind::integer:
      advance();
      return builder_.integer(token.integer);
    case Token::Kind::real:
      advance();
      return builder_.real(token.real);
    case Token::Kind::name:
      advance();
      return named(token.text, token.column);
    default: break;
  }
  if (!take("(")) {
    fail("expected a number, a name or '(', got " + token.shown());
    return 0;
  }
  const Part result = expression();
  expect(")");
  return result;
}

Part Parser::named(std::string_view name, size_t column) {
  if (!ok()) return 0;
  if (token_.is("(")) return call(name, column);
  builder_.at(column);
  if (name == "true" || name == "false") {
    const Part zero = builder_.integer(0);
    return builder_.binary(name == "true" ? Op::equal : Op::not_equal, zero, zero);
  }
  if (const Variable* variable = find_in(kVariables, name)) {
    if (variable->op == Op::score && !allow_score_) {
      builder_.fail("a mask decides by position; 'score' is for the score modifier");
      return 0;
    }
    return builder_.variable(variable->op);
  }
  if (const Parameter* parameter = find_in(parameters_, name)) {
    return parameter->integer ? builder_.integer(static_cast<int32_t>(parameter->value))
                              : builder_.real(parameter->value);
  }
  const NamedModifier* modifier = find_named_modifier(name);
  if (modifier != nullptr && modifier->min_arguments == 0) return call(name, column);
  if (modifier != nullptr || find_in(kFunctions, name) != nullptr) {
    builder_.fail("'" + std::string(name) + "' takes arguments: " +
                  (modifier != nullptr ? std::string(modifier->usage) : std::string(name) + "(...)"));
    return 0;
  }
  std::string names;
  for (const Variable& variable : kVariables) {
    names += (names.empty() ? "" : ", ") + std::string(variable.name);
  }
  for (const NamedModifier& m : named_modifiers()) names += ", " + std::string(m.name);
  builder_.fail("unknown name '" + std::string(name.substr(0, 40)) + "'; known: " + names +
                ", and the parameters given");
  return 0;
}

std::vector<Part> Parser::arguments() {
  std::vector<Part> list;
  if (!take("(") || take(")")) return list;
  do {
    list.push_back(expression());
  } while (take(","));
  expect(")");
  return list;
}

bool Parser::check_count(std::string_view usage, size_t count, int min, int max, size_t column) {
  if (!ok()) return false;
  builder_.at(column);
  if (count >= static_cast<size_t>(min) && count <= static_cast<size_t>(max)) return true;
  builder_.fail(std::string(usage) + " got " + std::to_string(count) + " arguments");
  return false;
}

Part Parser::call(std::string_view name, size_t column) {
  const Function* function = find_in(kFunctions, name);
  const NamedModifier* modifier = find_named_modifier(name);
  if (function == nullptr && modifier == nullptr) {
    builder_.at(column);
    builder_.fail("unknown function '" + std::string(name.substr(0, 40)) + "'");
    return 0;
  }
  const std::vector<Part> parts = arguments();
  if (modifier != nullptr) {
    if (!check_count(modifier->usage, parts.size(), modifier->min_arguments,
                     modifier->max_arguments, column)) {
      return 0;
    }
    if (modifier->uses_score && !allow_score_) {
      builder_.fail("'" + std::string(name) + "' changes scores; it belongs in the score modifier");
      return 0;
    }
    return modifier->expand(builder_, parts);
  }
  if (!check_count(std::string(name) + "(...)", parts.size(), function->min_arguments,
                   function->max_arguments, column)) {
    return 0;
  }
  if (function->op == Op::alibi_slope) {
    return builder_.binary(function->op, parts[0], builder_.variable(Op::num_heads));
  }
  if (function->op == Op::to_real) return builder_.as_real(parts[0]);
  if (function->max_arguments == 1) return builder_.unary(function->op, parts[0]);
  Part result = parts[0];
  for (size_t i = 1; i < parts.size() && ok(); ++i) {
    result = builder_.binary(function->op, result, parts[i]);
  }
  return result;
}

bool reserved(std::string_view name) {
  return find_in(kVariables, name) != nullptr || find_in(kFunctions, name) != nullptr ||
         find_named_modifier(name) != nullptr || name == "true" || name == "false";
}

Status too_long(const char* what, std::string_view text) {
  return Status::invalid_argument(std::string(what) + " has " + std::to_string(text.size()) +
                                  " bytes; the limit is " + std::to_string(kMaxTextBytes));
}

}  // namespace

Result<Expression> parse_score_modifier(std::string_view text,
                                        std::span<const Parameter> parameters) {
  constexpr const char* kWhat = "score modifier";
  if (text.size() > kMaxTextBytes) return too_long(kWhat, text);
  Parser parser(text, kWhat, parameters, true);
  Part root = parser.parse();
  Builder& builder = parser.builder();
  builder.at(1);
  if (builder.status().ok() && builder.type(root) == ValueType::boolean) {
    builder.fail("the result must be a number, the new score; conditions belong in the mask");
  }
  root = builder.as_real(root);
  WW_RETURN_IF_ERROR(builder.status());
  return builder.finish(root);
}

Result<Expression> parse_mask_modifier(std::string_view text,
                                       std::span<const Parameter> parameters) {
  constexpr const char* kWhat = "mask modifier";
  if (text.size() > kMaxTextBytes) return too_long(kWhat, text);
  Parser parser(text, kWhat, parameters, false);
  const Part root = parser.parse();
  Builder& builder = parser.builder();
  builder.at(1);
  if (builder.status().ok() && builder.type(root) != ValueType::boolean) {
    builder.fail("the result must be a condition, such as kv_idx <= q_idx, not a number");
  }
  WW_RETURN_IF_ERROR(builder.status());
  return builder.finish(root);
}

Result<std::vector<Parameter>> parse_parameters(std::string_view text) {
  constexpr size_t kMaxParameters = 64;
  std::vector<Parameter> parameters;
  if (text.size() > kMaxTextBytes) return too_long("parameters", text);
  Lexer lexer(text);
  Token token = lexer.next();
  const auto wrong = [&token](const std::string& why) {
    return Status::invalid_argument("parameters, column " + std::to_string(token.column) + ": " + why);
  };
  while (token.kind != Token::Kind::end) {
    if (token.kind != Token::Kind::name) return wrong("expected name=number, got " + token.shown());
    Parameter parameter{.name = std::string(token.text.substr(0, 64))};
    if (reserved(token.text)) return wrong(token.shown() + " already has a meaning");
    if (find_in(parameters, token.text) != nullptr) return wrong(token.shown() + " is given twice");
    if (parameters.size() >= kMaxParameters) return wrong("more than 64 parameters");
    if (!(token = lexer.next()).is("=")) return wrong("expected '=', got " + token.shown());
    token = lexer.next();
    const bool negative = token.is("-");
    if (negative) token = lexer.next();
    if (token.kind != Token::Kind::integer && token.kind != Token::Kind::real) {
      return wrong("expected a number, got " + token.shown());
    }
    parameter.integer = token.kind == Token::Kind::integer;
    parameter.value = (negative ? -1 : 1) * (parameter.integer ? token.integer : token.real);
    parameters.push_back(std::move(parameter));
    token = lexer.next();
    if (token.kind == Token::Kind::end) break;
    if (!token.is(",")) return wrong("expected ',', got " + token.shown());
    token = lexer.next();
    if (token.kind == Token::Kind::end) return wrong("expected name=number after ','");
  }
  return parameters;
}

Result<Modifiers> parse_modifiers(const ModifierTexts& texts) {
  WW_ASSIGN_OR_RETURN(const std::vector<Parameter> parameters, parse_parameters(texts.parameters));
  Modifiers out;
  if (!texts.score.empty()) {
    WW_ASSIGN_OR_RETURN(out.score, parse_score_modifier(texts.score, parameters));
  }
  if (!texts.mask.empty()) {
    WW_ASSIGN_OR_RETURN(out.mask, parse_mask_modifier(texts.mask, parameters));
  }
  return out;
}

}  // namespace warpweave::mods
