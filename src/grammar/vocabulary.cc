#include "grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

namespace warpweave::grammar {
namespace {

constexpr size_t kMaxTokenBytes = 60'000;  // a depth fits 16 bits

// Plain characters in `text`, or -1 when it is not wholly of them.
int count_plain(const std::string& text) {
  int chars = 0;
  uint32_t c = 0;
  for (size_t at = 0; at < text.size(); ++chars) {
    if (!next_utf8(text, &at, &c) || !Vocabulary::plain_chars().contains(c)) return -1;
  }
  return chars;
}

// `sorted`: ids by their bytes, no bytes twice.
std::vector<TrieNode> build_trie(const std::vector<std::string>& tokens, const std::vector<int32_t>& sorted) {
  std::vector<TrieNode> nodes;
  std::vector<uint32_t> path;  // nodes from the root to the last token
  const std::string* last = nullptr;
  for (const int32_t id : sorted) {
    const std::string& text = tokens[id];
    size_t shared = 0;
    if (last != nullptr) {
      shared = std::mismatch(last->begin(), last->end(), text.begin(), text.end()).first - last->begin();
    }
    for (; path.size() > shared; path.pop_back()) nodes[path.back()].subtree_end = static_cast<uint32_t>(nodes.size());
    for (size_t i = shared; i < text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes.size()));
      nodes.push_back({0, -1, static_cast<uint16_t>(i + 1), static_cast<uint8_t>(text[i])});
    }
    nodes[path.back()].token = id;
    last = &text;
  }
  for (const uint32_t node : path) nodes[node].subtree_end = static_cast<uint32_t>(nodes.size());
  return nodes;
}

}  // namespace

const CharSet& Vocabulary::plain_chars() {
  static const CharSet set = [] {
    CharSet special;
    special.add(0, 0x1F);
    special.add('"', '"');
    special.add('\\', '\\');
    special.add(0x7F, 0x7F);
    return special.complement();
  }();
  return set;
}

Vocabulary::Vocabulary(std::vector<std::string> tokens, std::vector<int32_t> end_ids)
    : tokens_(std::move(tokens)), end_ids_(std::move(end_ids)), same_bytes_(tokens_.size(), -1) {
  std::erase_if(end_ids_, [&](int32_t id) { return id < 0 || id >= static_cast<int64_t>(tokens_.size()); });
  for (const int32_t id : end_ids_) tokens_[id].clear();
  std::vector<int32_t> sorted;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].empty() && tokens_[id].size() < kMaxTokenBytes) sorted.push_back(static_cast<int32_t>(id));
  }
  std::sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) {
    const int order = tokens_[a].compare(tokens_[b]);
    return order < 0 || (order == 0 && a < b);
  });
  std::vector<int32_t> distinct;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0 && tokens_[sorted[i]] == tokens_[sorted[i - 1]]) {
      same_bytes_[sorted[i - 1]] = sorted[i];
    } else {
      distinct.push_back(sorted[i]);
    }
  }
  plain_.assign(kMaxPlainRun, MaskWords(mask_words(tokens_.size()), 0));
  std::vector<int32_t> rest;
  for (const int32_t first : distinct) {
    longest_bytes_ = std::max(longest_bytes_, static_cast<int>(tokens_[first].size()));
    const int chars = count_plain(tokens_[first]);
    if (chars < 0) rest.push_back(first);
    if (chars <= 0) continue;
    longest_plain_ = std::max(longest_plain_, chars);
    for (int32_t id = first; id >= 0; id = same_bytes_[id]) {
      for (int n = std::min(chars, kMaxPlainRun); n <= kMaxPlainRun; ++n) plain_[n - 1][id >> 5] |= 1u << (id & 31);
    }
  }
  trie_ = build_trie(tokens_, distinct);
  rest_ = build_trie(tokens_, rest);
}

bool Vocabulary::is_end(int32_t id) const { return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end(); }

size_t Vocabulary::memory_bytes() const {
  size_t bytes = (trie_.size() + rest_.size()) * sizeof(TrieNode) + tokens_.size() * (sizeof(std::string) + 4);
  for (const MaskWords& mask : plain_) bytes += mask.size() * sizeof(uint32_t);
  return bytes;
}

}  // namespace warpweave::grammar
