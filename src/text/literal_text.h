// Text that must not turn into special tokens, marked so that it stays known through a template.
//
// mark() puts a character that stands nowhere else behind the first character of everything that
// could be, or become by what the template writes beside it, a special token. Templates trim, join,
// escape and cut such text like any other, because the mark is a part of it; unmark() takes the
// marks out of the rendered text and says where they were, for EncodeOptions::literal_at. The mark
// is one of the 32 noncharacters U+FDD0..U+FDEF (Unicode 23.7) that the request does not use.
//
// What is left: a template that cuts a text inside a would-be token, or that itself writes both ends
// of a special token around a client's letters (`<|{{ name }}|>`), makes that token.
// Not thread-safe; the tokenizer must outlive it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"
#include "warpweave/status.h"

namespace warpweave {

class LiteralText {
 public:
  // `inputs`: all that will be rendered, in any spelling. invalid_argument when it uses all 32
  // characters; unsupported when the tokenizer finds special tokens only in rewritten text.
  static Result<LiteralText> create(const Tokenizer& tokenizer, std::string_view inputs);

  std::string mark(std::string_view text) const;

  struct Unmarked {
    std::string text;
    std::vector<size_t> literal_at;  // ascending
  };
  Unmarked unmark(std::string_view rendered) const;

 private:
  LiteralText(const Tokenizer& tokenizer, char32_t mark);
  bool continues_special(std::string_view text) const;

  const Tokenizer* tokenizer_;
  std::vector<std::string_view> special_;
  std::vector<std::string> spellings_;  // of the mark: as it is first, then as templates escape it
};

}  // namespace warpweave
