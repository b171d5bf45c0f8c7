// Filters from one value to one value: text, numbers, JSON.
#include <array>
#include <charconv>
#include <cmath>

#include "text/jinja/expression_parser.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/json.h"
#include "text/jinja/methods.h"
#include "text/jinja/runtime.h"
#include "text/jinja/unicode.h"

namespace warpweave::jinja {

namespace {

using Args = const CallArgs&;

Value string_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "string", {});
  return v.is(Kind::string) ? v : Value(rt.str(v));
}

template <std::string (*convert)(std::string_view), bool one_by_one = false>
Value convert_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "the filter", {});
  const std::string text = rt.str(v);
  one_by_one ? rt.charge_conversions(text) : rt.charge_characters(text);
  return rt.text(convert(text));
}

// Words start behind anything but letters, digits, underscores and apostrophes.
std::string title_words(std::string_view text) {
  std::string out;
  bool inside = false;
  for_each_character(text, [&](std::string_view c) {
    const char32_t code = decode(c, 0).value;
    const bool separator = is_space(code) || std::string_view("-([{<").find(c) != std::string_view::npos;
    out += separator ? std::string(c) : inside ? lower(c) : upper(c);
    inside = !separator;
  });
  return out;
}

Value trim_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "trim", {"chars"});
  const std::string text = rt.str(v);
  if (const Value* chars = b.given(0)) {
    const std::string set = rt.str(*chars);
    const std::string_view view = set;
    rt.charge_characters(set);
    rt.charge_characters(text);
    return rt.text(strip(text, Side::both, &view));
  }
  rt.charge_scan(text);
  return rt.text(strip(text, Side::both));
}

Value replace_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "replace", {"old", "new", "count"}, 2);
  const int64_t count = b.given(2) != nullptr ? b.integer(2, -1) : -1;
  return replace_text(rt, rt.str(v), rt.str(b[0]), rt.str(b[1]), count);
}

Value center_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "center", {"width"});
  return pad_text(rt, rt.str(v), b.integer(0, 80), " ", Align::center);
}

Value format_filter(Runtime& rt, const Value& v, Args args) {
  if (!args.positional.empty() && !args.named.empty()) {
    throw Error("format takes positional or named arguments, not both");
  }
  if (args.named.empty()) return percent_format(rt, rt.str(v), Value::tuple(args.positional));
  auto dict = std::make_shared<Dict>();
  for (const auto& [name, value] : args.named) dict->set(Value(name), value);
  return percent_format(rt, rt.str(v), Value(std::shared_ptr<const Dict>(std::move(dict))));
}

Value indent_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "indent", {"width", "first", "blank"});
  require_defined(v);
  if (!v.is(Kind::string)) throw Error("indent needs a string, got '" + v.type_name() + "'");
  std::string margin;
  if (b.has(0) && b[0].is(Kind::string)) {
    margin = b[0].string();
  } else {
    const int64_t width = std::max<int64_t>(0, b.integer(0, 4));
    rt.charge_bytes(static_cast<size_t>(width));
    margin.assign(static_cast<size_t>(width), ' ');
  }
  const std::string text = v.string() + "\n";
  rt.charge_scan(text);
  const auto lines = split_lines(text);
  rt.charge(lines.size());
  rt.charge_bytes(lines.size(), margin.size() + 1);
  rt.charge_bytes(text.size());
  const bool blank = b.truth(2, false);
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    const bool indented = i == 0 ? b.truth(1, false) : blank || !lines[i].empty();
    if (indented) out += margin;
    out += lines[i];
  }
  return rt.text(std::move(out));
}

