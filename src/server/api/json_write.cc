#include "server/api/json_write.h"

#include <charconv>
#include <cmath>

namespace warpweave::server {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Length of the valid UTF-8 character at the start of `text`, 0 when there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80;    // no overlong forms
    const unsigned high = lead == 0xED ? 0x9F : 0xBF;   // no surrogates
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xF4 ? 0x8F : 0xBF;   // not beyond U+10FFFF
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

bool is_plain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\';
}

void append_escape(char c, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"': *out += "\\\""; return;
    case '\\': *out += "\\\\"; return;
    case '\n': *out += "\\n"; return;
    case '\r': *out += "\\r"; return;
    case '\t': *out += "\\t"; return;
    default: break;
  }
  const auto byte = static_cast<unsigned char>(c);
  *out += "\\u00";
  *out += kHex[byte >> 4];
  *out += kHex[byte & 15];
}

template <typename T>
void append_number(T value, std::string* out) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  out->append(buffer, end);
}

}  // namespace

void append_json_escaped(std::string_view text, std::string* out) {
  size_t i = 0;
  while (i < text.size()) {
    size_t plain_end = i;
    while (plain_end < text.size() && is_plain(text[plain_end])) ++plain_end;
    out->append(text.substr(i, plain_end - i));
    i = plain_end;
    if (i == text.size()) break;
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      append_escape(text[i++], out);
    } else if (const size_t length = utf8_length(text.substr(i)); length > 0) {
      out->append(text.substr(i, length));
      i += length;
    } else {
      *out += kReplacement;
      ++i;
    }
  }
}

void append_json_string(std::string_view text, std::string* out) {
  *out += '"';
  append_json_escaped(text, out);
  *out += '"';
}

void append_json_int(int64_t value, std::string* out) { append_number(value, out); }

void append_json_double(double value, std::string* out) {
  if (!std::isfinite(value)) {
    *out += "null";
    return;
  }
  append_number(value, out);
}

void append_json_floats(std::span<const float> values, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) *out += ',';
    append_number(values[i], out);
  }
  *out += ']';
}

void append_json_logprob(float value, std::string* out) {
  if (std::isnan(value)) {
    *out += "null";
  } else if (std::isinf(value)) {
    *out += "-9999.0";
  } else {
    append_number(value, out);
  }
}

void append_json_items(std::span<const int32_t> values, std::string* list) {
  for (const int32_t value : values) {
    if (!list->empty()) *list += ',';
    append_json_int(value, list);
  }
}

void append_cached_by_layer(int64_t attention_tokens, int64_t recurrent_tokens, std::string* out) {
  *out += ",\"cached_tokens_by_layer\":{\"attention\":";
  append_json_int(attention_tokens, out);
  *out += ",\"recurrent\":";
  append_json_int(recurrent_tokens, out);
  *out += '}';
}

void append_json_bytes(std::string_view bytes, std::string* out) {
  *out += '[';
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) *out += ',';
    append_number(static_cast<int>(static_cast<unsigned char>(bytes[i])), out);
  }
  *out += ']';
}

}  // namespace warpweave::server
