// The WordPiece model: a word is the longest piece of the vocabulary that it begins with, then the longest that the
// rest begins with behind a prefix, and so on; a word with a rest that no piece begins is one unknown token.
//
// Immutable after build() and thread-safe. A word costs at most max_word_chars^2 / 2 look-ups, and their texts together
// are bounded: in a file that means harm pieces have thousands of bytes. Wu et al. 2016, arXiv:1609.08144.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer_spec.h"
#include "warpweave/status.h"

namespace warpweave {

class WordPiece {
 public:
  // `data_loss` when the vocabulary lacks the unknown token.
  static Result<WordPiece> build(const BpeSpec& spec, const StringTable& vocab);

  // Of all that is looked up for one word; a word of 1000 characters of a model's vocabulary takes less than 1 MiB.
  static constexpr size_t kMaxLookUpBytes = size_t{4} << 20;

  // Appends the ids of one pre-tokenized word of valid UTF-8; `vocab` is that of build(). Errors: `resource_exhausted`.
  Status encode_word(const StringTable& vocab, std::string_view word, std::vector<int32_t>* ids) const;

 private:
  std::string prefix_;
  size_t max_chars_ = 0;
  size_t longest_bytes_ = 0;  // of the vocabulary's entries
  int32_t unk_id_ = -1;
};

}  // namespace warpweave
