// The bytes of every token, sorted so that masks are quick to make.
//
// Most of a vocabulary is words: letters, perhaps behind a space. Tokens are cut into slices by what
// they are made of; where a grammar lets the characters of a slice go on whatever they are, the
// slice's ready set is the answer and its trie is not walked (the idea: llguidance's design notes).
//
// Plain characters are those that stand for themselves in a JSON string: all but the quote, the
// backslash, control characters and U+007F. Inside a string a mask is the ready set of plain tokens
// and the others, which are told apart only by what stands behind their plain beginning.
// Immutable; shared by all grammars of a model. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/token_trie.h"

namespace warpweave::grammar {

// One bit per token id, 32 to a word.
using MaskWords = std::vector<uint32_t>;
inline size_t mask_words(size_t vocab_size) { return (vocab_size + 31) / 32; }

// Tokens made of the same kinds of characters.
struct TokenSlice {
  TokenTrie trie;
  KindSet kinds = 0;
  int longest_chars = 0;
  std::vector<MaskWords> up_to;  // [n - 1]: tokens of at most n characters; the last: all
};

class Vocabulary {
 public:
  static constexpr int kMaxPlainRun = 40;  // longer plain tokens are few, and listed
  static constexpr int kAllPlain = kMaxPlainRun + 1;

  // `tokens[id]`: the bytes of each token; empty ones (special tokens, unknown ids) are never
  // allowed by a mask, except `end_ids` where the text may end.
  Vocabulary(std::vector<std::string> tokens, std::vector<int32_t> end_ids);
  Vocabulary(const Vocabulary&) = delete;  // ids_ refers to the texts
  Vocabulary& operator=(const Vocabulary&) = delete;

  size_t size() const { return tokens_.size(); }
  const std::string& token(int32_t id) const { return tokens_[id]; }
  std::span<const int32_t> end_ids() const { return end_ids_; }
  bool is_end(int32_t id) const;
  // The longest token that `text` begins with, of those of at most kMaxSplitBytes; or -1.
  static constexpr size_t kMaxSplitBytes = 32;
  int32_t longest_beginning(std::string_view text) const;

  // Every token is in one of them; those that are not wholly plain in the last, and only they, but
  // for plain ones of more than kMaxPlainRun characters.
  std::span<const TokenSlice> slices() const { return slices_; }

  // Tokens of at most `chars` plain characters, 1 to kMaxPlainRun; or kAllPlain: all plain tokens.
  const MaskWords& plain_tokens(int chars) const { return plain_[chars - 1]; }
  // (characters, token) of the plain tokens of more than kMaxPlainRun characters.
  std::span<const std::pair<int, int32_t>> long_plain_tokens() const { return long_plain_; }
  // Of plain tokens, and of the plain beginnings of others.
  int longest_plain_chars() const { return longest_plain_; }

  // What stands behind the plain beginning of the tokens that are not wholly plain: of all, and of
  // those whose beginning has `chars` characters, 0 to longest_plain_chars().
  const TokenTrie& behind_plain() const { return behind_plain_; }
  const TokenTrie& behind_plain(int chars) const { return behind_plain_of_[chars]; }

  int longest_token_bytes() const { return longest_bytes_; }
  size_t memory_bytes() const;

  static const CharSet& plain_chars();
  static KindSet plain_kinds();

 private:
  void add_plain(int32_t id, int chars);
  void fill_slices(const std::vector<int>& slice_of);
  void fill_behind_plain();

  std::vector<std::string> tokens_;
  std::vector<int32_t> end_ids_;
  std::unordered_map<std::string_view, int32_t> ids_;  // of texts of at most kMaxSplitBytes; of equal ones the first
  std::vector<TokenSlice> slices_;
  std::vector<MaskWords> plain_;  // [n - 1]
  std::vector<std::pair<int, int32_t>> long_plain_;
  TokenTrie behind_plain_;
  std::vector<TokenTrie> behind_plain_of_;
  int longest_bytes_ = 0;
  int longest_plain_ = 0;
};

}  // namespace warpweave::grammar
