// Python's str over UTF-8: every length and index counts code points. A byte that is no valid UTF-8
// counts as one character (U+FFFD to the predicates) and is passed on as it is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace warpweave::jinja {

// The code point at `at` and how many bytes it takes.
struct CodePoint {
  char32_t value;
  size_t bytes;
};
CodePoint decode(std::string_view text, size_t at);
void append_utf8(std::string& out, char32_t code_point);

size_t length(std::string_view text);
std::vector<std::string_view> characters(std::string_view text);
template <typename Visit>
void for_each_character(std::string_view text, Visit&& visit) {
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = decode(text, at).bytes;
    visit(text.substr(at, bytes));
    at += bytes;
  }
}
// The characters [begin, end); fewer where the text ends.
std::string_view character_range(std::string_view text, size_t begin, size_t end);

// text.find and the places of matches from the right, none overlapping, at most `most` (-1: all), in time
// that grows with the text alone: a pattern of its own choice costs nobody a product of both lengths.
size_t find_text(std::string_view text, std::string_view pattern, size_t from = 0);
std::vector<size_t> find_from_right(std::string_view text, std::string_view pattern, int64_t most);

// Where the last character of a text that is not empty starts; not before `from`.
size_t last_character(std::string_view text, size_t from = 0);

bool is_space(char32_t c);  // str.isspace
bool is_alpha(char32_t c);
bool is_digit(char32_t c);

enum class Side { left, right, both };
// str.strip; an empty `chars` means whitespace when `chars_given` is false.
std::string_view strip(std::string_view text, Side side, const std::string_view* chars = nullptr);

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title(std::string_view text);  // str.title
bool is_upper(std::string_view text);
bool is_lower(std::string_view text);

// str.split() on whitespace; at most `max_splits` cuts, -1 for all.
std::vector<std::string_view> split_whitespace(std::string_view text, int64_t max_splits);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

// repr of a string.
std::string quote(std::string_view text);

}  // namespace warpweave::jinja
