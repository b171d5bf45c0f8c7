// The expression half of the interpreter.
#include "text/jinja/depth.h"
#include "text/jinja/interpreter.h"

namespace warpweave::jinja {

namespace {

// namespace(...) is the one function that needs the interpreter.
constexpr std::string_view kNamespace = "namespace";

}  // namespace

Value Interpreter::evaluate(const Expr& expr) {
  Depth depth(depth_);
  runtime_.charge();
  runtime_.line = expr.line;
  auto child = [&](size_t i) { return evaluate(*expr.children[i]); };
  switch (expr.kind) {
    case Expr::Kind::constant: return expr.value;
    case Expr::Kind::name: return evaluate_name(expr);
    case Expr::Kind::list: return Value::list(evaluate_all(expr.children));
    case Expr::Kind::tuple: return Value::tuple(evaluate_all(expr.children));
    case Expr::Kind::dict: return evaluate_dict(expr);
    case Expr::Kind::attribute: return get_attribute(runtime_, child(0), expr.name);
    case Expr::Kind::item: {
      const Value object = child(0);
      return get_item(runtime_, object, child(1));
    }
    case Expr::Kind::slice: {
      const Value object = child(0);
      std::optional<Value> bounds[3];
      for (size_t i = 0; i < 3; ++i) {
        if (expr.children[i + 1]) bounds[i] = child(i + 1);
      }
      auto bound = [&](int i) { return bounds[i] ? &*bounds[i] : nullptr; };
      return get_slice(runtime_, object, bound(0), bound(1), bound(2));
    }
    case Expr::Kind::call: return evaluate_call(expr);
    case Expr::Kind::filter: return evaluate_filter(expr);
    case Expr::Kind::test: {
      const Value subject = child(0);
      if (expr.test == nullptr) throw Error("there is no test named '" + expr.name + "'");
      return Value(expr.test(runtime_, subject, evaluate_args(expr.args)));
    }
    case Expr::Kind::negate: return negate(child(0));
    case Expr::Kind::positive: return negate(negate(child(0)));
    case Expr::Kind::logical_not: return Value(!child(0).truthy());
    case Expr::Kind::logical_and: {
      Value left = child(0);
      return left.truthy() ? child(1) : left;
    }
    case Expr::Kind::logical_or: {
      Value left = child(0);
      return left.truthy() ? left : child(1);
    }
    case Expr::Kind::arithmetic: {
      const Value left = child(0);
      return arithmetic(runtime_, expr.name, left, child(1));
    }
    case Expr::Kind::concat: return evaluate_concat(expr);
    case Expr::Kind::compare: return evaluate_compare(expr);
    case Expr::Kind::conditional:
      if (child(1).truthy()) return child(0);
      if (expr.children[2]) return child(2);
      return Value::undefined("the inline if has no else and its condition was false");
    case Expr::Kind::namespace_attribute: break;  // only ever the target of a set
  }
  return {};
}

Value Interpreter::evaluate_name(const Expr& expr) {
  if (const Value* found = find(expr.name)) return *found;
  if (expr.name == kNamespace) return Value::undefined("namespace can only be called");
  Value global = find_global(expr.name);
  if (!global.is(Kind::undefined)) return global;
  return Value::undefined("'" + expr.name + "' is undefined");
}

std::vector<Value> Interpreter::evaluate_all(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> out;
  out.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) out.push_back(evaluate(*expr));
  return out;
}

Value Interpreter::evaluate_dict(const Expr& expr) {
  auto dict = std::make_shared<Dict>();
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    Value key = evaluate(*expr.children[i]);
    set_item(runtime_, *dict, std::move(key), evaluate(*expr.children[i + 1]));
  }
  return Value(std::shared_ptr<const Dict>(std::move(dict)));
}

CallArgs Interpreter::evaluate_args(const ArgExprs& args) {
  CallArgs out;
  out.positional = evaluate_all(args.positional);
  for (const auto& [name, expr] : args.named) out.named.emplace_back(name, evaluate(*expr));
  if (args.star) {
    for (Value& item : iterate(runtime_, evaluate(*args.star))) {
      out.positional.push_back(std::move(item));
    }
  }
  if (args.star_star) {
    const Value mapping = evaluate(*args.star_star);
    if (!mapping.is(Kind::dict)) throw Error("** needs a mapping, got '" + mapping.type_name() + "'");
    runtime_.charge(mapping.dict().items().size());
    for (const auto& [key, value] : mapping.dict().items()) {
      if (!key.is(Kind::string)) throw Error("** needs a mapping with string keys");
      runtime_.charge_bytes(key.string().size());
      out.named.emplace_back(key.string(), value);
    }
  }
  return out;
}

Value Interpreter::evaluate_call(const Expr& expr, const Value* caller) {
  const Expr& callee = *expr.children[0];
  if (callee.kind == Expr::Kind::name && callee.name == kNamespace && find(kNamespace) == nullptr) {
    runtime_.charge(kObjectWork);
    auto ns = make_namespace(runtime_, evaluate_args(expr.args));
    namespaces_.push_back(ns);
    return Value(std::shared_ptr<Object>(std::move(ns)));
  }
  const Value function = evaluate(callee);
  CallArgs args = evaluate_args(expr.args);
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  runtime_.line = expr.line;
  return call(runtime_, function, args);
}

Value Interpreter::evaluate_filter(const Expr& expr, const Value* innermost) {
  Value subject;
  if (!expr.children[0]) {
    subject = *innermost;
  } else if (innermost != nullptr) {
    subject = evaluate_filter(*expr.children[0], innermost);
  } else {
    subject = evaluate(*expr.children[0]);
  }
  const CallArgs args = evaluate_args(expr.args);
  runtime_.line = expr.line;
  if (expr.filter == nullptr) throw Error("there is no filter named '" + expr.name + "'");
  return expr.filter(runtime_, subject, args);
}

Value Interpreter::evaluate_concat(const Expr& expr) {
  std::string out;
  for (const ExprPtr& part : expr.children) {
    const Value value = evaluate(*part);
    out += runtime_.str(value);
    if (out.size() > runtime_.limits().max_string_bytes) break;
  }
  return runtime_.text(std::move(out));
}

Value Interpreter::evaluate_compare(const Expr& expr) {
  Value left = evaluate(*expr.children[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = evaluate(*expr.children[i + 1]);
    if (!compare(runtime_, expr.ops[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

}  // namespace warpweave::jinja
