// Parses expressions with jinja2's precedence. Used by parser.cc alone.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace warpweave::jinja {

// Looked up while parsing, so that a misspelt filter fails when the model is loaded; inside an if,
// where templates put what only some renderers have, it fails when it is reached. Null: unknown.
FilterFunction find_filter(std::string_view name);
TestFunction find_test(std::string_view name);

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // One expression, or a tuple without parentheses.
  ExprPtr tuple(bool with_conditional = true);
  ExprPtr expression(bool with_conditional = true);
  // What may stand left of `=` in a set, or between `for` and `in`.
  ExprPtr target(bool with_namespace);
  ExprPtr postfix_primary();
  // "name | name(args) ..." whose innermost subject is null.
  ExprPtr filter_chain();
  ArgExprs call_args();

  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_op(std::string_view op) const;
  bool is_name(std::string_view name) const;
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  std::string identifier();
  [[noreturn]] void fail(const std::string& message, int line = 0) const;
  std::string describe(const Token& token) const;

  // The macro whose body is being parsed, to note whether it asks for caller, varargs or kwargs.
  Macro* macro = nullptr;
  int conditions = 0;  // ifs around the current place

  // Refuses deep nests; one object per level of recursion.
  class Level {
   public:
    explicit Level(ExpressionParser& parser);
    ~Level() { --parser_.nesting_; }

   private:
    ExpressionParser& parser_;
  };

 private:
  ExprPtr node(Expr::Kind kind, int line);
  // Adds a child and keeps the depth right.
  void adopt(Expr& parent, ExprPtr child);
  ExprPtr combine(Expr::Kind kind, ExprPtr left, ExprPtr right, std::string op = {});
  void adopt_args(Expr& parent, ArgExprs args);

  ExprPtr conditional();
  ExprPtr logical_or();
  ExprPtr logical_and();
  ExprPtr logical_not();
  ExprPtr compare();
  ExprPtr sum();
  ExprPtr concat();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filter);
  ExprPtr primary();
  ExprPtr named_value();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr subject);
  ExprPtr subscript(ExprPtr subject);
  ExprPtr filters_and_tests(ExprPtr subject);
  ExprPtr filter(ExprPtr subject);
  ExprPtr test(ExprPtr subject);
  bool at_tuple_end() const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace warpweave::jinja
