#include "text/jinja/methods.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "text/jinja/format.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace warpweave::jinja {

Value replace_text(Runtime& runtime, std::string_view text, std::string_view from,
                   std::string_view to, int64_t count) {
  runtime.charge_scan(text);
  runtime.charge_scan(from);
  const size_t most = count < 0 ? SIZE_MAX : static_cast<size_t>(count);
  size_t found = 0;
  if (from.empty()) {
    found = std::min(most, length(text) + 1);
  } else {
    for (size_t at = find_text(text, from); at != std::string_view::npos && found < most;
         at = find_text(text, from, at + from.size())) {
      runtime.charge(2);  // for finding it twice
      ++found;
    }
  }
  runtime.charge(found);
  runtime.charge_bytes(found, to.size());
  runtime.charge_bytes(text.size());
  std::string out;
  size_t at = 0;
  for (size_t i = 0; i < found; ++i) {
    size_t hit = from.empty() ? at : find_text(text, from, at);
    out.append(text.substr(at, hit - at)).append(to);
    at = hit + from.size();
    if (from.empty() && at < text.size()) {
      size_t bytes = decode(text, at).bytes;
      out.append(text.substr(at, bytes));
      at += bytes;
    }
  }
  if (at < text.size()) out.append(text.substr(at));
  return runtime.text(std::move(out));
}

Value pad_text(Runtime& runtime, std::string_view text, int64_t width, std::string_view fill,
               Align align) {
  runtime.charge_scan(text);
  runtime.charge_scan(fill);
  if (length(fill) != 1) throw Error("the fill of a padded string must be one character");
  const int64_t missing = width - static_cast<int64_t>(length(text));
  if (missing <= 0) return runtime.text(text);
  runtime.charge_bytes(static_cast<size_t>(missing), fill.size());
  runtime.charge(static_cast<size_t>(missing) / 8);
  // str.center puts the odd blank on the left when the width is odd.
  const int64_t left = align == Align::left    ? 0
                       : align == Align::right ? missing
                                               : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < missing; ++i) out += fill;
  return runtime.text(std::move(out));
}

Value dict_items(Runtime& runtime, const Value& dict) {
  runtime.charge(4 * dict.dict().items().size());
  std::vector<Value> out;
  for (const auto& [key, item] : dict.dict().items()) out.push_back(Value::tuple({key, item}));
  return Value::list(std::move(out));
}

namespace {

using Args = const CallArgs&;

const std::string& text_arg(const Value& value, std::string_view what) {
  require_defined(value);
  if (!value.is(Kind::string)) {
    throw Error(std::string(what) + " needs a string, got '" + value.type_name() + "'");
  }
  return value.string();
}

template <Side side>
Value strip_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "strip()", {"chars"});
  rt.charge_scan(self.string());
  if (const Value* chars = b.given(0)) {
    std::string_view set = text_arg(*chars, "strip()");
    rt.charge_characters(set);
    rt.charge_characters(self.string());
    return rt.text(strip(self.string(), side, &set));
  }
  return rt.text(strip(self.string(), side));
}

template <std::string (*convert)(std::string_view), bool one_by_one = false>
Value convert_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "a string method", {});
  one_by_one ? rt.charge_conversions(self.string()) : rt.charge_characters(self.string());
  return rt.text(convert(self.string()));
}

std::string swapcase(std::string_view text) {
  std::string out;
  for_each_character(text, [&](std::string_view c) { out += is_upper(c) ? lower(c) : upper(c); });
  return out;
}

std::vector<Value> texts(Runtime& rt, const std::vector<std::string_view>& parts) {
  rt.charge(parts.size());
  std::vector<Value> out;
  out.reserve(parts.size());
  for (std::string_view part : parts) out.push_back(rt.text(part));
  return out;
}

// Splits at a separator, from the left.
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       int64_t max_splits) {
  std::vector<std::string_view> out;
  size_t at = 0;
  while (max_splits < 0 || static_cast<int64_t>(out.size()) < max_splits) {
    size_t hit = find_text(text, separator, at);
    if (hit == std::string_view::npos) break;
    out.push_back(text.substr(at, hit - at));
    at = hit + separator.size();
  }
  out.push_back(text.substr(at));
  return out;
}

