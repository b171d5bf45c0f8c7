#include "text/tokenizer_added.h"

#include <algorithm>

#include "text/tokenizer_unicode.h"

namespace warpweave {
namespace {

size_t white_space_at_end(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    size_t length = 0;
    if (!is_white_space(last_utf8(text.substr(0, text.size() - bytes), &length))) break;
    bytes += length;
  }
  return bytes;
}

size_t white_space_at_start(std::string_view text) {
  size_t bytes = 0;
  for (size_t pos = 0; pos < text.size(); bytes = pos) {
    if (!is_white_space(take_utf8(text, &pos))) break;
  }
  return bytes;
}

bool inside_word(std::string_view text, size_t begin, size_t end) {
  size_t length = 0;
  if (begin > 0 && is_word_char(last_utf8(text.substr(0, begin), &length))) return true;
  return end < text.size() && is_word_char(take_utf8(text, &end));
}

}  // namespace

Result<AddedTokenMatcher> AddedTokenMatcher::build(std::vector<AddedTokenPattern> patterns) {
  AddedTokenMatcher built;
  built.nodes_.emplace_back();
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string& text = patterns[i].text;
    if (text.size() > kMaxAddedTokenBytes) {
      return Status::data_loss("an added token of " + std::to_string(text.size()) +
                                   " bytes; the limit is " + std::to_string(kMaxAddedTokenBytes),
                               "added_tokens");
    }
    if (text.empty()) continue;
    int32_t node = 0;
    for (char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      int32_t next = built.child(node, byte);
      if (next < 0) {
        next = static_cast<int32_t>(built.nodes_.size());
        auto& edges = built.nodes_[node].next;
        edges.insert(std::lower_bound(edges.begin(), edges.end(), std::pair(byte, int32_t{0})),
                     {byte, next});
        built.nodes_.emplace_back();
      }
      node = next;
    }
    if (built.nodes_[node].pattern < 0) built.nodes_[node].pattern = static_cast<int32_t>(i);
    built.may_start_[static_cast<unsigned char>(text[0])] = true;
    built.has_special_ = built.has_special_ || patterns[i].special;
  }
  built.patterns_ = std::move(patterns);
  return built;
}

int32_t AddedTokenMatcher::child(int32_t node, unsigned char byte) const {
  const auto& edges = nodes_[node].next;
  const auto edge = std::lower_bound(edges.begin(), edges.end(), std::pair(byte, int32_t{0}));
  return edge != edges.end() && edge->first == byte ? edge->second : -1;
}

int32_t AddedTokenMatcher::match(std::string_view text, size_t at, size_t literal) const {
  int32_t longest = -1;
  for (int32_t node = 0; at < text.size(); ++at) {
    node = child(node, static_cast<unsigned char>(text[at]));
    if (node < 0) break;
    const int32_t pattern = nodes_[node].pattern;
    if (pattern >= 0 && !(patterns_[pattern].special && at + 1 >= literal)) longest = pattern;
  }
  return longest;
}

bool AddedTokenMatcher::may_begin_special(std::string_view text, size_t at) const {
  if (nodes_.empty()) return false;
  int32_t node = 0;
  for (; at < text.size(); ++at) {
    node = child(node, static_cast<unsigned char>(text[at]));
    if (node < 0) return false;
    const int32_t pattern = nodes_[node].pattern;
    if (pattern >= 0 && patterns_[pattern].special) return true;
  }
  return !nodes_[node].next.empty();
}

void AddedTokenMatcher::split(std::string_view text, std::span<const size_t> literal_at,
                              std::vector<TextSection>* sections) const {
  size_t done = 0;
  size_t next_literal = 0;
  for (size_t at = 0; at < text.size();) {
    if (!may_start_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    while (next_literal < literal_at.size() && literal_at[next_literal] <= at) ++next_literal;
    const size_t literal =
        next_literal < literal_at.size() ? literal_at[next_literal] : std::string_view::npos;
    const int32_t found = match(text, at, literal);
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedTokenPattern& pattern = patterns_[found];
    size_t begin = at;
    size_t end = at + pattern.text.size();
    at = end;
    if (pattern.single_word && inside_word(text, begin, end)) continue;
    // As in the original, white space that rstrip takes can still start the next match; `done` is
    // then past `begin`, and everything up to it is white space.
    if (pattern.lstrip && done < begin) {
      begin -= white_space_at_end(text.substr(done, begin - done));
    }
    if (pattern.rstrip) {
      end = std::max(end, done);
      end += white_space_at_start(text.substr(end));
    }
    if (done < begin) sections->push_back({text.substr(done, begin - done), -1});
    sections->push_back({text.substr(begin, end - begin), pattern.id});
    done = end;
  }
  if (done < text.size()) sections->push_back({text.substr(done), -1});
}

}  // namespace warpweave
