// The Unigram model: of all ways to cut a word into tokens of the vocabulary the one whose scores (logarithms of
// probabilities) have the largest sum; characters that begin no token are unknown.
//
// Viterbi's algorithm over the word's bytes. From each character on the tokens that the text goes on with are found in
// the sorted vocabulary, byte for byte, until none is left: (bytes * longest match) steps, which are bounded, since
// tokens may be long and many in a file that means harm. Immutable after build() and thread-safe. Kudo 2018,
// arXiv:1804.10959; the order of ties and the unknown token's score are those of the `tokenizers` library.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer_spec.h"
#include "warpweave/status.h"

namespace warpweave {

class UnigramScratch {
 private:
  friend class Unigram;
  struct Node {
    double score = 0;
    int64_t begin = -1;  // of the last token of the best way here; -1: there is no way yet
    int32_t id = 0;
  };
  std::vector<Node> best_;  // by end in bytes
  std::vector<Node> way_;
};

class Unigram {
 public:
  // `vocab` has the tokens of spec.vocab, whose ids are their places, and spec.unigram their scores.
  static Result<Unigram> build(const BpeSpec& spec, const StringTable& vocab);

  // Of one word: 24 bytes are held for each of its bytes.
  static constexpr size_t kMaxWordBytes = size_t{4} << 20;

  // A word may take so many for each of its bytes, beside kFreeSteps; the vocabularies of models take fewer than ten.
  static constexpr size_t kMaxStepsPerByte = 64, kFreeSteps = size_t{1} << 16;

  // Appends the ids of one pre-tokenized word of valid UTF-8 and kMaxWordBytes at most; `vocab` is that of build().
  // Errors: `resource_exhausted` past the bound of steps.
  Status encode_word(const StringTable& vocab, std::string_view word, UnigramScratch* scratch,
                   std::vector<int32_t>* ids) const;

 private:
  template <typename Take>
  size_t each_beginning(const StringTable& vocab, std::string_view text, const Take& take) const;
  bool find_best(const StringTable& vocab, std::string_view word, UnigramScratch* scratch) const;
  void append_unknown(std::string_view text, std::vector<int32_t>* ids) const;

  std::vector<double> scores_;              // by id
  std::vector<int32_t> bytes_;              // the ids of <0x00>..<0xFF>; empty without byte fallback
  std::vector<int32_t> sorted_;             // ids, by the bytes of their tokens
  std::vector<uint32_t> first_;             // of sorted_: where those with this first byte begin; 257 places
  double unk_score_ = 0;
  int32_t unk_id_ = -1;                     // -1: there is none
};

}  // namespace warpweave
