// Cuts text into the words that the BPE model sees: the pre-tokenizers of tokenizer.json, in order.
//
// Immutable after build() and thread-safe; each thread brings a PreTokenizerScratch. Words are
// byte ranges of `text` (the scratch's own buffer once a step has rewritten it). Text sizes are
// below kMaxPreTokenizerBytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_regex.h"
#include "text/tokenizer_spec.h"
#include "warpweave/status.h"

namespace warpweave {

inline constexpr size_t kMaxPreTokenizerBytes = size_t{1} << 30;

// What a tokenizer's steps may make of so many bytes, `times` as many beside a MiB: compatibility forms make 11 of one,
// and a file that makes megabytes of each character means harm.
inline constexpr size_t kNormalizerGrowth = 32, kPreTokenizerGrowth = 8;
constexpr size_t max_rewritten_bytes(size_t text_bytes, size_t times) {
  return std::min(kMaxPreTokenizerBytes - 1, (size_t{1} << 20) + text_bytes * times);
}

struct TextRange {
  uint32_t begin;
  uint32_t end;
};

class PreTokenizerScratch {
 public:
  std::string_view text;         // what the words are ranges of
  std::vector<TextRange> words;  // none is empty

 private:
  friend class PreTokenizer;
  struct Part {
    TextRange range;
    bool is_match;
  };
  std::string buffers_[2];
  int next_buffer_ = 0;
  bool starts_text_ = true;
  std::vector<TextRange> previous_;
  std::vector<Part> parts_;
};

class PreTokenizer {
 public:
  static Result<PreTokenizer> build(const std::vector<PreTokenizerStep>& steps);

  // The last step is the only ByteLevel one: words stay raw bytes, and the model spells them.
  bool byte_level_words() const { return byte_level_words_; }

  // `starts_text`: `text` begins where the caller's whole text begins.
  Status run(std::string_view text, bool starts_text, RegexScratch* regex,
             PreTokenizerScratch* scratch) const;

 private:
  struct Step {
    PreTokenizerStep spec;
    std::optional<Regex> regex;
    bool map_bytes = false;  // ByteLevel that the model does not do
  };

  static Status split_regex(const Step& step, RegexScratch* regex, PreTokenizerScratch* scratch);
  template <typename IsMatch>
  static void split_chars(SplitBehavior behavior, IsMatch&& is_match, PreTokenizerScratch* scratch);
  static void split_whitespace_words(PreTokenizerScratch* scratch);
  static void add_parts(SplitBehavior behavior, PreTokenizerScratch* scratch);
  static Status byte_level(const Step& step, RegexScratch* regex, PreTokenizerScratch* scratch);
  static Status metaspace(const PreTokenizerStep& spec, PreTokenizerScratch* scratch);
  template <typename Append>
  static Status rewrite(PreTokenizerScratch* scratch, Append&& append);

  std::vector<Step> steps_;
  bool byte_level_words_ = false;
};

}  // namespace warpweave
