#include "output/values.h"

#include <algorithm>
#include <cctype>

#include "output/answer_reader.h"

namespace warpweave::output {
namespace {

constexpr int kMaxDepth = 64;

bool is_name_byte(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

void append_utf8(uint32_t code, std::string* out) {
  if (code < 0x80) {
    *out += static_cast<char>(code);
  } else if (code < 0x800) {
    *out += static_cast<char>(0xC0 | code >> 6);
    *out += static_cast<char>(0x80 | (code & 63));
  } else if (code < 0x10000) {
    *out += static_cast<char>(0xE0 | code >> 12);
    *out += static_cast<char>(0x80 | (code >> 6 & 63));
    *out += static_cast<char>(0x80 | (code & 63));
  } else {
    *out += static_cast<char>(0xF0 | code >> 18);
    *out += static_cast<char>(0x80 | (code >> 12 & 63));
    *out += static_cast<char>(0x80 | (code >> 6 & 63));
    *out += static_cast<char>(0x80 | (code & 63));
  }
}

class PythonLiteral {
 public:
  PythonLiteral(std::string_view text, size_t at) : text_(text), at_(at) {}

  bool value() {
    if (++depth_ > kMaxDepth) return false;
    skip_space();
    const bool good = one_value();
    --depth_;
    return good;
  }
  size_t at() const { return at_; }
  std::string take() { return std::move(out_); }

 private:
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  bool one_value() {
    switch (next()) {
      case '\'':
      case '"': return string();
      case '[': return list(']', '[');
      case '{': return dict();
      default: break;
    }
    if (next() == '-' || next() == '+' || next() == '.' || std::isdigit(static_cast<unsigned char>(next())) != 0)
      return number();
    size_t end = at_;
    while (end < text_.size() && is_name_byte(text_[end])) ++end;
    const std::string_view word = text_.substr(at_, end - at_);
    at_ = end;
    if (word == "True" || word == "true") return say("true");
    if (word == "False" || word == "false") return say("false");
    if (word == "None" || word == "null") return say("null");
    return false;
  }

  bool say(std::string_view json) {
    out_ += json;
    return true;
  }

  bool string() {
    std::string text;
    if (!string_text(&text)) return false;
    return say(quoted_json(text));
  }

  bool string_text(std::string* text) {
    const char quote = next();
    const std::string fence(3, quote);
    const bool triple = text_.substr(at_).starts_with(fence);
    at_ += triple ? 3 : 1;
    while (at_ < text_.size()) {
      if (triple ? text_.substr(at_).starts_with(fence) : next() == quote) {
        at_ += triple ? 3 : 1;
        return true;
      }
      if (next() == '\\') {
        if (!escape(text)) return false;
      } else {
        *text += text_[at_++];
      }
    }
    return false;
  }

  bool escape(std::string* text) {
    const char kind = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    at_ += 2;
    switch (kind) {
      case 'n': *text += '\n'; return true;
      case 't': *text += '\t'; return true;
      case 'r': *text += '\r'; return true;
      case '\n': return true;
      case '\\':
      case '\'':
      case '"': *text += kind; return true;
      case 'x': return code_point(2, text);
      case 'u': return code_point(4, text);
      case 'U': return code_point(8, text);
      default: break;
    }
    if (kind == '\0') return false;
    *text += '\\';  // Python keeps an escape that it does not know
    *text += kind;
    return true;
  }

  bool code_point(size_t digits, std::string* text) {
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const char c = next();
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return false;
      code = code * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : (c | 32) - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    append_utf8(code, text);
    return true;
  }

  bool number() {
    std::string digits;
    if (next() == '+') ++at_;
    while (at_ < text_.size() && (is_name_byte(next()) || next() == '.' || next() == '-' || next() == '+')) {
      const char c = text_[at_++];
      if (c != '_') digits += c;
    }
    if (digits.starts_with('.')) digits.insert(0, 1, '0');
    if (digits.starts_with("-.")) digits.insert(1, 1, '0');
    if (digits.ends_with('.')) digits += '0';
    const Result<Json> parsed = parse_json(digits);
    return parsed.ok() && parsed->is_number() && say(digits);
  }

  bool list(char close, char open) {
    ++at_;
    out_ += open;
    for (bool first = true;; first = false) {
      skip_space();
      if (next() == close) break;
      if (!first) out_ += ", ";
      if (!value()) return false;
      skip_space();
      if (next() == ',') {
        ++at_;
      } else if (next() != close) {
        return false;
      }
    }
    ++at_;
    out_ += close;
    return true;
  }

  bool dict() {
    ++at_;
    out_ += '{';
    for (bool first = true;; first = false) {
      skip_space();
      if (next() == '}') break;
      if (!first) out_ += ", ";
      if (!key()) return false;
      skip_space();
      if (next() != ':') return false;
      ++at_;
      out_ += ": ";
      if (!value()) return false;
      skip_space();
      if (next() == ',') {
        ++at_;
      } else if (next() != '}') {
        return false;
      }
    }
    ++at_;
    out_ += '}';
    return true;
  }

  bool key() {
    if (next() == '\'' || next() == '"') return string();
    const size_t before = out_.size();
    if (!one_value()) return false;
    const std::string scalar = out_.substr(before);
    if (scalar.starts_with('[') || scalar.starts_with('{')) return false;
    out_.resize(before);
    return say("\"" + scalar + "\"");
  }

  const std::string_view text_;
  size_t at_;
  int depth_ = 0;
  std::string out_;
};

// JSON whose quotes and backslashes are escaped as inside a text: [{\"a\": 1}].
std::optional<std::string> escaped_json(std::string_view text) {
  if (!text.starts_with('[') && !text.starts_with('{')) return std::nullopt;
  const Result<Json> inner = parse_json('"' + std::string(text) + '"');
  if (!inner.ok() || !inner->is_string()) return std::nullopt;
  std::string unescaped = inner->get<std::string>();
  return parse_json(unescaped).ok() ? std::optional(std::move(unescaped)) : std::nullopt;
}

bool names_type(const Json& schema, std::string_view type) {
  const auto at = schema.find("type");
  return at != schema.end() && is_text(*at, type);
}

}  // namespace

std::string quoted_json(std::string_view text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool takes_only_text(const Json* schema) {
  if (schema == nullptr || !schema->is_object()) return false;
  if (const auto type = schema->find("type"); type != schema->end()) return is_text(*type, "string");
  const auto values = schema->find("enum");
  return values != schema->end() && values->is_array() && !values->empty() &&
         std::all_of(values->begin(), values->end(), [](const Json& value) { return value.is_string(); });
}

std::optional<std::string> python_literal_to_json(std::string_view text, size_t* at) {
  PythonLiteral literal(text, *at);
  if (!literal.value()) return std::nullopt;
  *at = literal.at();
  return literal.take();
}

std::string value_to_json(std::string_view text, const Json* schema) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (takes_only_text(schema)) return quoted_json(text);
  const Result<Json> value = parse_json(text);
  const bool wants_number = schema != nullptr && schema->is_object() &&
                            (names_type(*schema, "number") || names_type(*schema, "integer"));
  if (value.ok() && value->is_string() && wants_number) {
    const std::string inner = value->get<std::string>();
    const Result<Json> number = parse_json(inner);
    if (number.ok() && number->is_number()) return inner;
  }
  if (value.ok()) return std::string(text);
  if (std::optional<std::string> unescaped = escaped_json(text)) return *std::move(unescaped);
  size_t at = 0;
  const std::optional<std::string> literal = python_literal_to_json(text, &at);
  if (literal && at == text.size()) return *literal;
  return quoted_json(text);
}

}  // namespace warpweave::output
