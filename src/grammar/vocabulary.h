// The bytes of every token, as a trie, and the sets of tokens that are shared by many masks.
//
// Plain characters are those that stand for themselves in a JSON string: all but the quote, the
// backslash, control characters and U+007F. Most tokens of a vocabulary are plain text, so inside a
// string a mask is a ready set of them plus a short walk over the rest (the idea of slices:
// llguidance's design notes). Immutable; shared by all grammars of a model. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "grammar/char_set.h"

namespace warpweave::grammar {

// One bit per token id, 32 to a word.
using MaskWords = std::vector<uint32_t>;
inline size_t mask_words(size_t vocab_size) { return (vocab_size + 31) / 32; }

// In depth-first order: a node's subtree stands right behind it.
struct TrieNode {
  uint32_t subtree_end;
  int32_t token;        // -1: none ends here
  uint16_t depth;       // 1 for the first byte
  uint8_t byte;
};

class Vocabulary {
 public:
  static constexpr int kMaxPlainRun = 48;  // longer plain tokens count as ones of this length

  // `tokens[id]`: the bytes of each token; empty ones (special tokens, unknown ids) are never
  // allowed by a mask, except `end_ids` where the text may end.
  Vocabulary(std::vector<std::string> tokens, std::vector<int32_t> end_ids);

  size_t size() const { return tokens_.size(); }
  const std::string& token(int32_t id) const { return tokens_[id]; }
  std::span<const int32_t> end_ids() const { return end_ids_; }
  bool is_end(int32_t id) const;

  std::span<const TrieNode> trie() const { return trie_; }
  // Only the tokens that are not wholly plain.
  std::span<const TrieNode> trie_of_rest() const { return rest_; }
  // Further tokens with the same bytes as `id`, or -1.
  int32_t same_bytes(int32_t id) const { return same_bytes_[id]; }
  // Tokens of at most `chars` plain characters, 1 to kMaxPlainRun; the last set is of all plain tokens.
  const MaskWords& plain_tokens(int chars) const { return plain_[chars - 1]; }
  int longest_plain_chars() const { return longest_plain_; }
  int longest_token_bytes() const { return longest_bytes_; }
  size_t memory_bytes() const;

  static const CharSet& plain_chars();

 private:
  std::vector<std::string> tokens_;
  std::vector<int32_t> end_ids_;
  std::vector<TrieNode> trie_, rest_;
  std::vector<int32_t> same_bytes_;
  std::vector<MaskWords> plain_;  // [n - 1]
  int longest_bytes_ = 0;
  int longest_plain_ = 0;
};

}  // namespace warpweave::grammar
