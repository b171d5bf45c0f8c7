#include "text/jinja/expression_parser.h"

#include <algorithm>

#include "text/jinja/parser.h"
#include "text/jinja/unicode.h"

namespace warpweave::jinja {

using Type = Token::Type;
using NodeKind = Expr::Kind;

namespace {
// Left-leaning chains such as a + b + c grow in depth without nesting.
constexpr int kMaxExprDepth = 400;
}  // namespace

ExpressionParser::Level::Level(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.nesting_ > kMaxNesting) {
    --parser_.nesting_;
    parser_.fail("the template nests deeper than " + std::to_string(kMaxNesting) +
                 " levels; use set to name the inner parts");
  }
}

void ExpressionParser::fail(const std::string& message, int line) const {
  throw Error(message, line != 0 ? line : current().line);
}

std::string ExpressionParser::describe(const Token& token) const {
  switch (token.type) {
    case Type::data: return "text";
    case Type::variable_begin: return "'{{'";
    case Type::variable_end: return "'}}'";
    case Type::block_begin: return "'{%'";
    case Type::block_end: return "'%}'";
    case Type::end: return "the end of the template";
    default: return quote(token.text.substr(0, 60));
  }
}

bool ExpressionParser::is_op(std::string_view op) const {
  return current().type == Type::op && current().text == op;
}
bool ExpressionParser::is_name(std::string_view name) const {
  return current().type == Type::name && current().text == name;
}
bool ExpressionParser::skip_op(std::string_view op) {
  return is_op(op) && (next(), true);
}
bool ExpressionParser::skip_name(std::string_view name) {
  return is_name(name) && (next(), true);
}
void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail("expected '" + std::string(op) + "', got " + describe(current()));
}
void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail("expected '" + std::string(name) + "', got " + describe(current()));
}
std::string ExpressionParser::identifier() {
  if (current().type != Type::name) fail("expected a name, got " + describe(current()));
  return next().text;
}

ExprPtr ExpressionParser::node(Expr::Kind kind, int line) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  return expr;
}

void ExpressionParser::adopt(Expr& parent, ExprPtr child) {
  if (child) {
    parent.depth = std::max(parent.depth, 1 + child->depth);
    if (parent.depth > kMaxExprDepth) {
      fail("an expression is deeper than " + std::to_string(kMaxExprDepth) +
           " operations; use set to name its parts");
    }
  }
  parent.children.push_back(std::move(child));
}

void ExpressionParser::adopt_args(Expr& parent, ArgExprs args) {
  auto measure = [&](const ExprPtr& e) {
    if (e) parent.depth = std::max(parent.depth, 1 + e->depth);
  };
  for (const auto& e : args.positional) measure(e);
  for (const auto& [name, e] : args.named) measure(e);
  measure(args.star);
  measure(args.star_star);
  parent.args = std::move(args);
}

ExprPtr ExpressionParser::combine(Expr::Kind kind, ExprPtr left, ExprPtr right, std::string op) {
  ExprPtr expr = node(kind, left->line);
  expr->name = std::move(op);
  adopt(*expr, std::move(left));
  adopt(*expr, std::move(right));
  return expr;
}

bool ExpressionParser::at_tuple_end() const {
  const Type type = current().type;
  return type == Type::variable_end || type == Type::block_end || type == Type::end || is_op(")") ||
         is_name("in");
}

ExprPtr ExpressionParser::tuple(bool with_conditional) {
  const int line = current().line;
  ExprPtr first = expression(with_conditional);
  if (!is_op(",")) return first;
  ExprPtr expr = node(NodeKind::tuple, line);
  adopt(*expr, std::move(first));
  while (skip_op(",")) {
    if (at_tuple_end()) break;
    adopt(*expr, expression(with_conditional));
  }
  return expr;
}

ExprPtr ExpressionParser::target(bool with_namespace) {
  Level level(*this);
  auto one = [&]() -> ExprPtr {
    const int line = current().line;
    if (skip_op("(")) {
      ExprPtr inner = target(with_namespace);
      expect_op(")");
      return inner;
    }
    std::string name = identifier();
    static constexpr std::string_view kReserved[] = {"true", "false", "none",
                                                     "True", "False", "None"};
    if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
      fail("cannot assign to '" + name + "'", line);
    }
    ExprPtr expr = node(NodeKind::name, line);
    if (with_namespace && skip_op(".")) {
      expr->kind = NodeKind::namespace_attribute;
      expr->attribute_name = identifier();
    }
    expr->name = std::move(name);
    return expr;
  };
  const int line = current().line;
  ExprPtr first = one();
  if (!is_op(",")) return first;
  ExprPtr expr = node(NodeKind::tuple, line);
  adopt(*expr, std::move(first));
  while (skip_op(",")) {
    if (at_tuple_end() || is_op("=")) break;
    adopt(*expr, one());
  }
  return expr;
}

ExprPtr ExpressionParser::expression(bool with_conditional) {
  Level level(*this);
  return with_conditional ? conditional() : logical_or();
}

