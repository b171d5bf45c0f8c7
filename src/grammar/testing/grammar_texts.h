// For tests of this folder: a small vocabulary, and whether a grammar takes a text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/compiler.h"

namespace warpweave::grammar::testing {

// All single bytes, some longer tokens that cross the borders grammars have, and an end token.
inline std::shared_ptr<const Vocabulary> small_vocabulary() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  for (const char* text : {"true", "false", "null", "\":",  "\",",         "\"}", "\",\"",   "{\"", "[\"",  "],",
                           "}}",   "abc",   "ab",   "a",    "1,2",         "12",  "0.5",     "é",   "日本", "\xE6\x97",
                           "\\n",  "\\\"",  "  ",   "\n  ", "hello world", "a\"", "b\",\"b", "::",  ",\"",  "name"}) {
    tokens.emplace_back(text);
  }
  tokens.emplace_back("<end>");
  const auto end = static_cast<int32_t>(tokens.size()) - 1;
  return std::make_shared<Vocabulary>(std::move(tokens), std::vector<int32_t>{end});
}

// As a real one is built: words with and without a space, capitals, digits, scripts, long runs; enough of
// each that masks are made of slices and runs.
inline std::shared_ptr<const Vocabulary> word_vocabulary() {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  const std::string_view letters = "aeindxyz";
  for (const char a : letters) {
    for (const char b : letters) {
      for (const char* form :
           {"?", " ?", "?_", "?1", "?\"", "?,\"", " ?.", "?é", "?日", "\n?", "?\xE6\x97", "?@", "?end", "? ?"}) {
        std::string token;
        for (const char* c = form; *c != 0; ++c) {
          if (*c == '?') {
            (token += a) += b;
          } else {
            token += *c;
          }
        }
        tokens.push_back(token);
      }
      tokens.push_back({static_cast<char>(a - 32), b});
      tokens.push_back({' ', static_cast<char>(a - 32), b, a});
      tokens.emplace_back();
      append_utf8(b < 'i' ? 0x4E00 + a : 0x3B1, &tokens.back());
      append_utf8(0x430 + b - 'a', &tokens.back());
    }
  }
  for (const int chars : {5, 12, 25, 39, 40, 41, 60, 90}) {
    for (const char c : {' ', 'a', '=', '\n'}) tokens.emplace_back(chars, c);
    tokens.push_back(std::string(chars, 'a') + "\"");
  }
  for (const char* text :
       {"\":", "\",", "\"}", "\",\"", "{\"", "[\"", "],", "\\n", "\\\"", "a\",\"b", "日本語\",", ".com", "true"})
    tokens.emplace_back(text);
  tokens.emplace_back("<end>");
  const auto end = static_cast<int32_t>(tokens.size()) - 1;
  return std::make_shared<Vocabulary>(std::move(tokens), std::vector<int32_t>{end});
}

inline GrammarSpec compact_schema(std::string_view schema) {
  return {GrammarSpec::Kind::json_schema, std::string(schema), {.any_whitespace = false}};
}

inline std::shared_ptr<const CompiledGrammar> compile(
    const GrammarSpec& spec, const GrammarLimits& limits = {},
    std::shared_ptr<const Vocabulary> vocabulary = small_vocabulary()) {
  Result<std::shared_ptr<const Grammar>> grammar = compile_grammar(spec, limits);
  if (!grammar.ok()) return nullptr;
  return std::make_shared<const CompiledGrammar>(*grammar, std::move(vocabulary), limits);
}

// The failure's message; empty when it compiles.
inline std::string failure(const GrammarSpec& spec, const GrammarLimits& limits = {}) {
  const Result<std::shared_ptr<const Grammar>> grammar = compile_grammar(spec, limits);
  return grammar.ok() ? "" : grammar.status().message();
}

// "yes": the whole text; "prefix": more must follow; "no".
inline std::string takes(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view text) {
  if (grammar == nullptr) return "does not compile";
  GrammarMatcher matcher(grammar);
  if (!text.empty() && !matcher.accept_bytes(text)) return "no";
  return matcher.can_end() ? "yes" : "prefix";
}

inline std::string takes(const GrammarSpec& spec, std::string_view text) { return takes(compile(spec), text); }

}  // namespace warpweave::grammar::testing
