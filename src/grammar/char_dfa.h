// Deterministic automata over characters: what patterns, lengths and excluded names are before they
// are written into a grammar, because they can be intersected and complemented. Values.
#pragma once

#include <string>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/grammar.h"
#include "grammar/regex_syntax.h"

namespace warpweave::grammar {

class CharDfa {
 public:
  static constexpr int kDeadState = -1;

  static CharDfa any_text();
  static CharDfa literals(const std::vector<std::string>& texts);
  static CharDfa length_between(int64_t min, int64_t max);  // max < 0: no limit
  // `search`: the expression may match anywhere in the text, as in JSON schemas; else all of it.
  static Result<CharDfa> from_regex(const Regex& regex, bool search, const GrammarLimits& limits);

  Result<CharDfa> intersect(const CharDfa& other, const GrammarLimits& limits) const;
  CharDfa complement() const;
  bool empty() const;                        // no text
  bool matches(std::string_view text) const; // UTF-8
  // Whether every text has `min` to `max` characters.
  bool within_lengths(int64_t min, int64_t max) const;
  // The texts, shortest state paths first, when there are at most `max_texts`; else nothing.
  std::vector<std::string> texts(size_t max_texts) const;

  // All of it as bytes: equal for equal automata.
  std::string content() const;

  int num_states() const { return static_cast<int>(accepting_.size()); }
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
  int next(int state, size_t atom) const { return next_[state * atoms_.size() + atom]; }
  void trim();  // keeps the states from which an accepting one can be reached

  std::vector<CharSet> atoms_;   // a partition of all characters
  std::vector<int> next_;        // [state][atom]
  std::vector<bool> accepting_;
};

// `atoms`: the coarsest partition in which each of `sets` is a union.
std::vector<CharSet> partition_chars(const std::vector<CharSet>& sets);

}  // namespace warpweave::grammar
