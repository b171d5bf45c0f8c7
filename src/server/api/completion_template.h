// How a model is asked for what stands between a prompt and a suffix ("fill in the middle", Bavarian et al. 2022,
// arXiv:2207.14255): three markers that it was trained with, in one of two orders. Immutable.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizer.h"
#include "warpweave/status.h"

namespace warpweave::server {

struct CompletionTemplate {
  enum class Order { prompt_gap_suffix, prompt_suffix_gap };  // "gap": where the model is to write

  std::string begin, gap, end;  // markers: before the prompt, of the gap, and the third one
  Order order = Order::prompt_suffix_gap;

  // begin prompt gap suffix end, or begin prompt end suffix gap.
  std::string fill(std::string_view prompt, std::string_view suffix) const;
  // Empty where the tokenizer has all three as tokens of their own, else the first one it lacks.
  std::string_view missing_from(const Tokenizer& tokenizer) const;
};

// What --completion-template says: a name that SGLang's users know, or a JSON file with fim_begin_token,
// fim_middle_token, fim_end_token and fim_position (MIDDLE: prompt_gap_suffix, END: prompt_suffix_gap). Empty for
// "none", and for "auto", which guess_completion_template() answers. invalid_argument names the flag.
Result<std::optional<CompletionTemplate>> open_completion_template(const std::string& flag);
// The one whose markers the tokenizer has.
std::optional<CompletionTemplate> guess_completion_template(const Tokenizer& tokenizer);

}  // namespace warpweave::server