std::vector<std::string_view> split_at_right(std::string_view text, std::string_view separator,
                                             int64_t max_splits) {
  std::vector<std::string_view> out;
  for (size_t hit : find_from_right(text, separator, max_splits)) {
    out.push_back(text.substr(hit + separator.size()));
    text = text.substr(0, hit);
  }
  out.push_back(text);
  std::reverse(out.begin(), out.end());
  return out;
}

// str.rsplit() on whitespace.
std::vector<std::string_view> split_whitespace_right(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> out;
  text = strip(text, Side::right);
  while (!text.empty() && (max_splits < 0 || static_cast<int64_t>(out.size()) < max_splits)) {
    size_t begin = text.size();
    while (begin > 0) {
      const size_t start = last_character(text.substr(0, begin));
      if (is_space(decode(text, start).value)) break;
      begin = start;
    }
    out.push_back(text.substr(begin));
    text = strip(text.substr(0, begin), Side::right);
  }
  if (!text.empty()) out.push_back(text);
  std::reverse(out.begin(), out.end());
  return out;
}

template <bool from_right>
Value split_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "split()", {"sep", "maxsplit"});
  rt.charge_scan(self.string());
  rt.charge_scan(self.string());  // the parts are noted before they are counted
  const int64_t most = b.integer(1, -1);
  const Value* separator = b.given(0);
  if (separator == nullptr) {
    return Value::list(texts(rt, from_right ? split_whitespace_right(self.string(), most)
                                            : split_whitespace(self.string(), most)));
  }
  const std::string& sep = text_arg(*separator, "split()");
  if (sep.empty()) throw Error("split() got an empty separator");
  return Value::list(texts(rt, from_right ? split_at_right(self.string(), sep, most)
                                          : split_at(self.string(), sep, most)));
}

Value splitlines_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "splitlines()", {"keepends"});
  rt.charge_scan(self.string());
  return Value::list(texts(rt, split_lines(self.string(), b.truth(0, false))));
}

// Where `part` is, or npos.
template <bool from_right>
size_t find_one(Runtime& rt, std::string_view text, std::string_view part) {
  rt.charge_scan(text);
  rt.charge_scan(part);
  if (!from_right) return find_text(text, part);
  const std::vector<size_t> hits = find_from_right(text, part, 1);
  return hits.empty() ? std::string_view::npos : hits[0];
}

template <bool from_right>
Value partition_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "partition()", {"sep"}, 1);
  const std::string& sep = text_arg(b[0], "partition()");
  if (sep.empty()) throw Error("partition() got an empty separator");
  rt.charge_scan(self.string());
  const std::string_view text = self.string();
  const size_t hit = find_one<from_right>(rt, text, sep);
  if (hit == std::string_view::npos) {
    if (from_right) return Value::tuple(texts(rt, {"", "", text}));
    return Value::tuple(texts(rt, {text, "", ""}));
  }
  return Value::tuple(texts(rt, {text.substr(0, hit), sep, text.substr(hit + sep.size())}));
}

template <bool at_end>
Value affix_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, at_end ? "endswith()" : "startswith()", {"prefix", "start", "end"}, 1);
  Value text = self;
  if (b.has(1) || b.has(2)) {
    text = get_slice(rt, self, b.given(1), b.given(2), nullptr);
  }
  auto matches = [&](const Value& affix) {
    const std::string& part = text_arg(affix, at_end ? "endswith()" : "startswith()");
    rt.charge_scan(std::string_view(part).substr(0, text.string().size()));
    return at_end ? std::string_view(text.string()).ends_with(part)
                  : std::string_view(text.string()).starts_with(part);
  };
  rt.charge();
  if (b[0].is_tuple()) {
    rt.charge(b[0].list_items().size());
    return Value(std::any_of(b[0].list_items().begin(), b[0].list_items().end(), matches));
  }
  return Value(matches(b[0]));
}

template <bool at_end>
Value remove_affix_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, at_end ? "removesuffix()" : "removeprefix()", {"affix"}, 1);
  const std::string& part = text_arg(b[0], "removeprefix()");
  std::string_view text = self.string();
  rt.charge_scan(std::string_view(part).substr(0, text.size()));
  if (at_end && !part.empty() && text.ends_with(part)) text.remove_suffix(part.size());
  if (!at_end && text.starts_with(part)) text.remove_prefix(part.size());
  return rt.text(text);
}

