#include "text/jinja/runtime.h"

#include <algorithm>

#include "text/jinja/methods.h"
#include "text/jinja/unicode.h"

namespace warpweave::jinja {

void Runtime::charge(size_t work) {
  if (work > limits_.max_work - work_) {
    work_ = limits_.max_work;
    throw Error("rendering takes more than " + std::to_string(limits_.max_work) +
                " units of work; send fewer or shorter messages, or simplify the template");
  }
  work_ += work;
}

void Runtime::charge_bytes(size_t bytes) {
  if (bytes > limits_.max_string_bytes) {
    throw Error("rendering builds a string of " + std::to_string(bytes) + " bytes, at most " +
                std::to_string(limits_.max_string_bytes) + " are allowed; send less");
  }
  charge(1 + bytes / kCopyBytes);
}

void Runtime::charge_bytes(size_t count, size_t bytes) {
  size_t total = 0;
  charge_bytes(__builtin_mul_overflow(count, bytes, &total) ? SIZE_MAX : total);
}

void Runtime::charge_equal(const Value& a, const Value& b) {
  if (a.is(Kind::string) && b.is(Kind::string)) {
    charge(1 + std::min(a.string().size(), b.string().size()) / kScanBytes);
  } else {
    charge(1 + std::min(a.extent().weight, b.extent().weight) / kNodeWeight);
  }
}

void Runtime::charge_less(const Value& a, const Value& b) {
  const int levels = 1 + std::min(a.extent().depth, b.extent().depth);
  for (int i = 0; i < levels; ++i) charge_equal(a, b);
}

Value Runtime::text(std::string s) {
  charge_bytes(s.size());
  return Value(std::move(s));
}

std::string Runtime::str(const Value& value) {
  charge_bytes(value.extent().weight);
  if (!value.is(Kind::string)) charge_repr(value);
  return to_string(value);
}

const Value* find_item(Runtime& runtime, const Dict& dict, const Value& key) {
  if (key.is(Kind::string)) {
    runtime.charge_scan(key.string());
  } else {
    runtime.charge(1 + dict.other_keys() * (1 + key.extent().weight / kNodeWeight));
  }
  return dict.find(key);
}

void set_item(Runtime& runtime, Dict& dict, Value key, Value value) {
  (void)find_item(runtime, dict, key);  // pays for the search
  runtime.charge(4);
  dict.set(std::move(key), std::move(value));
}

bool holds(Runtime& runtime, const std::vector<Value>& items, const Value& value) {
  return std::any_of(items.begin(), items.end(), [&](const Value& item) {
    runtime.charge_equal(item, value);
    return equal(item, value);
  });
}

Bound::Bound(const CallArgs& args, std::string_view what, std::initializer_list<const char*> names,
             size_t required)
    : what_(what), values_(names.size()) {
  if (args.positional.size() > names.size()) {
    throw Error(what_ + " takes at most " + std::to_string(names.size()) + " arguments, got " +
                std::to_string(args.positional.size()));
  }
  std::copy(args.positional.begin(), args.positional.end(), values_.begin());
  for (const auto& [name, value] : args.named) {
    auto it = std::find(names.begin(), names.end(), name);
    if (it == names.end()) throw Error(what_ + " has no argument named '" + name + "'");
    auto& slot = values_[static_cast<size_t>(it - names.begin())];
    if (slot) throw Error(what_ + " got its argument '" + name + "' twice");
    slot = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i]) throw Error(what_ + " misses its argument '" + names.begin()[i] + "'");
  }
}

int64_t Bound::integer(size_t i, int64_t otherwise) const {
  return has(i) ? to_index((*this)[i], what_) : otherwise;
}

const Value* Bound::given(size_t i) const {
  return has(i) && !(*this)[i].is(Kind::none) ? &(*this)[i] : nullptr;
}

void require_defined(const Value& value) {
  if (value.is(Kind::undefined)) throw Error(value.undefined_message());
}

int64_t to_index(const Value& value, std::string_view what) {
  require_defined(value);
  if (!value.is_integral()) {
    throw Error(std::string(what) + " needs an integer, got '" + value.type_name() + "'");
  }
  return value.as_integer();
}

std::vector<Value> iterate(Runtime& runtime, const Value& value) {
  std::vector<Value> out;
  switch (value.kind()) {
    case Kind::undefined: break;
    case Kind::list:
      runtime.charge(value.list_items().size());
      return value.list_items();
    case Kind::dict:
      runtime.charge(value.dict().items().size());
      for (const auto& [key, item] : value.dict().items()) out.push_back(key);
      break;
    case Kind::string:
      runtime.charge(value.string().size());
      for_each_character(value.string(), [&](std::string_view c) { out.push_back(runtime.text(c)); });
      break;
    default: throw Error("'" + value.type_name() + "' object is not iterable");
  }
  return out;
}

