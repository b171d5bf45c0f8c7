#include "text/jinja/globals.h"

#include <array>

namespace warpweave::jinja {

std::optional<Value> Namespace::attribute(Runtime& runtime, std::string_view name) {
  runtime.charge_scan(name);
  const auto it = attributes_.find(name);
  return it == attributes_.end() ? std::nullopt : std::optional(it->second);
}

void Namespace::set(Runtime& runtime, std::string_view name, Value value) {
  runtime.charge_scan(name);
  runtime.charge_bytes(name.size());
  attributes_.insert_or_assign(std::string(name), std::move(value));
}

namespace {

using Args = const CallArgs&;
using GlobalFunction = Value (*)(Runtime&, Args);

class Function : public Object {
 public:
  explicit Function(GlobalFunction function) : function_(function) {}
  std::string type_name() const override { return "function"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, Args args) override { return function_(runtime, args); }

 private:
  GlobalFunction function_;
};

Value range_function(Runtime& rt, Args args) {
  Bound b(args, "range()", {"start", "stop", "step"}, 1);
  int64_t start = b.integer(0, 0);
  int64_t stop = start;
  if (b.has(1)) {
    stop = b.integer(1, 0);
  } else {
    start = 0;
  }
  const int64_t step = b.integer(2, 1);
  if (step == 0) throw Error("range() step must not be zero");
  std::vector<Value> out;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(out.size()) >= kMaxRange) {
      throw Error("range() gives more than " + std::to_string(kMaxRange) + " numbers; use a smaller one");
    }
    rt.charge();
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return Value::list(std::move(out));
}

// A mapping, or a list of pairs, then the named arguments.
std::shared_ptr<Dict> dict_of(Runtime& rt, Args args, std::string_view what) {
  auto dict = std::make_shared<Dict>();
  auto set = [&](const Value& key, const Value& value) {
    set_item(rt, *dict, key, value);
  };
  if (args.positional.size() > 1) throw Error(std::string(what) + " takes one positional argument");
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    require_defined(source);
    if (source.is(Kind::dict)) {
      for (const auto& [key, value] : source.dict().items()) set(key, value);
    } else {
      for (const Value& pair : iterate(rt, source)) {
        const auto parts = iterate(rt, pair);
        if (parts.size() != 2) throw Error(std::string(what) + " needs pairs of key and value");
        set(parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : args.named) set(rt.text(name), value);
  return dict;
}

Value dict_function(Runtime& rt, Args args) {
  return Value(std::shared_ptr<const Dict>(dict_of(rt, args, "dict()")));
}

class Joiner : public Object {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value call(Runtime&, Args args) override {
    Bound b(args, "a joiner", {});
    return std::exchange(used_, true) ? separator_ : Value(std::string());
  }

 private:
  Value separator_;
  bool used_ = false;
};

Value joiner_function(Runtime&, Args args) {
  Bound b(args, "joiner()", {"sep"});
  const Value separator = b.has(0) ? b[0] : Value(std::string(", "));
  if (!separator.is(Kind::string)) throw Error("joiner() needs a string");
  return Value(std::make_shared<Joiner>(separator));
}

class Cycler : public Object {
 public:
  // Where a cycler stands is shared with its methods next() and reset().
  struct State {
    std::vector<std::string> items;
    size_t at = 0;
  };
  class Step : public Object {
   public:
    Step(std::shared_ptr<State> state, bool reset) : state_(std::move(state)), reset_(reset) {}
    std::string type_name() const override { return "method"; }
    bool callable() const override { return true; }
    Value call(Runtime& rt, Args args) override {
      Bound b(args, "a cycler's method", {});
      if (reset_) {
        state_->at = 0;
        return Value(None{});
      }
      const std::string& item = state_->items[state_->at];
      state_->at = (state_->at + 1) % state_->items.size();
      return rt.text(item);
    }

   private:
    std::shared_ptr<State> state_;
    bool reset_;
  };

  explicit Cycler(std::vector<std::string> items) : state_(std::make_shared<State>()) {
    state_->items = std::move(items);
  }
  std::string type_name() const override { return "Cycler"; }
  std::optional<Value> attribute(Runtime& rt, std::string_view name) override {
    if (name == "next") return Value(std::make_shared<Step>(state_, false));
    if (name == "reset") return Value(std::make_shared<Step>(state_, true));
    if (name == "current") return rt.text(state_->items[state_->at]);
    return std::nullopt;
  }

 private:
  std::shared_ptr<State> state_;
};

// Items are kept as text, which is what a cycler's items are for.
Value cycler_function(Runtime& rt, Args args) {
  if (args.positional.empty() || !args.named.empty()) throw Error("cycler() needs items");
  std::vector<std::string> items;
  for (const Value& item : args.positional) items.push_back(rt.str(item));
  return Value(std::make_shared<Cycler>(std::move(items)));
}

Value raise_function(Runtime& rt, Args args) {
  Bound b(args, "raise_exception()", {"message"}, 1);
  throw RaisedByTemplate(rt.str(b[0]).substr(0, 2000));
}

Value strftime_function(Runtime& rt, Args args) {
  Bound b(args, "strftime_now()", {"format"}, 1);
  const std::string format = rt.str(b[0]);
  rt.charge(100);
  if (format.size() > 200) throw Error("strftime_now() takes a format of at most 200 bytes");
  char buffer[4096];
  const size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &rt.now());
  return rt.text(std::string(buffer, size));
}

struct Entry {
  std::string_view name;
  GlobalFunction function;
};

constexpr std::array kGlobals = std::to_array<Entry>({
    {"cycler", cycler_function},
    {"dict", dict_function},
    {"joiner", joiner_function},
    {"raise_exception", raise_function},
    {"range", range_function},
    {"strftime_now", strftime_function},
});

}  // namespace

Value find_global(std::string_view name) {
  for (const Entry& entry : kGlobals) {
    if (entry.name == name) return Value(std::make_shared<Function>(entry.function));
  }
  return {};
}

std::shared_ptr<Namespace> make_namespace(Runtime& runtime, const CallArgs& args) {
  auto result = std::make_shared<Namespace>();
  const auto dict = dict_of(runtime, args, "namespace()");
  for (const auto& [key, value] : dict->items()) {
    if (key.is(Kind::string)) result->set(runtime, key.string(), value);
  }
  return result;
}

}  // namespace warpweave::jinja
