// From sampled ids to the text a client may see: detokenisation and stop strings of one request.
//
// Text that could still become a stop string is held back; everything released is final and whole
// UTF-8. A stop string or match of a stop regex counts when the token that completes it comes behind the first
// min_new_tokens; one that is whole before is text like any other. Not thread-safe; lives on the engine thread. The
// tokenizer (may be null: ids only) must outlive it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "warpweave/engine.h"

namespace warpweave {

class TextStream {
 public:
  TextStream(const Tokenizer* tokenizer, const SamplingParams& params,
             std::span<const int32_t> prompt_ids);

  struct Piece {
    std::string text;                         // released by this call
    std::optional<std::string> matched_stop;  // set: generation ends here
  };
  Piece push(int32_t token_id);

  // What was held back, when the request ends without a stop string.
  std::string flush();

 private:
  Piece release(std::string fresh, bool may_stop);
  const std::string* find_regex(std::string_view fresh, bool may_stop);
  size_t held_suffix_bytes() const;

  std::optional<IncrementalDetokenizer> detokenizer_;
  std::vector<std::string> stop_;
  std::vector<StopRegex> stop_regex_;
  std::vector<int> regex_states_;  // of each, after the text so far
  bool keep_stop_text_;
  int tokens_before_stop_;  // so many more are pushed before a stop counts
  std::string pending_;  // certain text that may yet be the start of a stop string
};

}  // namespace warpweave
