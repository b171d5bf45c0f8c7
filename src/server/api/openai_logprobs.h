// Log-probabilities in OpenAI's two shapes. Both gather positions as JSON text; a stream writes and
// clears them with each chunk. Tokens that are part of a character show U+FFFD as text; the chat
// shape has their exact bytes as well.
#pragma once

#include <span>
#include <string>

#include "text/tokenizer.h"
#include "warpweave/engine.h"

namespace warpweave::server {

// {"tokens":[], "token_logprobs":[], "top_logprobs":[], "text_offset":[]}
class CompletionLogprobs {
 public:
  void add(std::span<const PositionLogprobs> positions, const Tokenizer& tokenizer);
  // Writes what was added since clear().
  void append_json(std::string* out) const;
  void clear();

 private:
  std::string tokens_;
  std::string token_logprobs_;
  std::string top_logprobs_;
  std::string text_offsets_;
  size_t offset_ = 0;  // in characters, of the whole text so far
};

// {"content":[{"token", "logprob", "bytes", "top_logprobs":[...]}], "refusal":null}
class ChatLogprobs {
 public:
  void add(std::span<const PositionLogprobs> positions, const Tokenizer& tokenizer);
  void append_json(std::string* out) const;
  // The list's entries without its brackets.
  const std::string& entries() const { return entries_; }
  void clear() { entries_.clear(); }

 private:
  std::string entries_;
};

}  // namespace warpweave::server
