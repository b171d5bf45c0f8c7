#include "server/api/sampling_budget.h"

#include <utility>

#include <fmt/format.h>

#include "grammar/char_dfa.h"

namespace warpweave::server {
namespace {

size_t heap_bytes(const SamplingParams& params) {
  size_t bytes = sizeof(params);
  for (const std::string& stop : params.stop) bytes += sizeof(stop) + stop.size();
  for (const StopRegex& regex : params.stop_regex) bytes += sizeof(regex) + regex.pattern.size();
  for (const auto& word : params.bad_words) bytes += sizeof(word) + word.size() * sizeof(word[0]);
  bytes += (params.stop_token_ids.size() + params.allowed_token_ids.size()) * sizeof(int32_t);
  return bytes + params.logit_bias.size() * sizeof(params.logit_bias[0]);
}

}  // namespace

Result<StopRegex> SamplingBudget::compile(const std::string& stop_regex) {
  if (const auto known = stop_regexes_.find(stop_regex); known != stop_regexes_.end()) return known->second;
  grammar::GrammarLimits limits;
  limits.max_dfa_states = kMaxStopRegexStates;
  limits.max_dfa_cells = kMaxStopRegexCells;
  WW_ASSIGN_OR_RETURN(const grammar::Regex regex, grammar::parse_regex(stop_regex, limits));
  WW_ASSIGN_OR_RETURN(grammar::CharDfa found,
                      grammar::CharDfa::from_regex(regex, /*search=*/true, limits, &stop_regex_work_));
  if (found.num_states() > 0 && found.accepting(found.start())) {
    return Status::invalid_argument("it matches the empty text, which would end every answer before it begins");
  }
  if (found.num_cells() > stop_regex_cells_) {
    return Status::invalid_argument(
        fmt::format("the patterns of this request up to it need tables of more than {} cells (states times classes "
                    "of characters); use simpler ones, or send several requests",
                    kMaxStopRegexCells));
  }
  stop_regex_cells_ -= found.num_cells();
  return stop_regexes_
      .emplace(stop_regex, StopRegex{stop_regex, std::make_shared<const grammar::CharDfa>(std::move(found))})
      .first->second;
}

Result<std::shared_ptr<const grammar::CompiledGrammar>> SamplingBudget::compile(grammar::GrammarCompiler* compiler,
                                                                                const grammar::GrammarSpec& spec) {
  if (grammar_time_ <= std::chrono::nanoseconds::zero()) {
    return Status::invalid_argument(
        fmt::format("the grammars of this request before it took more than {} ms to compile; use fewer or simpler "
                    "ones, or send several requests",
                    most_grammar_time_.count()));
  }
  const std::chrono::nanoseconds begin = thread_time();
  Result<std::shared_ptr<const grammar::CompiledGrammar>> compiled = compiler->compile(spec);
  grammar_time_ -= thread_time() - begin;
  return compiled;
}

Status SamplingBudget::copy(const SamplingParams& params, size_t sequences, const std::string& field) {
  const size_t bytes = heap_bytes(params);
  if (bytes_ / bytes < sequences) {
    return Status::invalid_argument(
        fmt::format("{} has {} bytes of stop texts, token lists and biases for each of {} sequences, but those of a "
                    "request may have {} together; shorten the lists, lower n, or send several requests.",
                    field, bytes, sequences, kMaxSamplingBytes),
        field);
  }
  bytes_ -= bytes * sequences;
  return {};
}

}  // namespace warpweave::server
