#include "grammar/unique_watch.h"

#include <algorithm>

namespace warpweave::grammar {
namespace {

constexpr std::string_view kSpaces = " \t\n\r";
constexpr std::string_view kAfterNumber = ",] \t\n\r";

bool is_number(std::string_view element) {
  return !element.empty() && (element.back() >= '0' && element.back() <= '9') && element[0] != '"';
}

}  // namespace

std::string_view UniqueWatch::element(const Level& level) const {
  std::string_view text = std::string_view(text_).substr(level.element_at);
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  const size_t last = in_string_ ? text.size() - 1 : text.find_last_not_of(kSpaces);
  return text.substr(first, last - first + 1);
}

bool UniqueWatch::repeats(const Level& level, std::string_view element) const {
  return std::find(level.elements.begin(), level.elements.end(), element) != level.elements.end();
}

// Strings, literals and containers are complete with their last byte, numbers with what follows.
bool UniqueWatch::end_element(bool is_complete) {
  Level& level = levels_.back();
  if (level.unique < 0) return true;
  const std::string_view text = element(level);
  if (is_complete) return !repeats(level, text);
  if (text.empty()) return true;  // []
  if (repeats(level, text)) return false;
  level.elements.emplace_back(text);
  return true;
}

// Of a known set: whether an element that is not used yet goes on like this.
bool UniqueWatch::has_way(const Level& level) const {
  const std::vector<std::string>& all = grammar_->uniques()[level.unique].all;
  const std::string_view part = element(level);
  return all.empty() || std::any_of(all.begin(), all.end(), [&](const std::string& value) {
    return value.starts_with(part) && !repeats(level, value);
  });
}

bool UniqueWatch::read(uint8_t byte, int32_t opened) {
  if (!take(byte, opened)) return false;
  if (byte == ']' && !in_string_) return true;
  return std::all_of(levels_.begin(), levels_.end(), [&](const Level& level) {
    return level.unique < 0 || level.elements.empty() || has_way(level);
  });
}

bool UniqueWatch::take(uint8_t byte, int32_t opened) {
  if (levels_.empty()) {
    if (opened < 0 || byte != '[') return true;
    text_.assign(1, '[');
    levels_.push_back({opened, 1, {}});
    return true;
  }
  if (in_string_) {
    text_ += static_cast<char>(byte);
    if (escaped_) {
      escaped_ = false;
    } else if (byte == '\\') {
      escaped_ = true;
    } else if (byte == '"') {
      in_string_ = false;
      return end_element(true);
    }
    return true;
  }
  if (byte == ',' || byte == ']') {
    if (!end_element(false)) return false;
  }
  text_ += static_cast<char>(byte);
  switch (byte) {
    case '"': in_string_ = true; return true;
    case '[': levels_.push_back({opened, text_.size(), {}}); return true;
    case '{': levels_.push_back({-1, text_.size(), {}}); return true;
    case ',': levels_.back().element_at = text_.size(); return true;
    case ']':
    case '}':
      levels_.pop_back();
      if (!levels_.empty()) return end_element(true);
      text_.clear();
      return true;
    case ' ':
    case '\t':
    case '\n':
    case '\r': return true;
    default: return (byte >= '0' && byte <= '9') || byte == '-' ? true : end_element(true);
  }
}

void UniqueWatch::forbid(const Level& level, std::vector<std::string>* out) const {
  const std::string_view part = element(level);
  for (const std::string& used : level.elements) {
    if (!used.starts_with(part)) continue;
    const std::string rest = used.substr(part.size());
    if (is_number(used)) {
      for (const char c : kAfterNumber) out->emplace_back(rest).push_back(c);
    } else if (!rest.empty()) {
      out->push_back(rest);
    }
  }
  // Of a known set: no beginning that only used elements share.
  const std::vector<std::string>& all = grammar_->uniques()[level.unique].all;
  if (all.empty()) return;
  for (const std::string& used : level.elements) {
    if (!used.starts_with(part)) continue;
    for (size_t length = part.size() + 1; length <= used.size(); ++length) {
      const std::string_view beginning = std::string_view(used).substr(0, length);
      const bool open = std::any_of(all.begin(), all.end(), [&](const std::string& value) {
        return value.starts_with(beginning) && !repeats(level, value);
      });
      if (open) continue;
      out->emplace_back(beginning.substr(part.size()));
      break;
    }
  }
}

std::vector<std::string> UniqueWatch::forbidden() const {
  std::vector<std::string> out;
  for (const Level& level : levels_) {
    if (level.unique >= 0) forbid(level, &out);
  }
  return out;
}

}  // namespace warpweave::grammar
