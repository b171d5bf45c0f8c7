#include "grammar/token_trie.h"

#include <algorithm>

namespace warpweave::grammar {

TokenTrie::TokenTrie(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    const int order = a.text.compare(b.text);
    return order < 0 || (order == 0 && a.token < b.token);
  });
  std::vector<uint32_t> path;  // nodes from the root to the last text
  std::string_view last;
  const auto end_path = [&](size_t shared) {
    for (; path.size() > shared; path.pop_back())
      nodes_[path.back()].subtree_end = static_cast<uint32_t>(nodes_.size());
  };
  for (const Entry& entry : entries) {
    const auto shared = static_cast<size_t>(
        std::mismatch(last.begin(), last.end(), entry.text.begin(), entry.text.end()).first - last.begin());
    end_path(shared);
    for (size_t i = shared; i < entry.text.size(); ++i) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(tokens_.size()), static_cast<uint16_t>(i + 1),
                        static_cast<uint8_t>(entry.text[i]), 0});
      kinds_below_.push_back(0);
    }
    tokens_.push_back(entry.token);
    note_kinds(entry.text, path);
    longest_bytes_ = std::max(longest_bytes_, static_cast<int>(entry.text.size()));
    last = entry.text;
  }
  end_path(0);
  nodes_.push_back({static_cast<uint32_t>(nodes_.size() + 1), static_cast<uint32_t>(tokens_.size()), 0, 0, 0});
}

// Tells every node on the way to `text` what stands behind it.
void TokenTrie::note_kinds(std::string_view text, std::span<const uint32_t> path) {
  std::vector<TextKinds> behind(text.size() + 1);  // by the byte it begins at
  for (size_t i = text.size(); i-- > 0;) {
    size_t next = i;
    const int kind = next_kind(text, &next);
    behind[i] = {behind[next].kinds | kinds(kind), behind[next].chars + 1};
  }
  for (size_t i = 0; i < path.size(); ++i) {
    TrieNode& node = nodes_[path[i]];
    kinds_below_[path[i]] |= behind[i + 1].kinds;
    node.chars_below = static_cast<uint8_t>(std::max<int>(node.chars_below, std::min(behind[i + 1].chars, 255)));
  }
}

size_t TokenTrie::memory_bytes() const {
  return nodes_.size() * (sizeof(TrieNode) + sizeof(KindSet)) + tokens_.size() * sizeof(int32_t);
}

}  // namespace warpweave::grammar
