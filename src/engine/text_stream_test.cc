#include "engine/text_stream.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "grammar/char_dfa.h"
#include "grammar/limits.h"
#include "grammar/regex_syntax.h"

namespace warpweave {
namespace {

const Tokenizer& tale_tokenizer() {
  static const auto made = [] {
    const auto read = [](const char* path) {
      std::ifstream file(path);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    return load_hf_tokenizer(read("models/tale-llama/tokenizer.json"), read("models/tale-llama/tokenizer_config.json")).value();
  }();
  return *made;
}

StopRegex stop_regex(std::string pattern) {
  grammar::WorkBudget budget{100000};
  const auto regex = grammar::parse_regex(pattern, {});
  auto found = grammar::CharDfa::from_regex(regex.value(), /*search=*/true, {}, &budget);
  return {std::move(pattern), std::make_shared<const grammar::CharDfa>(std::move(found).value())};
}

struct Seen {
  std::string text;
  std::string stop;  // empty: none came
};

// What a client sees of a text whose every character is a token.
Seen stream(const SamplingParams& params, std::string_view text) {
  TextStream stream(&tale_tokenizer(), params, {});
  Seen seen;
  for (const char c : text) {
    const TextStream::Piece piece = stream.push(tale_tokenizer().encode(std::string(1, c), false).value().at(0));
    seen.text += piece.text;
    if (piece.matched_stop) {
      seen.stop = *piece.matched_stop;
      return seen;
    }
  }
  seen.text += stream.flush();
  return seen;
}

TEST(TextStream, StopStringBeforeMinNewTokensEndsNothing) {
  SamplingParams params;
  params.stop = {"ab"};
  params.min_new_tokens = 3;
  EXPECT_EQ(stream(params, "xabyzabw").text, "xabyz");
  EXPECT_EQ(stream(params, "xabyz").text, "xabyz");
  params.min_new_tokens = 2;  // its last token is the one behind them
  EXPECT_EQ(stream(params, "xabyzabw").text, "x");
}

TEST(TextStream, StopStringThatCameTooEarlyEndsNothingLater) {
  SamplingParams params;
  params.stop = {"ab", "xabc"};  // "xab" is held back for the second
  params.min_new_tokens = 3;
  EXPECT_EQ(stream(params, "xabzq").text, "xabzq");
  const Seen longer = stream(params, "xabcq");
  EXPECT_EQ(longer.text, "");
  EXPECT_EQ(longer.stop, "xabc");
}

TEST(TextStream, StopRegexBeforeMinNewTokensEndsNothing) {
  SamplingParams params;
  params.stop_regex = {stop_regex("[0-9]b")};
  params.min_new_tokens = 3;
  const Seen later = stream(params, "1bcd2bq");
  EXPECT_EQ(later.text, "1bcd2b");
  EXPECT_EQ(later.stop, "[0-9]b");
  EXPECT_EQ(stream(params, "xy1bq").text, "xy1b");
}

}  // namespace
}  // namespace warpweave