Value replace_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "replace()", {"old", "new", "count"}, 2);
  return replace_text(rt, self.string(), text_arg(b[0], "replace()"), text_arg(b[1], "replace()"),
                      b.integer(2, -1));
}

template <bool from_right, bool must_exist>
Value find_method_of(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "find()", {"sub", "start", "end"}, 1);
  const std::string& part = text_arg(b[0], "find()");
  rt.charge_scan(self.string());
  if (b.has(1) || b.has(2)) {
    Value window = get_slice(rt, self, b.given(1), b.given(2), nullptr);
    const size_t hit = find_one<from_right>(rt, window.string(), part);
    if (hit != std::string::npos) {
      rt.charge_scan(self.string());
      int64_t start = b.given(1) != nullptr ? b.integer(1, 0) : 0;
      const int64_t size = static_cast<int64_t>(length(self.string()));
      if (start < 0) start = std::max<int64_t>(0, start + size);
      return Value(start + static_cast<int64_t>(length(window.string().substr(0, hit))));
    }
  } else {
    const size_t hit = find_one<from_right>(rt, self.string(), part);
    if (hit != std::string::npos) {
      return Value(static_cast<int64_t>(length(std::string_view(self.string()).substr(0, hit))));
    }
  }
  if (must_exist) throw Error("substring not found");
  return Value(int64_t{-1});
}

Value count_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "count()", {"sub"}, 1);
  int64_t count = 0;
  if (self.is(Kind::list)) {
    for (const Value& item : self.list_items()) {
      rt.charge_equal(item, b[0]);
      count += equal(item, b[0]);
    }
    return Value(count);
  }
  const std::string& part = text_arg(b[0], "count()");
  rt.charge_scan(self.string());
  rt.charge_scan(part);
  if (part.empty()) return Value(static_cast<int64_t>(length(self.string())) + 1);
  for (size_t at = find_text(self.string(), part); at != std::string::npos;
       at = find_text(self.string(), part, at + part.size())) {
    rt.charge();
    ++count;
  }
  return Value(count);
}

Value join_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "join()", {"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const Value& item : iterate(rt, b[0])) {
    const std::string& part = text_arg(item, "join()");
    rt.charge_bytes(part.size() + self.string().size());
    if (!first) out += self.string();
    out += part;
    first = false;
  }
  return rt.text(std::move(out));
}

template <Align align>
Value pad_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "a padding method", {"width", "fillchar"}, 1);
  return pad_text(rt, self.string(), b.integer(0, 0), b.has(1) ? text_arg(b[1], "fillchar") : " ",
                  align);
}

Value zfill_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "zfill()", {"width"}, 1);
  const std::string& text = self.string();
  const bool sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  Value digits = pad_text(rt, std::string_view(text).substr(sign), b.integer(0, 0) - sign, "0",
                          Align::right);
  return rt.text((sign ? text.substr(0, 1) : "") + digits.string());
}

Value format_method(Runtime& rt, const Value& self, Args args) {
  return brace_format(rt, self.string(), args);
}

template <bool (*predicate)(char32_t)>
Value every_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "a string method", {});
  rt.charge_characters(self.string());
  bool all = !self.string().empty();
  for (size_t at = 0; all && at < self.string().size();) {
    const CodePoint c = decode(self.string(), at);
    all = predicate(c.value);
    at += c.bytes;
  }
  return Value(all);
}

template <bool (*predicate)(std::string_view)>
Value case_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "a string method", {});
  rt.charge_characters(self.string());
  return Value(predicate(self.string()));
}

bool is_alnum(char32_t c) { return is_alpha(c) || is_digit(c); }

Value isascii_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "isascii()", {});
  rt.charge_scan(self.string());
  return Value(std::all_of(self.string().begin(), self.string().end(),
                           [](unsigned char c) { return c < 0x80; }));
}

