// Grammars for tests of serving with the tiny models.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grammar/testing/grammar_texts.h"

namespace warpweave {

using Grammar = std::shared_ptr<const grammar::CompiledGrammar>;

// Over the tiny models' 96 ids: an end, and the printable bytes, so that a text has one way to be written.
inline Grammar printable_regex(const std::string& pattern) {
  std::vector<std::string> tokens = {""};
  for (char c = ' '; c <= '~'; ++c) tokens.emplace_back(1, c);
  static const auto vocabulary =
      std::make_shared<const grammar::Vocabulary>(std::move(tokens), std::vector<int32_t>{0});
  return grammar::testing::compile({grammar::GrammarSpec::Kind::regex, pattern, {}}, {}, vocabulary);
}

}  // namespace warpweave