Value truncate_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "truncate", {"length", "killwords", "end", "leeway"});
  const std::string text = rt.str(v);
  const std::string end = b.has(2) ? rt.str(b[2]) : "...";
  const int64_t most = b.integer(0, 255);
  const int64_t leeway = b.given(3) != nullptr ? b.integer(3, 5) : 5;
  const int64_t keep = most - static_cast<int64_t>(length(end));
  if (keep < 0 || leeway < 0) throw Error("truncate needs a length of at least that of its end mark");
  rt.charge_scan(text);
  rt.charge_scan(end);
  const int64_t size = static_cast<int64_t>(length(text));
  if (size <= most || size - leeway <= most) return rt.text(text);
  std::string_view head = character_range(text, 0, static_cast<size_t>(keep));
  if (!b.truth(1, false)) head = head.substr(0, head.rfind(' '));
  return rt.text(std::string(head) + end);
}

Value escape_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "escape", {});
  const std::string text = rt.str(v);
  rt.charge_bytes(5, text.size());
  rt.charge_scan(text);
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '\'': out += "&#39;"; break;
      case '"': out += "&#34;"; break;
      default: out += c;
    }
  }
  return Value(std::move(out));
}

Value wordcount_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "wordcount", {});
  const std::string text = rt.str(v);
  rt.charge_characters(text);
  int64_t words = 0;
  bool inside = false;
  for_each_character(text, [&](std::string_view c) {
    const char32_t code = decode(c, 0).value;
    const bool part = is_alpha(code) || is_digit(code) || code == '_';
    words += part && !inside;
    inside = part;
  });
  return Value(words);
}

std::optional<int64_t> parse_integer(std::string_view text, int base) {
  std::string digits;
  for (char c : strip(text, Side::both)) {
    if (c != '_') digits += c;
  }
  const bool negative = !digits.empty() && digits[0] == '-';
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.erase(0, 1);
  const char prefix = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';
  if (prefix != 0 && digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) == prefix) {
    digits.erase(0, 2);
  }
  if (negative) digits.insert(0, "-");
  int64_t result = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result, base);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return result;
}

std::optional<double> parse_real(std::string_view text) {
  std::string_view trimmed = strip(text, Side::both);
  if (trimmed.starts_with('+')) trimmed.remove_prefix(1);
  double result = 0;
  auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), result);
  if (error != std::errc() || end != trimmed.data() + trimmed.size()) return std::nullopt;
  return result;
}

std::optional<int64_t> truncated(double d) {
  if (!(std::fabs(d) < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(d);
}

Value int_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "int", {"default", "base"});
  const Value otherwise = b.has(0) ? b[0] : Value(int64_t{0});
  std::optional<int64_t> result;
  if (v.is(Kind::string)) {
    rt.charge(1 + v.string().size());
    const int64_t base = b.integer(1, 10);
    if (base < 2 || base > 36) throw Error("int needs a base from 2 to 36, got " + std::to_string(base));
    result = parse_integer(v.string(), static_cast<int>(base));
    if (!result) {
      if (auto real = parse_real(v.string())) result = truncated(*real);
    }
  } else if (v.is(Kind::real)) {
    result = truncated(v.real());
  } else if (v.is_integral()) {
    result = v.as_integer();
  }
  require_defined(v);
  return result ? Value(*result) : otherwise;
}

Value float_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "float", {"default"});
  require_defined(v);
  if (v.is_number()) return Value(v.as_real());
  if (v.is(Kind::string)) {
    rt.charge(1 + v.string().size());
    if (auto real = parse_real(v.string())) return Value(*real);
  }
  return b.has(0) ? b[0] : Value(0.0);
}

const Value& number_of(const Value& v, std::string_view what) {
  require_defined(v);
  if (!v.is_number()) throw Error(std::string(what) + " needs a number, got '" + v.type_name() + "'");
  return v;
}

Value abs_filter(Runtime&, const Value& v, Args args) {
  Bound b(args, "abs", {});
  number_of(v, "abs");
  if (v.is(Kind::real)) return Value(std::fabs(v.real()));
  return v.as_integer() < 0 ? negate(v) : Value(v.as_integer());
}