Value index_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "index()", {"value"}, 1);
  const auto& items = self.list_items();
  auto it = std::find_if(items.begin(), items.end(), [&](const Value& v) {
    rt.charge_equal(v, b[0]);
    return equal(v, b[0]);
  });
  if (it == items.end()) throw Error("the value is not in the list");
  return Value(static_cast<int64_t>(it - items.begin()));
}

Value copy_method(Runtime&, const Value& self, Args args) {
  Bound b(args, "copy()", {});
  return self;
}

Value get_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "get()", {"key", "default"}, 1);
  const Value* found = find_item(rt, self.dict(), b[0]);
  return found != nullptr ? *found : b.has(1) ? b[1] : Value(None{});
}

Value items_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, "items()", {});
  return dict_items(rt, self);
}

template <bool keys>
Value column_method(Runtime& rt, const Value& self, Args args) {
  Bound b(args, keys ? "keys()" : "values()", {});
  rt.charge(self.dict().items().size());
  std::vector<Value> out;
  for (const auto& [key, item] : self.dict().items()) out.push_back(keys ? key : item);
  return Value::list(std::move(out));
}

Value is_integer_method(Runtime&, const Value& self, Args args) {
  Bound b(args, "is_integer()", {});
  return Value(!self.is(Kind::real) || std::floor(self.real()) == self.real());
}

struct Entry {
  std::string_view name;
  Method method;
};

constexpr std::array kStringMethods = std::to_array<Entry>({
    {"capitalize", convert_method<capitalize>},
    {"casefold", convert_method<lower>},
    {"center", pad_method<Align::center>},
    {"count", count_method},
    {"endswith", affix_method<true>},
    {"find", find_method_of<false, false>},
    {"format", format_method},
    {"index", find_method_of<false, true>},
    {"isalnum", every_method<is_alnum>},
    {"isalpha", every_method<is_alpha>},
    {"isascii", isascii_method},
    {"isdecimal", every_method<is_digit>},
    {"isdigit", every_method<is_digit>},
    {"islower", case_method<is_lower>},
    {"isnumeric", every_method<is_digit>},
    {"isspace", every_method<is_space>},
    {"isupper", case_method<is_upper>},
    {"join", join_method},
    {"ljust", pad_method<Align::left>},
    {"lower", convert_method<lower>},
    {"lstrip", strip_method<Side::left>},
    {"partition", partition_method<false>},
    {"removeprefix", remove_affix_method<false>},
    {"removesuffix", remove_affix_method<true>},
    {"replace", replace_method},
    {"rfind", find_method_of<true, false>},
    {"rindex", find_method_of<true, true>},
    {"rjust", pad_method<Align::right>},
    {"rpartition", partition_method<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip_method<Side::right>},
    {"split", split_method<false>},
    {"splitlines", splitlines_method},
    {"startswith", affix_method<false>},
    {"strip", strip_method<Side::both>},
    {"swapcase", convert_method<swapcase, true>},
    {"title", convert_method<title, true>},
    {"upper", convert_method<upper>},
    {"zfill", zfill_method},
});
constexpr std::array kListMethods = std::to_array<Entry>({
    {"copy", copy_method},
    {"count", count_method},
    {"index", index_method},
});
constexpr std::array kDictMethods = std::to_array<Entry>({
    {"copy", copy_method},
    {"get", get_method},
    {"items", items_method},
    {"keys", column_method<true>},
    {"values", column_method<false>},
});
constexpr std::array kNumberMethods = std::to_array<Entry>({{"is_integer", is_integer_method}});

template <size_t n>
Method search(const std::array<Entry, n>& table, std::string_view name) {
  for (const Entry& entry : table) {
    if (entry.name == name) return entry.method;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string_view> method_names() {
  std::vector<std::string_view> names;
  const auto add = [&](const auto& table) {
    for (const Entry& entry : table) names.push_back(entry.name);
  };
  add(kStringMethods);
  add(kListMethods);
  add(kDictMethods);
  add(kNumberMethods);
  return names;
}

Method find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::string: return search(kStringMethods, name);
    case Kind::list: return search(kListMethods, name);
    case Kind::dict: return search(kDictMethods, name);
    case Kind::real: return search(kNumberMethods, name);
    default: return nullptr;
  }
}

}  // namespace warpweave::jinja
