#include "text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/unicode.h"

namespace warpweave::jinja {

namespace {

// Makes `whole` hold `part` as well.
void include(Extent& whole, const Extent& part) {
  whole.depth = std::max(whole.depth, 1 + part.depth);
  whole.weight += part.weight;
  if (whole.depth > kMaxValueDepth) {
    throw Error("a list or mapping is nested deeper than " + std::to_string(kMaxValueDepth) +
                " levels; flatten it");
  }
  if (whole.weight > kMaxValueWeight) {
    throw Error("a list or mapping holds more than " + std::to_string(kMaxValueWeight >> 20) +
                " MiB; send less");
  }
}

}  // namespace

std::optional<Value> Object::attribute(Runtime&, std::string_view) { return std::nullopt; }

Value Object::call(Runtime&, const CallArgs&) {
  throw Error("'" + type_name() + "' object is not callable");
}

namespace {
constexpr size_t kFewNames = 8;
}  // namespace

size_t NameIndex::find(std::string_view name) const {
  if (many_.empty()) {
    for (const auto& [known, position] : few_) {
      if (known == name) return position;
    }
    return kNone;
  }
  const auto it = many_.find(name);
  return it == many_.end() ? kNone : it->second;
}

void NameIndex::add(std::string_view name, size_t position) {
  if (many_.empty()) {
    few_.emplace_back(name, position);
    if (few_.size() > kFewNames) many_.insert(few_.begin(), few_.end());
  } else {
    many_.emplace(name, position);
  }
}

void NameIndex::clear() {
  few_.clear();
  many_.clear();
}

const Value* Dict::find(std::string_view key) const {
  const size_t i = index_.find(key);
  return i == NameIndex::kNone ? nullptr : &items_[i].second;
}

size_t Dict::position(const Value& key) const {
  if (key.is(Kind::string)) return std::min(index_.find(key.string()), items_.size());
  for (size_t i : other_keys_) {
    if (equal(items_[i].first, key)) return i;
  }
  return items_.size();
}

const Value* Dict::find(const Value& key) const {
  size_t i = position(key);
  return i < items_.size() ? &items_[i].second : nullptr;
}

void Dict::set(Value key, Value value) {
  if (key.is(Kind::dict) || (key.is(Kind::list) && !key.is_tuple())) {
    throw Error("unhashable type: '" + key.type_name() + "' cannot be a mapping key");
  }
  include(extent_, key.extent());
  include(extent_, value.extent());
  size_t i = position(key);
  if (i < items_.size()) {
    items_[i].second = std::move(value);
    return;
  }
  if (key.is(Kind::string)) {
    index_.add(key.string(), items_.size());
  } else {
    // Whoever walks or compares the mapping pays for the search.
    extent_.weight += key.extent().weight * other_keys_.size();
    other_keys_.push_back(items_.size());
  }
  items_.emplace_back(std::move(key), std::move(value));
}

Value Value::undefined(std::string what) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

Value::Value(List list) {
  list.extent = {1, kNodeWeight};
  for (const Value& item : list.items) include(list.extent, item.extent());
  data_ = std::make_shared<const List>(std::move(list));
}

Value Value::list(std::vector<Value> items) { return Value(List{std::move(items), false}); }

Value Value::tuple(std::vector<Value> items) { return Value(List{std::move(items), true}); }

double Value::as_real() const {
  return is(Kind::real) ? real() : static_cast<double>(as_integer());
}

bool Value::truthy() const {
  switch (kind()) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean: return boolean();
    case Kind::integer: return as_integer() != 0;
    case Kind::real: return real() != 0;
    case Kind::string: return !string().empty();
    case Kind::list: return !list_items().empty();
    case Kind::dict: return !dict().items().empty();
    case Kind::object: return true;
  }
  return false;
}

Extent Value::extent() const {
  if (is(Kind::string)) return {0, kNodeWeight + string().size()};
  if (is(Kind::list)) return std::get<std::shared_ptr<const List>>(data_)->extent;
  if (is(Kind::dict)) return dict().extent();
  return {0, kNodeWeight};
}

std::string Value::type_name() const {
  switch (kind()) {
    case Kind::undefined: return "Undefined";
    case Kind::none: return "NoneType";
    case Kind::boolean: return "bool";
    case Kind::integer: return "int";
    case Kind::real: return "float";
    case Kind::string: return "str";
    case Kind::list: return is_tuple() ? "tuple" : "list";
    case Kind::dict: return "dict";
    case Kind::object: return object()->type_name();
  }
  return "";
}

std::string Value::undefined_message() const {
  const auto& what = std::get<Undefined>(data_).what;
  return what ? *what : "the value is undefined";
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is(Kind::real) || b.is(Kind::real)) return a.as_real() == b.as_real();
    return a.as_integer() == b.as_integer();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::string: return a.string() == b.string();
    case Kind::list:
      return a.is_tuple() == b.is_tuple() && a.list_items().size() == b.list_items().size() &&
             std::equal(a.list_items().begin(), a.list_items().end(), b.list_items().begin(), equal);
    case Kind::dict: {
      const auto& items = a.dict().items();
      return items.size() == b.dict().items().size() &&
             std::all_of(items.begin(), items.end(), [&](const auto& item) {
               const Value* other = b.dict().find(item.first);
               return other != nullptr && equal(item.second, *other);
             });
    }
    case Kind::object: return a.object() == b.object();
    default: return true;  // two undefined, two None
  }
}

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is(Kind::real) || b.is(Kind::real)) return a.as_real() < b.as_real();
    return a.as_integer() < b.as_integer();
  }
  // UTF-8 sorts like the code points it encodes.
  if (a.is(Kind::string) && b.is(Kind::string)) return a.string() < b.string();
  if (a.is(Kind::list) && b.is(Kind::list) && a.is_tuple() == b.is_tuple()) {
    const auto& left = a.list_items();
    const auto& right = b.list_items();
    for (size_t i = 0; i < left.size() && i < right.size(); ++i) {
      if (!equal(left[i], right[i])) return less(left[i], right[i]);
    }
    return left.size() < right.size();
  }
  for (const Value* v : {&a, &b}) {
    if (v->is(Kind::undefined)) throw Error(v->undefined_message());
  }
  throw Error("'" + a.type_name() + "' and '" + b.type_name() + "' cannot be ordered");
}

std::string format_real(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  size_t e = text.find('e');
  int exponent = std::atoi(text.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) return text;
  end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::fixed).ptr;
  text.assign(buffer, end);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string to_string(const Value& value) {
  if (value.is(Kind::string)) return value.string();
  if (value.is(Kind::undefined)) return "";
  return repr(value);
}

std::string repr(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined: return "Undefined";
    case Kind::none: return "None";
    case Kind::boolean: return value.boolean() ? "True" : "False";
    case Kind::integer: return std::to_string(value.as_integer());
    case Kind::real: return format_real(value.real());
    case Kind::string: return quote(value.string());
    case Kind::object: return "<" + value.type_name() + ">";
    case Kind::list: {
      const auto& items = value.list_items();
      std::string out = value.is_tuple() ? "(" : "[";
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out += ", ";
        out += repr(items[i]);
      }
      if (value.is_tuple() && items.size() == 1) out += ',';
      out += value.is_tuple() ? ')' : ']';
      return out;
    }
    case Kind::dict: {
      std::string out = "{";
      for (const auto& [key, item] : value.dict().items()) {
        if (out.size() > 1) out += ", ";
        out += repr(key) + ": " + repr(item);
      }
      return out + "}";
    }
  }
  return "";
}

}  // namespace warpweave::jinja
