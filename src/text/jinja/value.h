// The values a template computes with: Python's None, bool, int, float, str, list, tuple and dict,
// jinja2's undefined, and objects (namespaces, loops, macros, methods).
//
// Values are immutable and cheap to copy (strings and containers are shared), except the attributes
// of a namespace. Lists and dicts know how deep and how heavy they are when written out in full, so
// that none can be built that would exhaust the stack or the machine when walked, printed or freed. Failures are thrown
// as jinja::Error and caught in chat_template.cc; none leaves the library.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace warpweave::jinja {

class Runtime;
class Value;

inline constexpr int kMaxValueDepth = 200;
inline constexpr size_t kMaxValueWeight = size_t{128} << 20;

// What a template did wrong; the line is added where it is caught, unless the thrower knew it.
struct Error : std::runtime_error {
  explicit Error(const std::string& message, int at_line = 0)
      : std::runtime_error(message), line(at_line) {}
  int line;
};

// The template itself refused its input through raise_exception.
struct RaisedByTemplate : Error {
  using Error::Error;
};

// How deep a value nests and how much it holds: string bytes plus kNodeWeight for every value, those
// shared by several containers counted each time.
struct Extent {
  int depth = 0;
  size_t weight = 0;
};
inline constexpr size_t kNodeWeight = 8;

// Where each name stands in a list. Few names are compared one by one; more are kept sorted: names that are
// hashed could be chosen to collide. The names must outlive the index.
class NameIndex {
 public:
  static constexpr size_t kNone = SIZE_MAX;
  size_t find(std::string_view name) const;
  void add(std::string_view name, size_t position);  // that is not there yet
  void clear();

 private:
  std::vector<std::pair<std::string_view, size_t>> few_;
  std::map<std::string_view, size_t> many_;
};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  Extent extent = {};
};

class Dict {
 public:
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }
  const Value* find(std::string_view key) const;
  const Value* find(const Value& key) const;
  // Replaces an equal key. Throws on a key Python cannot hash.
  void set(Value key, Value value);
  const Extent& extent() const { return extent_; }
  size_t other_keys() const { return other_keys_.size(); }

 private:
  size_t position(const Value& key) const;

  std::vector<std::pair<Value, Value>> items_;
  NameIndex index_;                 // of string keys; their text is shared and stays where it is
  std::vector<size_t> other_keys_;  // positions of the rest, searched one by one
  Extent extent_{1, kNodeWeight};
};

// Arguments of a call, a filter or a test.
struct CallArgs {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual std::optional<Value> attribute(Runtime& runtime, std::string_view name);
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& runtime, const CallArgs& args);
};

enum class Kind { undefined, none, boolean, integer, real, string, list, dict, object };

struct Undefined {
  std::shared_ptr<const std::string> what;  // "'x' is undefined", for the error when it is used
};
struct None {};

class Value {
 public:
  Value() = default;  // undefined
  Value(None) : data_(None{}) {}
  explicit Value(bool b) : data_(b) {}
  explicit Value(int64_t i) : data_(i) {}
  explicit Value(double d) : data_(d) {}
  explicit Value(std::string s) : data_(std::make_shared<const std::string>(std::move(s))) {}
  explicit Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}
  explicit Value(std::shared_ptr<const Dict> dict) : data_(std::move(dict)) {}
  static Value undefined(std::string what);
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind k) const { return kind() == k; }
  bool is_number() const {
    return is(Kind::boolean) || is(Kind::integer) || is(Kind::real);
  }
  bool is_integral() const { return is(Kind::boolean) || is(Kind::integer); }

  // Each needs the matching kind.
  bool boolean() const { return std::get<bool>(data_); }
  double real() const { return std::get<double>(data_); }
  const std::string& string() const {
    return *std::get<std::shared_ptr<const std::string>>(data_);
  }
  const std::vector<Value>& list_items() const {
    return std::get<std::shared_ptr<const List>>(data_)->items;
  }
  bool is_tuple() const {
    return is(Kind::list) && std::get<std::shared_ptr<const List>>(data_)->is_tuple;
  }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  const std::shared_ptr<Object>& object() const {
    return std::get<std::shared_ptr<Object>>(data_);
  }
  // An int or a bool as Python's int; any number as float.
  int64_t as_integer() const { return is(Kind::boolean) ? boolean() : std::get<int64_t>(data_); }
  double as_real() const;

  bool truthy() const;
  Extent extent() const;
  std::string type_name() const;  // as Python names it: "str", "NoneType"
  std::string undefined_message() const;

 private:
  explicit Value(List list);

  // In the order of Kind.
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Object>>
      data_;
};

// Python's ==; values of unlike kinds are unequal.
bool equal(const Value& a, const Value& b);
// Python's <, for numbers, strings and lists. Throws for anything else.
bool less(const Value& a, const Value& b);

// str(value) and repr(value).
std::string to_string(const Value& value);
std::string repr(const Value& value);
std::string format_real(double value);

}  // namespace warpweave::jinja
