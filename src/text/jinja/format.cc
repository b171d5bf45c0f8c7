#include "text/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/unicode.h"

namespace warpweave::jinja {

namespace {

constexpr int kMaxWidth = 10'000;
constexpr int kMaxPrecision = 100;
constexpr size_t kFieldWork = 60;  // a hundred decimals of a large number take that long

// One conversion of either form.
struct Spec {
  std::string fill = " ";
  char align = 0;  // < > ^ =, 0: the type's own
  char sign = '-';
  bool alternate = false;
  bool group = false;  // thousands commas
  int width = 0;
  int precision = -1;
  char type = 0;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  bool done() const { return at_ >= text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }
  char take() { return done() ? '\0' : text_[at_++]; }
  bool skip(char c) { return peek() == c && (++at_, true); }
  std::string_view until(std::string_view stops) {
    size_t end = std::min(text_.find_first_of(stops, at_), text_.size());
    std::string_view part = text_.substr(at_, end - at_);
    at_ = end;
    return part;
  }
  std::string_view character() {
    std::string_view c = text_.substr(at_, decode(text_, at_).bytes);
    at_ += c.size();
    return c;
  }
  std::string_view rest() const { return text_.substr(at_); }
  // A decimal number; -1 when there is none.
  int number(int most, std::string_view what) {
    if (peek() < '0' || peek() > '9') return -1;
    int n = 0;
    while (peek() >= '0' && peek() <= '9') {
      n = n * 10 + (take() - '0');
      if (n > most) throw Error("a format's " + std::string(what) + " is above " + std::to_string(most));
    }
    return n;
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

std::string digits_of(uint64_t magnitude, char type, bool alternate) {
  if (type == 'b') {
    std::string out;
    do out.insert(out.begin(), static_cast<char>('0' + (magnitude & 1)));
    while ((magnitude >>= 1) != 0);
    return alternate ? "0b" + out : out;
  }
  char buffer[32];
  const char* form = type == 'x' ? "%lx" : type == 'X' ? "%lX" : type == 'o' ? "%lo" : "%lu";
  std::snprintf(buffer, sizeof buffer, form, magnitude);
  const char* prefix = !alternate    ? ""
                       : type == 'x' ? "0x"
                       : type == 'X' ? "0X"
                       : type == 'o' ? "0o"
                                     : "";
  return std::string(prefix) + buffer;
}

std::string grouped(std::string digits) {
  size_t end = std::min(digits.find_first_of(".e"), digits.size());
  for (size_t i = end; i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string sign_of(bool negative, char sign) {
  return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

// Sign and digits of a number.
std::pair<std::string, std::string> number_text(const Value& value, const Spec& spec) {
  const bool as_real = spec.type != 0 && std::string_view("eEfFgG%").find(spec.type) !=
                                             std::string_view::npos;
  if (!as_real && value.is(Kind::real) && spec.type == 0 && spec.precision < 0) {
    std::string text = format_real(std::fabs(value.real()));
    return {sign_of(std::signbit(value.real()), spec.sign), spec.group ? grouped(text) : text};
  }
  if (as_real || value.is(Kind::real)) {
    double number = value.as_real() * (spec.type == '%' ? 100 : 1);
    const char type = spec.type == 0 ? 'g' : spec.type == '%' ? 'f' : spec.type;
    const char form[] = {'%', spec.alternate ? '#' : '0', '.', '*', type, '\0'};
    char buffer[512];
    std::snprintf(buffer, sizeof buffer, form, spec.precision < 0 ? 6 : spec.precision,
                  std::fabs(number));
    std::string text = buffer;
    if (spec.group) text = grouped(text);
    if (spec.type == '%') text += '%';
    return {sign_of(std::signbit(number), spec.sign), text};
  }
  const int64_t number = value.as_integer();
  const uint64_t magnitude = number < 0 ? 0 - static_cast<uint64_t>(number)
                                        : static_cast<uint64_t>(number);
  std::string text = digits_of(magnitude, spec.type, spec.alternate);
  return {sign_of(number < 0, spec.sign), spec.group ? grouped(text) : text};
}

std::string padded(const std::string& sign, const std::string& text, const Spec& spec, char align) {
  const size_t used = sign.size() + length(text);
  const size_t width = static_cast<size_t>(spec.width);
  const size_t missing = width > used ? width - used : 0;
  auto fill = [&](size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += spec.fill;
    return out;
  };
  switch (align) {
    case '<': return sign + text + fill(missing);
    case '=': return sign + fill(missing) + text;
    case '^': return fill(missing / 2) + sign + text + fill(missing - missing / 2);
    default: return fill(missing) + sign + text;
  }
}

std::string text_prefix(const std::string& text, int precision) {
  if (precision < 0) return text;
  size_t at = 0;
  for (int i = 0; i < precision && at < text.size(); ++i) at += decode(text, at).bytes;
  return text.substr(0, at);
}

std::string percent_one(Runtime& runtime, const Value& value, Spec spec) {
  switch (spec.type) {
    case 's':
    case 'r':
    case 'a': {
      runtime.charge_bytes(value.extent().weight);
      runtime.charge_repr(value);
      std::string text = spec.type == 's' ? to_string(value) : repr(value);
      return padded("", text_prefix(text, spec.precision), spec, spec.align == '<' ? '<' : '>');
    }
    case 'c': {
      std::string text;
      if (value.is_integral()) {
        int64_t code = value.as_integer();
        if (code < 0 || code > 0x10FFFF) throw Error("%c needs a code point");
        append_utf8(text, static_cast<char32_t>(code));
      } else {
        text = runtime.str(value);
      }
      return padded("", text, spec, spec.align == '<' ? '<' : '>');
    }
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': {
      require_defined(value);
      if (!value.is_number()) {
        throw Error(std::string("%") + spec.type + " needs a number, got '" + value.type_name() + "'");
      }
      const bool decimal = spec.type == 'd' || spec.type == 'i' || spec.type == 'u';
      Value number = value;
      if (decimal) {
        if (std::fabs(value.as_real()) >= 9.2e18 || std::isnan(value.as_real())) {
          throw Error("%d needs a number of at most 64 bits");
        }
        if (value.is(Kind::real)) number = Value(static_cast<int64_t>(value.real()));
        spec.type = 'd';
      }
      auto [sign, text] = number_text(number, spec);
      return padded(sign, text, spec, spec.align != 0 ? spec.align : '>');
    }
    default:
      throw Error(std::string("unsupported format character '") + spec.type + "' in a % format");
  }
}

std::string brace_one(Runtime& runtime, const Value& value, std::string_view format) {
  Spec spec;
  Reader in(format);
  if (!in.done()) {
    std::string_view first = in.character();
    if (std::string_view("<>^=").find(in.peek()) != std::string_view::npos && !in.done()) {
      spec.fill = std::string(first);
      spec.align = in.take();
    } else {
      in = Reader(format);
      if (std::string_view("<>^=").find(in.peek()) != std::string_view::npos) spec.align = in.take();
    }
  }
  if (std::string_view("+- ").find(in.peek()) != std::string_view::npos && !in.done()) {
    spec.sign = in.take();
  }
  spec.alternate = in.skip('#');
  if (in.skip('0') && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = std::max(0, in.number(kMaxWidth, "width"));
  runtime.charge(kFieldWork + static_cast<size_t>(spec.width) / 2);
  spec.group = in.skip(',');
  if (in.skip('.')) spec.precision = in.number(kMaxPrecision, "precision");
  spec.type = in.take();
  if (!in.done() || (spec.type != 0 && std::string_view("sdnbxXoeEfFgG%").find(spec.type) ==
                                           std::string_view::npos)) {
    throw Error("the format '" + std::string(format.substr(0, 40)) + "' is not supported");
  }
  if (spec.type == 'n') spec.type = 'd';
  const bool number = value.is_number() && !(value.is(Kind::boolean) && spec.type == 0);
  if (number && spec.type != 's') {
    if (value.is(Kind::real) && spec.type != 0 &&
        std::string_view("dbxXo").find(spec.type) != std::string_view::npos) {
      throw Error(std::string("format '") + spec.type + "' needs an integer, got 'float'");
    }
    auto [sign, text] = number_text(value, spec);
    return padded(sign, text, spec, spec.align != 0 ? spec.align : '>');
  }
  if (spec.type != 0 && spec.type != 's') {
    throw Error(std::string("format '") + spec.type + "' needs a number, got '" + value.type_name() +
                "'");
  }
  std::string text = text_prefix(runtime.str(value), spec.precision);
  return padded("", text, spec, spec.align != 0 ? spec.align : '<');
}

// "0", "name", "" (the next one), followed by .attribute and [key] parts.
Value brace_field(Runtime& runtime, std::string_view field, const CallArgs& args, size_t& next) {
  Reader in(field);
  const std::string_view head = in.until(".[");
  Value value;
  Reader number(head);
  const int index = head.empty() ? static_cast<int>(next++) : number.number(1'000'000, "index");
  if (index >= 0 && number.done()) {
    if (static_cast<size_t>(index) >= args.positional.size()) {
      throw Error("format() has no argument number " + std::to_string(index));
    }
    value = args.positional[static_cast<size_t>(index)];
  } else {
    runtime.charge(args.named.size());
    auto it = std::find_if(args.named.begin(), args.named.end(),
                           [&](const auto& named) { return named.first == head; });
    if (it == args.named.end()) {
      throw Error("format() has no argument named '" + std::string(head.substr(0, 100)) + "'");
    }
    value = it->second;
  }
  while (!in.done()) {
    runtime.charge();
    if (in.skip('.')) {
      value = get_attribute(runtime, value, in.until(".["));
    } else {
      in.take();
      std::string_view key = in.until("]");
      if (!in.skip(']')) throw Error("a format field misses ']'");
      Reader digits(key);
      int at = digits.number(1'000'000, "index");
      value = get_item(runtime, value,
                       at >= 0 && digits.done() ? Value(int64_t{at}) : Value(std::string(key)));
    }
  }
  return value;
}

}  // namespace

Value percent_format(Runtime& runtime, std::string_view pattern, const Value& values) {
  runtime.charge_scan(pattern);
  std::string out;
  Reader in(pattern);
  size_t used = 0;
  auto next_value = [&]() -> Value {
    if (values.is_tuple()) {
      if (used >= values.list_items().size()) throw Error("not enough arguments for a % format");
      return values.list_items()[used++];
    }
    if (used++ > 0) throw Error("not enough arguments for a % format");
    return values;
  };
  while (!in.done()) {
    out += in.until("%");
    if (in.done()) break;
    in.take();
    if (in.skip('%')) {
      out += '%';
      continue;
    }
    std::optional<Value> named;
    if (in.skip('(')) {
      std::string_view key = in.until(")");
      if (!in.skip(')') || !values.is(Kind::dict)) throw Error("a %(name) format needs a mapping");
      named = get_item(runtime, values, Value(std::string(key)));
    }
    Spec spec;
    for (char c = in.peek(); c != 0 && std::string_view("-+ #0").find(c) != std::string_view::npos;
         c = in.peek()) {
      in.take();
      if (c == '-') spec.align = '<';
      if (c == '+' || (c == ' ' && spec.sign != '+')) spec.sign = c;
      if (c == '#') spec.alternate = true;
      if (c == '0' && spec.align == 0) spec.fill = "0", spec.align = '=';
    }
    if (spec.align == '<') spec.fill = " ";
    spec.width = std::max(0, in.number(kMaxWidth, "width"));
    if (in.skip('.')) spec.precision = std::max(0, in.number(kMaxPrecision, "precision"));
    runtime.charge(kFieldWork + static_cast<size_t>(spec.width) / 2);
    spec.type = in.take();
    if (spec.type == 's' || spec.type == 'r') spec.fill = " ";
    out += percent_one(runtime, named ? *named : next_value(), spec);
    runtime.charge_bytes(out.size() > runtime.limits().max_string_bytes ? out.size() : 0);
  }
  if (values.is_tuple() && used < values.list_items().size()) {
    throw Error("not all arguments were used by a % format");
  }
  if (!values.is(Kind::list) && !values.is(Kind::dict) && used == 0) {
    throw Error("not all arguments were used by a % format");
  }
  return runtime.text(std::move(out));
}

Value brace_format(Runtime& runtime, std::string_view pattern, const CallArgs& args) {
  runtime.charge_scan(pattern);
  std::string out;
  Reader in(pattern);
  size_t next = 0;
  while (!in.done()) {
    out += in.until("{}");
    if (in.done()) break;
    const char brace = in.take();
    if (in.skip(brace)) {
      out += brace;
      continue;
    }
    if (brace == '}') throw Error("a single '}' stands in a format string; write '}}'");
    std::string_view field = in.until("!:}");
    const char conversion = in.skip('!') ? in.take() : '\0';
    std::string_view format = in.skip(':') ? in.until("}") : std::string_view();
    if (!in.skip('}')) throw Error("a '{' is not closed in a format string; write '{{'");
    Value value = brace_field(runtime, field, args, next);
    if (conversion == 'r') {
      runtime.charge_bytes(value.extent().weight);
      runtime.charge_repr(value);
      value = Value(repr(value));
    }
    if (conversion == 's') value = Value(runtime.str(value));
    out += brace_one(runtime, value, format);
    runtime.charge_bytes(out.size() > runtime.limits().max_string_bytes ? out.size() : 0);
  }
  return runtime.text(std::move(out));
}

}  // namespace warpweave::jinja
