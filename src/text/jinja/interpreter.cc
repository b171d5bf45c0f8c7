#include "text/jinja/interpreter.h"

#include <algorithm>
#include <utility>

#include "text/jinja/depth.h"
#include "text/jinja/json.h"
#include "text/jinja/loop.h"

namespace warpweave::jinja {

// A macro with the scope it was defined in. Lives no longer than its interpreter: no value leaves a
// rendering.
class MacroObject : public Object {
 public:
  MacroObject(Interpreter& interpreter, const Macro& macro, ScopePtr scope)
      : interpreter_(interpreter), macro_(macro), scope_(std::move(scope)) {}
  std::string type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override {
    if (name == "name") return runtime.text(macro_.name);
    return std::nullopt;
  }
  Value call(Runtime&, const CallArgs& args) override {
    return interpreter_.call_macro(macro_, scope_, args);
  }

 private:
  Interpreter& interpreter_;
  const Macro& macro_;
  ScopePtr scope_;
};

namespace {

// Enters a scope, and goes back to the one before on the way out, also past an exception.
class Entered {
 public:
  Entered(ScopePtr& current, ScopePtr next) : current_(current), before_(current) {
    current_ = std::move(next);
  }
  ~Entered() { current_ = std::move(before_); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;

 private:
  ScopePtr& current_;
  ScopePtr before_;
};

ScopePtr inner_scope(const ScopePtr& parent) {
  return std::make_shared<Scope>(parent);
}

}  // namespace

const Value* Scope::find(std::string_view name) const {
  const size_t i = index_.find(name);
  return i == NameIndex::kNone ? nullptr : &values_[i];
}

void Scope::set(std::string_view name, Value value) {
  const size_t i = index_.find(name);
  if (i != NameIndex::kNone) {
    values_[i] = std::move(value);
    return;
  }
  index_.add(name, values_.size());
  values_.push_back(std::move(value));
}

void Scope::clear() {
  index_.clear();
  values_.clear();
}

Interpreter::Interpreter(const Template& source, const nlohmann::ordered_json& variables, const Limits& limits,
                         std::tm now)
    : template_(source), runtime_(limits, now), input_(variables), scope_(std::make_shared<Scope>(nullptr)) {}

Interpreter::~Interpreter() {
  // Emptied one by one while all are still held, so no chain of them is freed recursively.
  for (const ScopePtr& scope : captured_) scope->clear();
  for (const auto& ns : namespaces_) ns->clear();
}

std::string Interpreter::run() {
  try {
    variables_ = from_json(runtime_, input_);
    execute(template_.body);
  } catch (Error& error) {
    if (error.line == 0) error.line = runtime_.line;
    throw;
  }
  return std::move(out_);
}

void Interpreter::emit(std::string_view text) {
  if (text.size() > runtime_.limits().max_string_bytes - out_.size()) {
    throw Error("the rendered text has more than " +
                std::to_string(runtime_.limits().max_string_bytes) + " bytes; send less");
  }
  runtime_.charge(text.size() / kCopyBytes);
  out_ += text;
}

std::string Interpreter::capture(const Body& body) {
  Entered entered(scope_, inner_scope(scope_));
  std::string outer = std::exchange(out_, {});
  execute(body);
  std::swap(out_, outer);
  runtime_.charge_bytes(outer.size());
  return outer;
}

Interpreter::Flow Interpreter::execute(const Body& body) {
  for (const auto& stmt : body) {
    if (Flow flow = execute(*stmt); flow != Flow::next) return flow;
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::execute(const Stmt& stmt) {
  Depth depth(depth_);
  runtime_.charge();
  runtime_.line = stmt.line;
  switch (stmt.kind) {
    case Stmt::Kind::text: emit(stmt.text); break;
    case Stmt::Kind::output: {
      const Value value = evaluate(*stmt.expr);
      if (value.is(Kind::string)) {
        emit(value.string());
      } else {
        emit(runtime_.str(value));
      }
      break;
    }
    case Stmt::Kind::if_: return execute_if(stmt);
    case Stmt::Kind::for_: return execute_for(stmt);
    case Stmt::Kind::set: assign(*stmt.target, evaluate(*stmt.expr)); break;
    case Stmt::Kind::set_block: execute_set_block(stmt); break;
    case Stmt::Kind::macro: set(stmt.macro->name, make_macro(*stmt.macro)); break;
    case Stmt::Kind::call_block: execute_call_block(stmt); break;
    case Stmt::Kind::filter_block: {
      const Value text(capture(stmt.body));
      emit(runtime_.str(evaluate_filter(*stmt.expr, &text)));
      break;
    }
    case Stmt::Kind::with: return execute_with(stmt);
    case Stmt::Kind::scope: {
      Entered entered(scope_, inner_scope(scope_));
      return execute(stmt.body);
    }
    case Stmt::Kind::break_: return Flow::break_;
    case Stmt::Kind::continue_: return Flow::continue_;
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::execute_if(const Stmt& stmt) {
  for (const auto& [condition, body] : stmt.branches) {
    if (evaluate(*condition).truthy()) return execute(body);
  }
  return execute(stmt.else_body);
}

Interpreter::Flow Interpreter::execute_for(const Stmt& stmt) {
  const ScopePtr outer = scope_;
  Loop::Filter filter;
  if (stmt.condition) {
    filter = [this, &stmt, outer](const Value& item) {
      Entered entered(scope_, inner_scope(outer));
      assign(*stmt.target, item);
      return evaluate(*stmt.condition).truthy();
    };
  }
  const Value source = evaluate(*stmt.expr);
  auto loop = std::make_shared<Loop>(iterate(runtime_, source), std::move(filter));
  bool entered_once = false;
  while (auto item = loop->next()) {
    entered_once = true;
    runtime_.charge(4);  // for a scope with the loop's variables
    Entered entered(scope_, inner_scope(outer));
    set("loop", Value(std::shared_ptr<Object>(loop)));
    assign(*stmt.target, *std::move(item));
    if (execute(stmt.body) == Flow::break_) break;
  }
  loop->finish();
  if (entered_once) return Flow::next;
  Entered entered(scope_, inner_scope(outer));
  return execute(stmt.else_body);
}

void Interpreter::execute_set_block(const Stmt& stmt) {
  Value text(capture(stmt.body));
  assign(*stmt.target, stmt.expr ? evaluate_filter(*stmt.expr, &text) : std::move(text));
}

void Interpreter::execute_call_block(const Stmt& stmt) {
  const Value caller = make_macro(*stmt.macro);
  emit(runtime_.str(evaluate_call(*stmt.expr, &caller)));
}

Interpreter::Flow Interpreter::execute_with(const Stmt& stmt) {
  std::vector<Value> values;
  for (const auto& [target, value] : stmt.assignments) values.push_back(evaluate(*value));
  Entered entered(scope_, inner_scope(scope_));
  for (size_t i = 0; i < values.size(); ++i) {
    assign(*stmt.assignments[i].first, std::move(values[i]));
  }
  return execute(stmt.body);
}

Value Interpreter::make_macro(const Macro& macro) {
  runtime_.charge(kObjectWork);
  if (captured_.empty() || captured_.back() != scope_) captured_.push_back(scope_);
  return Value(std::make_shared<MacroObject>(*this, macro, scope_));
}

Value Interpreter::call_macro(const Macro& macro, const ScopePtr& scope, const CallArgs& args) {
  Depth depth(depth_);
  runtime_.charge(4 + 2 * macro.parameters.size());
  Entered entered(scope_, inner_scope(scope));
  std::string outer = std::exchange(out_, {});
  bind_parameters(macro, args);
  execute(macro.body);
  std::swap(out_, outer);
  return runtime_.text(std::move(outer));
}

void Interpreter::bind_parameters(const Macro& macro, const CallArgs& args) {
  const size_t count = macro.parameters.size();
  std::vector<Value> extra;
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (i < count) {
      set(macro.parameters[i], args.positional[i]);
    } else {
      extra.push_back(args.positional[i]);
    }
  }
  if (!extra.empty() && !macro.uses_varargs) {
    throw Error("macro '" + macro.name + "' takes at most " + std::to_string(count) +
                " arguments, got " + std::to_string(args.positional.size()));
  }
  auto named = std::make_shared<Dict>();
  std::optional<Value> caller;
  for (const auto& [name, value] : args.named) {
    runtime_.charge(1 + count / 8);
    auto it = std::find(macro.parameters.begin(), macro.parameters.end(), name);
    if (it != macro.parameters.end()) {
      if (static_cast<size_t>(it - macro.parameters.begin()) < args.positional.size()) {
        throw Error("macro '" + macro.name + "' got its argument '" + name + "' twice");
      }
      set(*it, value);
    } else if (name == "caller" && macro.uses_caller) {
      caller = value;
    } else if (macro.uses_kwargs) {
      set_item(runtime_, *named, runtime_.text(name), value);
    } else {
      throw Error("macro '" + macro.name + "' has no argument named '" + name + "'");
    }
  }
  const size_t first_default = count - macro.defaults.size();
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    if (scope_->find(name) != nullptr) continue;
    set(name, i >= first_default ? evaluate(*macro.defaults[i - first_default])
                                 : Value::undefined("parameter '" + name + "' was not provided"));
  }
  if (macro.uses_varargs) set("varargs", Value::tuple(std::move(extra)));
  if (macro.uses_kwargs) set("kwargs", Value(std::shared_ptr<const Dict>(std::move(named))));
  if (macro.uses_caller) set("caller", caller ? *caller : Value::undefined("No caller defined"));
}

const Value* Interpreter::find(std::string_view name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent()) {
    runtime_.charge();
    if (const Value* value = scope->find(name)) return value;
  }
  return variables_.dict().find(name);
}

void Interpreter::set(std::string_view name, Value value) { scope_->set(name, std::move(value)); }

void Interpreter::assign(const Expr& target, Value value) {
  if (target.kind == Expr::Kind::name) {
    set(target.name, std::move(value));
  } else if (target.kind == Expr::Kind::namespace_attribute) {
    const Value* object = find(target.name);
    auto* ns = object != nullptr && object->is(Kind::object)
                   ? dynamic_cast<Namespace*>(object->object().get())
                   : nullptr;
    if (ns == nullptr) {
      throw Error("cannot set attribute '" + target.attribute_name + "' of '" + target.name +
                  "': it is no namespace; make it with namespace()");
    }
    ns->set(runtime_, target.attribute_name, std::move(value));
  } else {
    require_defined(value);
    std::vector<Value> items = iterate(runtime_, value);
    if (items.size() != target.children.size()) {
      throw Error("cannot unpack " + std::to_string(items.size()) + " values into " +
                  std::to_string(target.children.size()) + " names");
    }
    for (size_t i = 0; i < items.size(); ++i) assign(*target.children[i], std::move(items[i]));
  }
}

}  // namespace warpweave::jinja