namespace {

class BoundMethod : public Object {
 public:
  BoundMethod(Value self, Method method) : self_(std::move(self)), method_(method) {}
  std::string type_name() const override { return "method"; }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const CallArgs& args) override {
    return method_(runtime, self_, args);
  }

 private:
  Value self_;
  Method method_;
};

std::optional<Value> find_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is(Kind::object)) return object.object()->attribute(runtime, name);
  if (Method method = find_method(object, name); method != nullptr) {
    return Value(std::make_shared<BoundMethod>(object, method));
  }
  return std::nullopt;
}

Value missing(const Value& object, std::string_view name) {
  const std::string owner = object.is(Kind::none) ? "'None'" : "'" + object.type_name() + " object'";
  return Value::undefined(owner + " has no attribute '" + std::string(name.substr(0, 100)) + "'");
}

}  // namespace

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  runtime.charge_scan(name);
  require_defined(object);
  if (auto found = find_attribute(runtime, object, name)) return *std::move(found);
  if (object.is(Kind::dict)) {
    if (const Value* item = object.dict().find(name)) return *item;
  }
  return missing(object, name);
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  runtime.charge();
  require_defined(object);
  if (object.is(Kind::dict)) {
    if (const Value* item = find_item(runtime, object.dict(), key)) return *item;
  }
  if (key.is(Kind::string)) {
    if (auto found = find_attribute(runtime, object, key.string())) return *std::move(found);
    return missing(object, key.string());
  }
  if (key.is_integral() && (object.is(Kind::list) || object.is(Kind::string))) {
    const bool is_list = object.is(Kind::list);
    if (!is_list) runtime.charge_scan(object.string());
    const int64_t size = static_cast<int64_t>(is_list ? object.list_items().size()
                                                      : length(object.string()));
    int64_t index = key.as_integer();
    if (index < 0) index += size;
    if (index >= 0 && index < size) {
      const size_t at = static_cast<size_t>(index);
      if (is_list) return object.list_items()[at];
      runtime.charge_scan(object.string());
      return runtime.text(character_range(object.string(), at, at + 1));
    }
  }
  return Value::undefined("'" + object.type_name() + " object' has no element " +
                          (key.is_number() ? repr(key) : "of type '" + key.type_name() + "'"));
}

Value get_slice(Runtime& runtime, const Value& object, const Value* start, const Value* stop,
                const Value* step) {
  require_defined(object);
  if (!object.is(Kind::list) && !object.is(Kind::string)) {
    return Value::undefined("'" + object.type_name() + "' object cannot be sliced");
  }
  const bool is_list = object.is(Kind::list);
  if (is_list) {
    runtime.charge(1 + object.list_items().size() / 8);
  } else {
    runtime.charge_scan(object.string());
  }
  const int64_t size = static_cast<int64_t>(is_list ? object.list_items().size() : length(object.string()));
  auto given = [](const Value* v) { return v != nullptr && !v->is(Kind::none); };
  const int64_t stride = given(step) ? to_index(*step, "a slice") : 1;
  if (stride == 0) throw Error("slice step cannot be zero");
  const int64_t low = stride > 0 ? 0 : -1;
  const int64_t high = stride > 0 ? size : size - 1;
  auto bound = [&](const Value* v, int64_t otherwise) {
    if (!given(v)) return otherwise;
    int64_t i = to_index(*v, "a slice");
    return std::clamp(i < 0 ? i + size : i, low, high);
  };
  const int64_t from = bound(start, stride > 0 ? low : high);
  const int64_t to = bound(stop, stride > 0 ? high : low);
  if (!is_list && stride == 1) {
    runtime.charge_scan(object.string());
    return runtime.text(character_range(object.string(), static_cast<size_t>(from),
                                        static_cast<size_t>(std::max(from, to))));
  }
  std::vector<std::string_view> chars;
  if (!is_list) {
    runtime.charge_characters(object.string());
    chars = characters(object.string());
  }
  std::vector<Value> items;
  std::string text;
  for (int64_t i = from; stride > 0 ? i < to : i > to;) {
    runtime.charge();
    if (is_list) {
      items.push_back(object.list_items()[static_cast<size_t>(i)]);
    } else {
      text += chars[static_cast<size_t>(i)];
    }
    if (__builtin_add_overflow(i, stride, &i)) break;
  }
  if (!is_list) return runtime.text(std::move(text));
  return object.is_tuple() ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

Value call(Runtime& runtime, const Value& callee, const CallArgs& args) {
  runtime.charge(2);
  require_defined(callee);
  if (!callee.is(Kind::object)) throw Error("'" + callee.type_name() + "' object is not callable");
  return callee.object()->call(runtime, args);
}

}  // namespace warpweave::jinja
