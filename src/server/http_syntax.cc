#include "server/http_syntax.h"

#include <algorithm>

namespace warpweave::server {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

void skip_blanks(std::string_view& text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
}

// Takes a token off the front; false where there is none.
bool take_token(std::string_view& text) {
  const auto end = std::find_if_not(text.begin(), text.end(), is_token_char);
  if (end == text.begin()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.begin()));
  return true;
}

bool take_quoted(std::string_view& text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      text.remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

}  // namespace

bool is_token_char(char c) {
  return is_letter(c) || is_digit(c) ||
         (c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos);
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), is_token_char);
}

bool is_value_char(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte == '\t' || (byte >= 0x20 && byte != 0x7f);
}

std::string_view trim(std::string_view text) {
  skip_blanks(text);
  while (text.ends_with(' ') || text.ends_with('\t')) text.remove_suffix(1);
  return text;
}

std::string to_lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

bool is_host(std::string_view text) {
  const std::string_view name = host_without_port(text);
  std::string_view port = text.substr(name.size());
  if (!port.empty() && port.front() != ':') return false;
  if (!port.empty()) port.remove_prefix(1);
  if (!std::all_of(port.begin(), port.end(), is_digit)) return false;
  if (name.starts_with('[')) {
    return name.size() > 2 && std::all_of(name.begin() + 1, name.end() - 1, [](char c) {
      return is_digit(c) || (lower(c) >= 'a' && lower(c) <= 'f') || c == ':' || c == '.';
    });
  }
  return std::all_of(name.begin(), name.end(), [](char c) {
    return is_letter(c) || is_digit(c) || c == '-' || c == '.' || c == '_' || c == '~' || c == '%';
  });
}

std::string_view host_without_port(std::string_view host) {
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    return end == std::string_view::npos ? host.substr(0, 0) : host.substr(0, end + 1);
  }
  return host.substr(0, host.find(':'));
}

bool is_chunk_extension(std::string_view text) {
  while (!text.empty()) {
    skip_blanks(text);
    if (!text.starts_with(';')) return false;
    text.remove_prefix(1);
    skip_blanks(text);
    if (!take_token(text)) return false;
    std::string_view value = text;
    skip_blanks(value);
    if (!value.starts_with('=')) continue;
    value.remove_prefix(1);
    skip_blanks(value);
    if (!(value.starts_with('"') ? take_quoted(value) : take_token(value))) return false;
    text = value;
  }
  return true;
}

}  // namespace warpweave::server
