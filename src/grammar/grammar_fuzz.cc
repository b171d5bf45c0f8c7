// Any bytes as a schema, an expression, a grammar, choices or a structural tag: an error or a grammar
// whose masks can be followed. The first byte picks the kind.
#include <cstdlib>

#include "grammar/testing/grammar_texts.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace warpweave::grammar;
  if (size == 0) return 0;
  static const auto vocabulary = testing::small_vocabulary();
  GrammarLimits limits;
  limits.max_states = 20'000;
  limits.max_dfa_states = 500;
  limits.max_automaton_bytes = 1 << 20;
  limits.max_compile_time = std::chrono::milliseconds(200);
  const GrammarSpec spec{static_cast<GrammarSpec::Kind>(data[0] % 6),
                         std::string(reinterpret_cast<const char*>(data + 1), size - 1),
                         {.any_whitespace = (data[0] & 64) != 0}};
  const auto grammar = compile_grammar(spec, limits);
  if (!grammar.ok()) return 0;
  GrammarMatcher matcher(std::make_shared<const CompiledGrammar>(*grammar, vocabulary, limits));
  MaskWords mask(mask_words(vocabulary->size()));
  for (int step = 0; step < 8 && matcher.fill_mask(mask) && !matcher.ended(); ++step) {
    int32_t id = static_cast<int32_t>(data[step % size]);
    while ((mask[id >> 5] >> (id & 31) & 1) == 0) id = (id + 1) % static_cast<int32_t>(vocabulary->size());
    if (!matcher.accept_token(id)) std::abort();  // a token of the mask must be taken
  }
  return 0;
}
