// Deterministic automata over characters: what patterns, lengths and excluded names are before they
// are written into a grammar, because they can be intersected and complemented. Values.
// Making one fails with invalid_argument, naming the bound, past max_dfa_states or max_dfa_cells, or when `budget`,
// which all automata of one grammar share, is spent.
#pragma once

#include <string>
#include <vector>

#include "grammar/char_partition.h"
#include "grammar/grammar.h"
#include "grammar/regex_syntax.h"

namespace warpweave::grammar {

class CharDfa {
 public:
  static constexpr int kDeadState = -1;

  static CharDfa any_text();
  static Result<CharDfa> literals(const std::vector<std::string>& texts, const GrammarLimits& limits,
                                  WorkBudget* budget);
  static CharDfa length_between(int64_t min, int64_t max);  // max < 0: no limit
  // `search`: the expression may match anywhere in the text, as in JSON schemas; else all of it.
  static Result<CharDfa> from_regex(const Regex& regex, bool search, const GrammarLimits& limits, WorkBudget* budget);

  Result<CharDfa> intersect(const CharDfa& other, const GrammarLimits& limits, WorkBudget* budget) const;
  CharDfa complement() const;
  bool empty() const;                        // no text
  bool matches(std::string_view text) const; // UTF-8
  // Whether every text has `min` to `max` characters; false too where that takes long to say.
  bool within_lengths(int64_t min, int64_t max) const;
  // The texts, shortest state paths first, when there are at most `max_texts`; else nothing.
  std::vector<std::string> texts(size_t max_texts) const;

  // All of it as bytes: equal for equal automata.
  std::string content() const;

  int num_states() const { return static_cast<int>(accepting_.size()); }
  size_t num_cells() const { return next_.size(); }  // of the table: states x classes of characters
  int start() const { return 0; }
  bool accepting(int state) const { return accepting_[state]; }
  // Where `text`, UTF-8, leads from `state`; kDeadState when no accepted text goes on like that.
  int advance(int state, std::string_view text) const;
  struct Move {
    CharSet chars;
    int to;
  };
  std::vector<Move> moves(int state) const;  // by target, disjoint
  // By state: how long plain characters are sure to go on, and how long they can (see PlainRun).
  std::vector<PlainRun> plain_runs() const;

 private:
  friend class SubsetConstruction;  // of from_regex()

  int next(int state, size_t atom) const { return next_[state * atoms_.size() + atom]; }
  static Status too_large(const GrammarLimits& limits);
  static Status too_much_work();
  void trim();  // keeps the states from which an accepting one can be reached

  std::vector<CharSet> atoms_;   // a partition of all characters
  std::vector<int> next_;        // [state][atom]
  std::vector<bool> accepting_;
};

}  // namespace warpweave::grammar
