// The engine by lines of JSON on standard input, for comparisons with other engines in Python.
//
//   grammar_probe VOCABULARY END_ID...    VOCABULARY: for each token a 32-bit length and its bytes
//   {"compile": "json_schema" | "regex" | "ebnf" | "choice" | "json_object" | "structural_tag", "source": "...",
//   "compact": bool}
//   {"mask": true}   {"accept": id}   {"rollback": n}
// Each line is answered by one: {"ok", "us", "error"}; of a mask also {"end", "bytes"}, and behind the line
// that many bytes: one bit per token.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>

#include "grammar/compiler.h"

namespace {

using namespace warpweave;
using namespace warpweave::grammar;
using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begun) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begun).count();
}

std::shared_ptr<const Vocabulary> read_vocabulary(const char* path, std::vector<int32_t> ends) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> tokens;
  uint32_t length = 0;
  while (file.read(reinterpret_cast<char*>(&length), sizeof length)) {
    tokens.emplace_back(length, '\0');
    file.read(tokens.back().data(), length);
  }
  return std::make_shared<Vocabulary>(std::move(tokens), std::move(ends));
}

GrammarSpec::Kind kind_of(const std::string& name) {
  if (name == "regex") return GrammarSpec::Kind::regex;
  if (name == "ebnf") return GrammarSpec::Kind::ebnf;
  if (name == "choice") return GrammarSpec::Kind::choice;
  if (name == "json_object") return GrammarSpec::Kind::json_object;
  return name == "structural_tag" ? GrammarSpec::Kind::structural_tag : GrammarSpec::Kind::json_schema;
}

class Probe {
 public:
  explicit Probe(std::shared_ptr<const Vocabulary> vocabulary) : vocabulary_(std::move(vocabulary)) {}

  Json answer(const Json& ask) {
    if (ask.contains("compile")) return compile(ask);
    if (!matcher_) return {{"ok", false}, {"error", "nothing is compiled"}};
    if (ask.contains("accept")) {
      const auto id = ask["accept"].get<int32_t>();
      return timed([&] { return matcher_->accept_token(id); });
    }
    if (ask.contains("rollback")) {
      const auto tokens = ask["rollback"].get<size_t>();
      return timed([&] { return matcher_->rollback(tokens); });
    }
    mask_.resize(mask_words(vocabulary_->size()));
    Json answer = timed([&] { return matcher_->fill_mask(mask_); });
    answer["end"] = matcher_->can_end();
    answer["bytes"] = mask_.size() * sizeof(uint32_t);
    return answer;
  }
  // Of the last answer, where it named its bytes.
  std::string_view mask_bytes() const {
    return {reinterpret_cast<const char*>(mask_.data()), mask_.size() * sizeof(uint32_t)};
  }

 private:
  template <typename Call>
  static Json timed(const Call& call) {
    const auto begun = Clock::now();
    const bool ok = call();
    const double us = us_since(begun);
    return {{"ok", ok}, {"us", us}};
  }

  Json compile(const Json& ask) {
    const GrammarSpec spec{
        kind_of(ask["compile"]), ask.value("source", ""), {.any_whitespace = !ask.value("compact", true)}};
    matcher_.reset();
    const auto begun = Clock::now();
    Result<std::shared_ptr<const Grammar>> grammar = compile_grammar(spec, {});
    if (!grammar.ok()) return {{"ok", false}, {"us", us_since(begun)}, {"error", grammar.status().message()}};
    auto compiled = std::make_shared<const CompiledGrammar>(*grammar, vocabulary_, GrammarLimits{});
    const double us = us_since(begun);
    const size_t states = (*grammar)->num_states();
    matcher_.emplace(std::move(compiled));
    return {{"ok", true}, {"us", us}, {"states", states}};
  }

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::optional<GrammarMatcher> matcher_;
  MaskWords mask_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: grammar_probe VOCABULARY END_ID...\n"), 2;
  std::vector<int32_t> ends;
  for (int i = 2; i < argc; ++i) ends.push_back(std::atoi(argv[i]));
  Probe probe(read_vocabulary(argv[1], std::move(ends)));
  for (std::string line; std::getline(std::cin, line);) {
    const Json ask = Json::parse(line, nullptr, false);
    const Json answer = ask.is_object() ? probe.answer(ask) : Json{{"ok", false}, {"error", "no JSON object"}};
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
    if (answer.contains("bytes")) std::cout << probe.mask_bytes();
    std::cout.flush();
  }
  return 0;
}
