// Walks a parsed template: statements in interpreter.cc, expressions in evaluate.cc.
//
// One Interpreter renders once, on one thread. Scopes follow jinja2: a loop pass, a macro call and a
// block that captures its output have a scope of their own, `if` has none, and a name is looked up
// from the inside out when it is used.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "text/jinja/ast.h"
#include "text/jinja/globals.h"
#include "text/jinja/runtime.h"

namespace warpweave::jinja {

// Names are the template's own or literals: they outlive the scope.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> parent) : parent_(std::move(parent)) {}
  const Scope* parent() const { return parent_.get(); }
  const Value* find(std::string_view name) const;
  void set(std::string_view name, Value value);
  void clear();

 private:
  std::shared_ptr<Scope> parent_;
  std::vector<Value> values_;
  NameIndex index_;
};
using ScopePtr = std::shared_ptr<Scope>;

class Interpreter {
 public:
  // `variables` is an object; of equal keys the last one counts.
  Interpreter(const Template& source, const nlohmann::ordered_json& variables, const Limits& limits, std::tm now);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws jinja::Error with its line set.
  std::string run();
  size_t work() const { return runtime_.work(); }

 private:
  enum class Flow { next, break_, continue_ };
  friend class MacroObject;

  Flow execute(const Body& body);
  Flow execute(const Stmt& stmt);
  Flow execute_if(const Stmt& stmt);
  Flow execute_for(const Stmt& stmt);
  void execute_set_block(const Stmt& stmt);
  void execute_call_block(const Stmt& stmt);
  Flow execute_with(const Stmt& stmt);
  void emit(std::string_view text);
  // Runs the body in an inner scope and returns what it wrote.
  std::string capture(const Body& body);
  Value make_macro(const Macro& macro);
  Value call_macro(const Macro& macro, const ScopePtr& scope, const CallArgs& args);
  void bind_parameters(const Macro& macro, const CallArgs& args);

  Value evaluate(const Expr& expr);
  Value evaluate_name(const Expr& expr);
  Value evaluate_dict(const Expr& expr);
  Value evaluate_call(const Expr& expr, const Value* caller = nullptr);
  Value evaluate_compare(const Expr& expr);
  Value evaluate_concat(const Expr& expr);
  // `innermost` stands in for the null subject of a filter block's chain.
  Value evaluate_filter(const Expr& expr, const Value* innermost = nullptr);
  std::vector<Value> evaluate_all(const std::vector<ExprPtr>& exprs);
  CallArgs evaluate_args(const ArgExprs& args);

  const Value* find(std::string_view name);
  void set(std::string_view name, Value value);
  void assign(const Expr& target, Value value);

  const Template& template_;
  Runtime runtime_;
  const nlohmann::ordered_json& input_;
  Value variables_;
  ScopePtr scope_;
  std::string out_;
  int depth_ = 0;
  // What macros and namespaces hold can form rings; these are emptied at the end.
  std::vector<ScopePtr> captured_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

}  // namespace warpweave::jinja
