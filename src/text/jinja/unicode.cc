#include "text/jinja/unicode.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "text/unicode/unicode.h"

namespace warpweave::jinja {

CodePoint decode(std::string_view text, size_t at) {
  auto byte = [&](size_t i) -> uint32_t {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  auto is_tail = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const uint32_t b = byte(0);
  if (b < 0x80) return {b, 1};
  if (b >= 0xC2 && b < 0xE0 && is_tail(1)) return {(b & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (b >= 0xE0 && b < 0xF0 && is_tail(1) && is_tail(2)) {
    char32_t c = (b & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    if (c >= 0x800 && (c < 0xD800 || c > 0xDFFF)) return {c, 3};
  }
  if (b >= 0xF0 && b < 0xF5 && is_tail(1) && is_tail(2) && is_tail(3)) {
    char32_t c = (b & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F);
    if (c >= 0x10000 && c <= 0x10FFFF) return {c, 4};
  }
  return {0xFFFD, 1};
}

void append_utf8(std::string& out, char32_t c) {
  auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

size_t length(std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; at < text.size(); at += decode(text, at).bytes) ++count;
  return count;
}

std::string_view character_range(std::string_view text, size_t begin, size_t end) {
  size_t at = 0, i = 0;
  for (; i < begin && at < text.size(); ++i) at += decode(text, at).bytes;
  const size_t first = at;
  for (; i < end && at < text.size(); ++i) at += decode(text, at).bytes;
  return text.substr(first, at - first);
}

size_t find_text(std::string_view text, std::string_view pattern, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (pattern.empty()) return from;
  const void* hit = memmem(text.data() + from, text.size() - from, pattern.data(), pattern.size());
  return hit == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

std::vector<size_t> find_from_right(std::string_view text, std::string_view pattern, int64_t most) {
  std::vector<size_t> out;
  const std::string backwards(text.rbegin(), text.rend()), sought(pattern.rbegin(), pattern.rend());
  for (size_t at = 0; most < 0 || static_cast<int64_t>(out.size()) < most;) {
    const size_t hit = find_text(backwards, sought, at);
    if (hit == std::string_view::npos) break;
    at = hit + std::max<size_t>(1, sought.size());
    out.push_back(text.size() - hit - pattern.size());
  }
  return out;
}

size_t last_character(std::string_view text, size_t from) {
  size_t start = text.size() - 1;
  while (start > from && text.size() - start < 4 &&
         (static_cast<unsigned char>(text[start]) & 0xC0) == 0x80) {
    --start;
  }
  return decode(text, start).bytes == text.size() - start ? start : text.size() - 1;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t at = 0; at < text.size();) {
    size_t bytes = decode(text, at).bytes;
    out.push_back(text.substr(at, bytes));
    at += bytes;
  }
  return out;
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_alpha(char32_t c) { return unicode::is_letter(c); }
bool is_digit(char32_t c) { return unicode::category(c) == unicode::Category::Nd; }

std::string_view strip(std::string_view text, Side side, const std::string_view* chars) {
  std::vector<std::string_view> set = chars != nullptr ? characters(*chars) : std::vector<std::string_view>();
  std::sort(set.begin(), set.end());
  auto dropped = [&](std::string_view character) {
    if (chars == nullptr) return is_space(decode(character, 0).value);
    return std::binary_search(set.begin(), set.end(), character);
  };
  size_t begin = 0;
  size_t end = text.size();
  while (side != Side::right && begin < end) {
    size_t bytes = decode(text, begin).bytes;
    if (!dropped(text.substr(begin, bytes))) break;
    begin += bytes;
  }
  while (side != Side::left && end > begin) {
    const size_t start = last_character(text.substr(0, end), begin);
    if (!dropped(text.substr(start, end - start))) break;
    end = start;
  }
  return text.substr(begin, end - begin);
}

namespace {

constexpr char32_t kCapitalSigma = 0x3A3;
constexpr char32_t kFinalSigma = 0x3C2;

// Bytes that are no valid UTF-8 become U+FFFD, as everywhere where a text is looked at as characters.
std::u32string to_utf32(std::string_view text) {
  std::u32string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = decode(text, at);
    out += c.value;
    at += c.bytes;
  }
  return out;
}

std::string to_utf8(std::u32string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t c : text) append_utf8(out, c);
  return out;
}

std::string title_first(std::string_view character) {
  std::u32string out;
  unicode::append_title(decode(character, 0).value, &out);
  return to_utf8(out);
}

// Whether the sigma at `at` ends a word: a cased character before it and none after it, those that case ignores
// left out.
bool is_final_sigma(std::u32string_view text, size_t at) {
  size_t before = at;
  while (before > 0 && unicode::is_case_ignorable(text[before - 1])) --before;
  if (before == 0 || !unicode::is_cased(text[before - 1])) return false;
  size_t after = at + 1;
  while (after < text.size() && unicode::is_case_ignorable(text[after])) ++after;
  return after == text.size() || !unicode::is_cased(text[after]);
}

// At least one cased character, and every cased character has the property.
template <typename Property>
bool all_cased(std::string_view text, Property property) {
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    CodePoint c = decode(text, at);
    at += c.bytes;
    if (!unicode::is_cased(c.value)) continue;
    if (!property(c.value)) return false;
    any = true;
  }
  return any;
}

}  // namespace

std::string upper(std::string_view text) {
  std::u32string out;
  for (const char32_t c : to_utf32(text)) unicode::append_upper(c, &out);
  return to_utf8(out);
}

std::string lower(std::string_view text) {
  const std::u32string characters = to_utf32(text);
  std::u32string out;
  for (size_t at = 0; at < characters.size(); ++at) {
    if (characters[at] == kCapitalSigma && is_final_sigma(characters, at)) {
      out += kFinalSigma;
    } else {
      unicode::append_lower(characters[at], &out);
    }
  }
  return to_utf8(out);
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return "";
  size_t bytes = decode(text, 0).bytes;
  return title_first(text.substr(0, bytes)) + lower(text.substr(bytes));
}

std::string title(std::string_view text) {
  std::string out;
  bool inside = false;
  for_each_character(text, [&](std::string_view character) {
    bool letter = unicode::is_cased(decode(character, 0).value);
    out += !letter ? std::string(character) : inside ? lower(character) : title_first(character);
    inside = letter;
  });
  return out;
}

bool is_upper(std::string_view text) {
  return all_cased(text, unicode::is_uppercase);
}

bool is_lower(std::string_view text) {
  return all_cased(text, unicode::is_lowercase);
}

std::vector<std::string_view> split_whitespace(std::string_view text, int64_t max_splits) {
  std::vector<std::string_view> out;
  text = strip(text, Side::left);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(out.size()) >= max_splits) {
      out.push_back(text);
      break;
    }
    size_t at = 0;
    while (at < text.size()) {
      CodePoint c = decode(text, at);
      if (is_space(c.value)) break;
      at += c.bytes;
    }
    out.push_back(text.substr(0, at));
    text = strip(text.substr(at), Side::left);
  }
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    CodePoint c = decode(text, at);
    size_t next = at + c.bytes;
    bool line_end = (c.value >= 10 && c.value <= 13) || (c.value >= 0x1C && c.value <= 0x1E) ||
                    c.value == 0x85 || c.value == 0x2028 || c.value == 0x2029;
    if (line_end) {
      if (c.value == '\r' && next < text.size() && text[next] == '\n') ++next;
      out.push_back(text.substr(start, (keep_ends ? next : at) - start));
      start = next;
    }
    at = next;
  }
  if (start < text.size()) out.push_back(text.substr(start));
  return out;
}

std::string quote(std::string_view text) {
  const bool use_double =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char mark = use_double ? '"' : '\'';
  std::string out(1, mark);
  for_each_character(text, [&](std::string_view character) {
    const char32_t c = decode(character, 0).value;
    char escaped[16];
    if (c == '\\' || c == static_cast<unsigned char>(mark)) {
      out += '\\';
      out += character;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == ' ' || (unicode::is_printable(c) && !is_space(c))) {
      out += character;
    } else {
      const char* form = c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x";
      std::snprintf(escaped, sizeof escaped, form, static_cast<unsigned>(c));
      out += escaped;
    }
  });
  out += mark;
  return out;
}

}  // namespace warpweave::jinja
