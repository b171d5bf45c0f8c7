// What the sampling parameters of one body may cost together. A batch has them for each prompt, so that bounds on one
// expression, one grammar or one list do not bound the body. Failures are invalid_argument and name bound and remedy.
#pragma once

#include <chrono>
#include <map>
#include <string>

#include "grammar/compiler.h"
#include "grammar/limits.h"
#include "server/api/limits.h"
#include "warpweave/engine.h"

namespace warpweave::server {

class SamplingBudget {
 public:
  // `grammar_time`: of the processor, to compile all grammars.
  explicit SamplingBudget(std::chrono::milliseconds grammar_time = std::chrono::milliseconds(kMaxGrammarMs))
      : most_grammar_time_(grammar_time), grammar_time_(grammar_time) {}

  // Equal patterns share an automaton.
  Result<StopRegex> compile(const std::string& stop_regex);
  Result<std::shared_ptr<const grammar::CompiledGrammar>> compile(grammar::GrammarCompiler* compiler,
                                                                  const grammar::GrammarSpec& spec);
  // Call before `params` are copied for so many sequences.
  Status copy(const SamplingParams& params, size_t sequences, const std::string& field);

 private:
  std::map<std::string, StopRegex> stop_regexes_;
  grammar::WorkBudget stop_regex_work_{kMaxStopRegexWork};
  size_t stop_regex_cells_ = kMaxStopRegexCells;  // left
  const std::chrono::milliseconds most_grammar_time_;
  std::chrono::nanoseconds grammar_time_;         // left
  size_t bytes_ = kMaxSamplingBytes;              // left
};

}  // namespace warpweave::server