ExprPtr ExpressionParser::conditional() {
  ExprPtr then = logical_or();
  while (skip_name("if")) {
    ExprPtr condition = logical_or();
    ExprPtr otherwise = skip_name("else") ? expression() : nullptr;
    ExprPtr expr = combine(NodeKind::conditional, std::move(then), std::move(condition));
    adopt(*expr, std::move(otherwise));
    then = std::move(expr);
  }
  return then;
}

ExprPtr ExpressionParser::logical_or() {
  ExprPtr left = logical_and();
  while (skip_name("or")) left = combine(NodeKind::logical_or, std::move(left), logical_and());
  return left;
}

ExprPtr ExpressionParser::logical_and() {
  ExprPtr left = logical_not();
  while (skip_name("and")) left = combine(NodeKind::logical_and, std::move(left), logical_not());
  return left;
}

ExprPtr ExpressionParser::logical_not() {
  if (!is_name("not")) return compare();
  Level level(*this);
  ExprPtr expr = node(NodeKind::logical_not, next().line);
  adopt(*expr, logical_not());
  return expr;
}

ExprPtr ExpressionParser::compare() {
  static constexpr std::string_view kOps[] = {"==", "!=", "<", "<=", ">", ">="};
  ExprPtr first = sum();
  ExprPtr expr;
  while (true) {
    std::string op;
    if (current().type == Type::op &&
        std::find(std::begin(kOps), std::end(kOps), current().text) != std::end(kOps)) {
      op = next().text;
    } else if (skip_name("in")) {
      op = "in";
    } else if (is_name("not") && look().type == Type::name && look().text == "in") {
      next(), next();
      op = "not in";
    } else {
      break;
    }
    if (!expr) {
      expr = node(NodeKind::compare, first->line);
      adopt(*expr, std::move(first));
    }
    expr->ops.push_back(std::move(op));
    adopt(*expr, sum());
  }
  return expr ? std::move(expr) : std::move(first);
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concat();
  while (is_op("+") || is_op("-")) {
    std::string op = next().text;
    left = combine(NodeKind::arithmetic, std::move(left), concat(), std::move(op));
  }
  return left;
}

ExprPtr ExpressionParser::concat() {
  ExprPtr first = product();
  if (!is_op("~")) return first;
  ExprPtr expr = node(NodeKind::concat, first->line);
  adopt(*expr, std::move(first));
  while (skip_op("~")) adopt(*expr, product());
  return expr;
}

ExprPtr ExpressionParser::product() {
  ExprPtr left = power();
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    std::string op = next().text;
    left = combine(NodeKind::arithmetic, std::move(left), power(), std::move(op));
  }
  return left;
}