Value round_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "round", {"precision", "method"});
  rt.charge(20);  // three hundred decimals take that long
  number_of(v, "round");
  const std::string method = b.has(1) ? to_string(b[1]) : "common";
  const int64_t precision = std::clamp<int64_t>(b.integer(0, 0), -300, 300);
  if (method == "common") {
    if (v.is_integral() && precision >= 0) return Value(v.as_integer());
    // Correct rounding of the decimal expansion, which is what Python's round does.
    if (precision >= 0) {
      char buffer[700];
      std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), v.as_real());
      return Value(std::strtod(buffer, nullptr));
    }
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    const double rounded = std::nearbyint(v.as_real() / unit) * unit;
    return v.is_integral() ? Value(static_cast<int64_t>(rounded)) : Value(rounded);
  }
  const double unit = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value(std::ceil(v.as_real() * unit) / unit);
  if (method == "floor") return Value(std::floor(v.as_real() * unit) / unit);
  throw Error("round knows the methods common, ceil and floor");
}

Value default_filter(Runtime&, const Value& v, Args args) {
  Bound b(args, "default", {"default_value", "boolean"});
  const bool replace = v.is(Kind::undefined) || (b.truth(1, false) && !v.truthy());
  if (!replace) return v;
  return b.has(0) ? b[0] : Value(std::string());
}

Value identity_filter(Runtime&, const Value& v, Args args) {
  Bound b(args, "safe", {});
  return v;
}

Value attr_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "attr", {"name"}, 1);
  // Unlike v.name this never looks at the items of a mapping.
  return v.is(Kind::dict) && find_method(v, rt.str(b[0])) == nullptr
             ? Value::undefined("'dict object' has no attribute '" + rt.str(b[0]) + "'")
             : get_attribute(rt, v, rt.str(b[0]));
}

Value tojson_filter(Runtime& rt, const Value& v, Args args) {
  Bound b(args, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = b.truth(0, false);
  style.sort_keys = b.truth(3, false);
  if (const Value* indent = b.given(1)) {
    style.pretty = true;
    style.item_separator = ",";
    if (indent->is(Kind::string)) {
      style.indent = indent->string();
    } else {
      const int64_t width = std::max<int64_t>(0, to_index(*indent, "tojson"));
      rt.charge_bytes(static_cast<size_t>(width));
      style.indent.assign(static_cast<size_t>(width), ' ');
    }
  }
  if (const Value* separators = b.given(2)) {
    const auto parts = iterate(rt, *separators);
    if (parts.size() != 2) throw Error("tojson needs two separators");
    style.item_separator = rt.str(parts[0]);
    style.key_separator = rt.str(parts[1]);
  }
  return to_json(rt, v, style);
}

struct Entry {
  std::string_view name;
  FilterFunction filter;
};

constexpr std::array kFilters = std::to_array<Entry>({
    {"abs", abs_filter},
    {"attr", attr_filter},
    {"capitalize", convert_filter<capitalize>},
    {"center", center_filter},
    {"d", default_filter},
    {"default", default_filter},
    {"e", escape_filter},
    {"escape", escape_filter},
    {"float", float_filter},
    {"forceescape", escape_filter},
    {"format", format_filter},
    {"indent", indent_filter},
    {"int", int_filter},
    {"lower", convert_filter<lower>},
    {"replace", replace_filter},
    {"round", round_filter},
    {"safe", identity_filter},
    {"string", string_filter},
    {"title", convert_filter<title_words, true>},
    {"tojson", tojson_filter},
    {"trim", trim_filter},
    {"truncate", truncate_filter},
    {"upper", convert_filter<upper>},
    {"wordcount", wordcount_filter},
});

}  // namespace

FilterFunction find_text_filter(std::string_view name) {
  for (const Entry& entry : kFilters) {
    if (entry.name == name) return entry.filter;
  }
  return nullptr;
}

std::vector<std::string_view> filter_names() {
  std::vector<std::string_view> names = sequence_filter_names();
  for (const Entry& entry : kFilters) names.push_back(entry.name);
  return names;
}

FilterFunction find_filter(std::string_view name) {
  FilterFunction filter = find_text_filter(name);
  return filter != nullptr ? filter : find_sequence_filter(name);
}

}  // namespace warpweave::jinja
