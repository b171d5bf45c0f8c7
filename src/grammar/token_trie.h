// Tokens as a trie in depth-first order: a node's subtree, and the tokens in it, stand together.
// Immutable; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "grammar/char_kinds.h"

namespace warpweave::grammar {

struct TrieNode {
  uint32_t subtree_end;   // the first node behind the subtree
  uint32_t tokens_begin;  // of the tokens that end here; the next node's is their end
  uint16_t depth;         // 1 for the first byte
  uint8_t byte;
  uint8_t chars_below;    // of the longest way down from here, at most 255
};

class TokenTrie {
 public:
  struct Entry {
    std::string_view text;  // not empty
    int32_t token;
  };

  // Texts may occur more than once. The entries' texts are not needed afterwards.
  explicit TokenTrie(std::vector<Entry> entries = {});

  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()) - 1; }
  // One more than size(): the last one only ends the tokens of the one before.
  const TrieNode* nodes() const { return nodes_.data(); }
  // What the characters behind this node are; those of a node inside a character count as broken.
  KindSet kinds_below(uint32_t node) const { return kinds_below_[node]; }
  // The tokens that end in nodes first to last - 1.
  std::span<const int32_t> tokens(uint32_t first, uint32_t last) const {
    return std::span(tokens_).subspan(nodes_[first].tokens_begin,
                                      nodes_[last].tokens_begin - nodes_[first].tokens_begin);
  }
  int longest_text_bytes() const { return longest_bytes_; }
  size_t memory_bytes() const;

 private:
  void note_kinds(std::string_view text, std::span<const uint32_t> path);

  std::vector<TrieNode> nodes_;
  std::vector<KindSet> kinds_below_;
  std::vector<int32_t> tokens_;
  int longest_bytes_ = 0;
};

}  // namespace warpweave::grammar