ExprPtr ExpressionParser::power() {
  ExprPtr left = unary(true);
  while (is_op("**")) {
    next();
    left = combine(NodeKind::arithmetic, std::move(left), unary(true), "**");
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filter) {
  Level level(*this);
  ExprPtr expr;
  if (is_op("-") || is_op("+")) {
    const Token& sign = next();
    expr = node(sign.text == "-" ? NodeKind::negate : NodeKind::positive, sign.line);
    adopt(*expr, unary(false));
  } else {
    expr = primary();
  }
  expr = postfix(std::move(expr));
  return with_filter ? filters_and_tests(std::move(expr)) : std::move(expr);
}

ExprPtr ExpressionParser::named_value() {
  const Token& token = next();
  ExprPtr expr = node(NodeKind::constant, token.line);
  const std::string& text = token.text;
  if (text == "true" || text == "True") {
    expr->value = Value(true);
  } else if (text == "false" || text == "False") {
    expr->value = Value(false);
  } else if (text == "none" || text == "None") {
    expr->value = Value(None{});
  } else {
    expr->kind = NodeKind::name;
    expr->name = text;
    if (macro != nullptr) {
      macro->uses_caller |= text == "caller";
      macro->uses_varargs |= text == "varargs";
      macro->uses_kwargs |= text == "kwargs";
    }
  }
  return expr;
}

ExprPtr ExpressionParser::primary() {
  const Token& token = current();
  if (token.type == Type::name) return named_value();
  if (token.type == Type::string) {
    std::string text;
    while (current().type == Type::string) text += next().text;
    ExprPtr expr = node(NodeKind::constant, token.line);
    expr->value = Value(std::move(text));
    return expr;
  }
  if (token.type == Type::integer || token.type == Type::real) {
    next();
    ExprPtr expr = node(NodeKind::constant, token.line);
    expr->value = token.type == Type::integer ? Value(token.integer) : Value(token.real);
    return expr;
  }
  if (skip_op("(")) {
    ExprPtr expr = is_op(")") ? node(NodeKind::tuple, token.line) : tuple();
    expect_op(")");
    return expr;
  }
  if (is_op("[")) return list();
  if (is_op("{")) return dict();
  fail("unexpected " + describe(token));
}

ExprPtr ExpressionParser::list() {
  ExprPtr expr = node(NodeKind::list, next().line);
  while (!is_op("]")) {
    if (!expr->children.empty()) {
      expect_op(",");
      if (is_op("]")) break;
    }
    adopt(*expr, expression());
  }
  next();
  return expr;
}

ExprPtr ExpressionParser::dict() {
  ExprPtr expr = node(NodeKind::dict, next().line);
  while (!is_op("}")) {
    if (!expr->children.empty()) {
      expect_op(",");
      if (is_op("}")) break;
    }
    adopt(*expr, expression());
    expect_op(":");
    adopt(*expr, expression());
  }
  next();
  return expr;
}

ExprPtr ExpressionParser::postfix_primary() { return postfix(primary()); }

ExprPtr ExpressionParser::postfix(ExprPtr subject) {
  while (true) {
    if (is_op(".") || is_op("[")) {
      subject = subscript(std::move(subject));
    } else if (is_op("(")) {
      ExprPtr expr = node(NodeKind::call, current().line);
      adopt(*expr, std::move(subject));
      adopt_args(*expr, call_args());
      subject = std::move(expr);
    } else {
      return subject;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr subject) {
  const int line = current().line;
  if (skip_op(".")) {
    ExprPtr expr = node(NodeKind::attribute, line);
    adopt(*expr, std::move(subject));
    if (current().type == Type::integer) {
      expr->kind = NodeKind::item;
      ExprPtr index = node(NodeKind::constant, line);
      index->value = Value(next().integer);
      adopt(*expr, std::move(index));
    } else {
      expr->name = identifier();
    }
    return expr;
  }
  expect_op("[");
  ExprPtr expr = node(NodeKind::item, line);
  adopt(*expr, std::move(subject));
  ExprPtr first = is_op(":") ? nullptr : tuple();
  if (is_op(":")) {
    expr->kind = NodeKind::slice;
    adopt(*expr, std::move(first));
    while (expr->children.size() < 4 && skip_op(":")) {
      adopt(*expr, is_op(":") || is_op("]") ? nullptr : expression());
    }
    while (expr->children.size() < 4) expr->children.push_back(nullptr);
  } else {
    adopt(*expr, std::move(first));
  }
  expect_op("]");
  return expr;
}

ArgExprs ExpressionParser::call_args() {
  ArgExprs args;
  expect_op("(");
  bool first = true;
  while (!is_op(")")) {
    if (!first) {
      expect_op(",");
      if (is_op(")")) break;
    }
    first = false;
    if (skip_op("**")) {
      if (args.star_star) fail("a call takes one ** argument");
      args.star_star = expression();
    } else if (skip_op("*")) {
      if (args.star || args.star_star) fail("a call takes one * argument, before any **");
      args.star = expression();
    } else if (current().type == Type::name && look().type == Type::op && look().text == "=") {
      std::string name = identifier();
      next();
      args.named.emplace_back(std::move(name), expression());
    } else {
      if (!args.named.empty() || args.star || args.star_star) {
        fail("a positional argument stands behind a named one; move it to the front");
      }
      args.positional.push_back(expression());
    }
  }
  next();
  return args;
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr subject) {
  while (true) {
    if (skip_op("|")) {
      subject = filter(std::move(subject));
    } else if (is_name("is")) {
      subject = test(std::move(subject));
    } else if (is_op("(")) {
      subject = postfix(std::move(subject));
    } else {
      return subject;
    }
  }
}

ExprPtr ExpressionParser::filter(ExprPtr subject) {
  ExprPtr expr = node(NodeKind::filter, current().line);
  expr->name = identifier();
  expr->filter = find_filter(expr->name);
  if (expr->filter == nullptr && conditions == 0) fail("there is no filter named '" + expr->name + "'", expr->line);
  adopt(*expr, std::move(subject));
  if (is_op("(")) adopt_args(*expr, call_args());
  return expr;
}

ExprPtr ExpressionParser::filter_chain() {
  ExprPtr chain = filter(nullptr);
  while (skip_op("|")) chain = filter(std::move(chain));
  return chain;
}

ExprPtr ExpressionParser::test(ExprPtr subject) {
  const int line = next().line;
  const bool negated = skip_name("not");
  ExprPtr expr = node(NodeKind::test, line);
  expr->name = identifier();
  expr->test = find_test(expr->name);
  if (expr->test == nullptr && conditions == 0) fail("there is no test named '" + expr->name + "'", line);
  adopt(*expr, std::move(subject));
  const Type type = current().type;
  const bool value_follows =
      (type == Type::name && !is_name("else") && !is_name("or") && !is_name("and")) ||
      type == Type::string || type == Type::integer || type == Type::real || is_op("[") ||
      is_op("{");
  if (is_op("(")) {
    adopt_args(*expr, call_args());
  } else if (value_follows) {
    if (is_name("is")) fail("tests cannot be chained with 'is'; join them with 'and'");
    ArgExprs args;
    args.positional.push_back(postfix_primary());
    adopt_args(*expr, std::move(args));
  }
  if (!negated) return expr;
  ExprPtr inverse = node(NodeKind::logical_not, line);
  adopt(*inverse, std::move(expr));
  return inverse;
}

}  // namespace warpweave::jinja
