// A compiled grammar, and one text's way through it: which tokens may come next, and what has come.
//
// CompiledGrammar is immutable to its users and thread-safe; requests that ask for the same grammar
// share one, and with it every state and mask met so far. A GrammarMatcher belongs to one request
// and one thread at a time; copying it is a fork, and rollback() takes tokens back, so that
// speculation can mask every node of its tree. Source of the ideas: XGrammar (Dong et al. 2024,
// arXiv:2411.15100), llguidance's design notes, Outlines (Willard & Louf 2023, arXiv:2307.09702).
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/automaton.h"
#include "grammar/unique_watch.h"

namespace warpweave::grammar {

class CompiledGrammar {
 public:
  CompiledGrammar(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const Vocabulary> vocabulary,
                  const GrammarLimits& limits);

  const Vocabulary& vocabulary() const { return *vocabulary_; }
  const Grammar& grammar() const { return *grammar_; }
  // Of the grammar and of the states met so far.
  size_t memory_bytes() const;

 private:
  friend class GrammarMatcher;

  const std::shared_ptr<const Grammar> grammar_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const GrammarLimits limits_;
  const std::vector<int32_t> tokens_over_commas_;  // end an element and begin the next
  mutable std::mutex mutex_;
  mutable std::shared_ptr<Automaton> automaton_;   // replaced when it is full
};

class GrammarMatcher {
 public:
  static constexpr size_t kMaxRollbackTokens = 4096;

  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar);

  const CompiledGrammar& grammar() const { return *grammar_; }
  const std::shared_ptr<const CompiledGrammar>& grammar_ptr() const { return grammar_; }

  // Sets the bits of the tokens that may come next, clears all others. `mask` has
  // mask_words(vocabulary.size()) words. False when no token can follow (see failed()).
  bool fill_mask(std::span<uint32_t> mask);
  // False, and nothing changes, when the token may not come here.
  bool accept_token(int32_t id);
  // For text that was not sampled (a forced continuation): one step of rollback.
  bool accept_bytes(std::string_view bytes);
  // Takes back the last tokens; false (and nothing changes) when that many are not remembered.
  bool rollback(size_t tokens);

  // The bytes that must come next whatever is sampled; empty where there is a choice.
  std::string jump_forward(size_t max_bytes = 1024);
  bool can_end();              // the text may end here
  bool ended() const { return end_tokens_ > 0; }  // an end token was accepted: only further ones may follow
  // The limits were hit (GrammarLimits: above all the work that an ambiguous grammar makes of each token), or every way
  // on repeats what must not repeat; the request cannot go on.
  bool failed() const { return failed_; }
  size_t num_tokens() const { return num_tokens_; }

 private:
  struct Step {
    ConfigId config;
    uint32_t bytes;  // of the text before it
  };
  class Working;
  void refresh();
  void earn_work();  // for a token that came
  void remember_step();      // before a token
  bool advance(std::string_view bytes);
  void replay(size_t bytes);
  void forbid_repeats(std::span<uint32_t> mask);

  std::shared_ptr<const CompiledGrammar> grammar_;
  std::shared_ptr<Automaton> automaton_;
  ConfigId config_;
  std::vector<Step> steps_;  // before each of the last tokens
  size_t num_tokens_ = 0;
  size_t work_left_;         // steps of the automaton that this text may still take, see GrammarLimits
  size_t end_tokens_ = 0;    // the last ones
  bool failed_ = false;
  UniqueWatch watch_;
  std::string text_;         // kept only for grammars with unique arrays
};

}  // namespace warpweave::grammar
