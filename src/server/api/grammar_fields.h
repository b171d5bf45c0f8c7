// Structured output in request bodies: every spelling of it, compiled to a grammar.
//
// OpenAI's response_format, vLLM's structured_outputs and guided_*, SGLang's json_schema, regex, ebnf
// and structural_tag. One of them at a time; what it holds is compiled here, on the handler's thread,
// and a failure is a 400 that names the field and the keyword.
#pragma once

#include <memory>

#include "flags/server_args.h"
#include "grammar/compiler.h"
#include "server/api/sampling_fields.h"
#include "server/metrics.h"
#include "text/tokenizer.h"

namespace warpweave::server {

// For the tokenizer's vocabulary; null without one. `end_ids`: the tokens that end an output.
std::unique_ptr<grammar::GrammarCompiler> make_grammar_compiler(const Tokenizer* tokenizer,
                                                                std::vector<int32_t> end_ids);

struct GrammarContext {
  grammar::GrammarCompiler* compiler = nullptr;  // null: the server has no tokenizer
  const ServerArgs& args;
  ServerMetrics* metrics = nullptr;  // told of each compilation; null: nobody is
  SamplingBudget* budget = nullptr;              // of the body; null: one grammar is compiled for it
};

// Reads the fields of `dialect` and sets params->grammar. Failures are in reader->status().
void read_grammar(const GrammarContext& context, FieldReader* reader, Dialect dialect, SamplingParams* params);

// A structural tag that this server wrote for the request's `field`.
Result<std::shared_ptr<const grammar::CompiledGrammar>> compile_structural_tag(const GrammarContext& context,
                                                                               const std::string& field,
                                                                               const Json& tag);

// Beside sampling_params they would be overlooked: refuses them there.
void refuse_misplaced_grammar(FieldReader* reader);

}  // namespace warpweave::server
