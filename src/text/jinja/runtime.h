// One rendering's budget and clock, and the helpers that filters, methods and operators share.
//
// Everything is paid for before it is done, in one unit of work: a node evaluated, a value made, touched or
// compared; kCopyBytes of text copied; kScanBytes of text looked through. What takes longer costs more, so
// that a unit is about 50 ns whatever a template does, and at most 64 bytes of memory. A spent budget throws
// jinja::Error.
#pragma once

#include <ctime>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace warpweave::jinja {

struct Limits {
  size_t max_work;
  size_t max_string_bytes;
};

inline constexpr int64_t kMaxRange = 100'000;
inline constexpr size_t kCopyBytes = 64;
inline constexpr size_t kScanBytes = 16;
inline constexpr size_t kObjectWork = 50;  // for a macro or namespace, held until the end

class Runtime {
 public:
  Runtime(const Limits& limits, std::tm now) : limits_(limits), now_(now) {}

  void charge(size_t work = 1);
  // Before a string of `bytes` bytes is built.
  void charge_bytes(size_t bytes);
  // Before a product of sizes: `count` pieces of `bytes` each.
  void charge_bytes(size_t count, size_t bytes);
  // Before `text` is searched or decoded.
  void charge_scan(std::string_view text) { charge(1 + text.size() / kScanBytes); }
  // Before each character of `text` is looked at in Unicode's tables.
  void charge_characters(std::string_view text) { charge(1 + text.size() / 2); }
  // Before each character is converted on its own, as in titles.
  void charge_conversions(std::string_view text) { charge(1 + 4 * text.size()); }
  // Before `value` is walked in full.
  void charge_walk(const Value& value) { charge(1 + value.extent().weight / kNodeWeight); }
  // Before `value` is written out as Python's repr().
  void charge_repr(const Value& value) { charge(1 + value.extent().weight / 2); }
  // Before two values are compared; `less` looks again at every level.
  void charge_equal(const Value& a, const Value& b);
  void charge_less(const Value& a, const Value& b);

  // A string value; pays for it.
  Value text(std::string s);
  Value text(std::string_view s) { return text(std::string(s)); }
  // str(value), paid for.
  std::string str(const Value& value);

  size_t work() const { return work_; }  // done so far
  const std::tm& now() const { return now_; }
  const Limits& limits() const { return limits_; }

  int line = 0;  // of the node being evaluated

 private:
  Limits limits_;
  std::tm now_;
  size_t work_ = 0;
};

// The arguments of one call laid out by parameter name.
class Bound {
 public:
  // Throws when one is missing, unknown, given twice or one too many. `what` names the callee.
  Bound(const CallArgs& args, std::string_view what, std::initializer_list<const char*> names,
        size_t required = 0);

  bool has(size_t i) const { return values_[i].has_value(); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  int64_t integer(size_t i, int64_t otherwise) const;
  bool truth(size_t i, bool otherwise) const { return has(i) ? (*this)[i].truthy() : otherwise; }
  // The argument if it is given and not None.
  const Value* given(size_t i) const;

 private:
  std::string what_;
  std::vector<std::optional<Value>> values_;
};

// Fails with Python's reason when `value` is undefined.
void require_defined(const Value& value);
int64_t to_index(const Value& value, std::string_view what);

// The item of a key, or null; and setting one. Keys that are no strings are compared one by one.
const Value* find_item(Runtime& runtime, const Dict& dict, const Value& key);
void set_item(Runtime& runtime, Dict& dict, Value key, Value value);

// Whether one of `items` equals `value`, and how many do.
bool holds(Runtime& runtime, const std::vector<Value>& items, const Value& value);

// What Python's iter() gives, as a list.
std::vector<Value> iterate(Runtime& runtime, const Value& value);

// obj.name and obj[key] by jinja2's rules: attributes first for the one, items first for the other;
// what is not there is undefined. Methods that would change a value are not there.
Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
Value get_item(Runtime& runtime, const Value& object, const Value& key);
Value get_slice(Runtime& runtime, const Value& object, const Value* start, const Value* stop,
                const Value* step);

Value arithmetic(Runtime& runtime, std::string_view op, const Value& a, const Value& b);
Value negate(const Value& value);
// op is one of == != < <= > >= in "not in".
bool compare(Runtime& runtime, std::string_view op, const Value& a, const Value& b);

Value call(Runtime& runtime, const Value& callee, const CallArgs& args);

}  // namespace warpweave::jinja
