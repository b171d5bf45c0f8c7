// A context-free grammar over bytes: rules, each an automaton whose edges read a byte, read nothing,
// or call a rule. GrammarBuilder makes it; it does not change afterwards.
//
// A regular expression is one rule; a JSON schema is one rule per object, array and $ref. finish()
// removes what can never lead to an end, so that matching never walks into a dead end, and orders
// the rules so that all callers of a rule are known before it is entered (see automaton.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/char_set.h"
#include "grammar/limits.h"
#include "warpweave/status.h"

namespace warpweave::grammar {

using StateId = uint32_t;
using RuleId = uint32_t;

struct ByteEdge {
  uint8_t first;
  uint8_t last;
  StateId to;
};

struct CallEdge {
  RuleId rule;
  StateId to;  // where matching goes on after the rule
};

// Plain characters are those a JSON string holds as they are (see vocabulary.h). From a state with
// a run of [least, most], every text of up to `least` of them goes on, and none of more than `most`.
// Alike: texts of as many characters lead to the same place.
struct PlainRun {
  uint16_t least = 0;
  uint16_t most = kUnbounded;
  bool alike = false;
  static constexpr uint16_t kUnbounded = 0xFFFF;
};

// An array whose elements must differ: its elements as JSON texts, when they are few, else none.
struct UniqueElements {
  std::vector<std::string> all;
};

class Grammar {
 public:
  struct State {
    uint32_t bytes_begin, empties_begin, calls_begin;  // the ends are the next state's begins
    PlainRun plain;
    int32_t unique = -1;         // index of the unique array that opened right before this state
    bool accepting = false;
    bool only_accepting = false; // accepting and nothing leads on
    bool inside = false;         // a call that returns here is made inside one more pair of brackets
    uint16_t min_level = 0;      // a byte leads here only inside so many pairs of brackets
  };
  struct Rule {
    StateId start;
    uint32_t order;              // callers at the same place come first
    bool nullable;
    bool left_recursive;
  };

  size_t num_states() const { return states_.size() - 1; }
  size_t num_rules() const { return rules_.size(); }
  const State& state(StateId s) const { return states_[s]; }
  const Rule& rule(RuleId r) const { return rules_[r]; }
  RuleId rule_at(uint32_t order) const { return order_[order]; }
  RuleId root() const { return root_; }
  // Rules of one group call each other at their left edge; most groups are of one rule.
  uint32_t group_end(uint32_t order) const { return group_end_[order]; }
  const std::vector<UniqueElements>& uniques() const { return uniques_; }

  const ByteEdge* bytes_begin(StateId s) const { return bytes_.data() + states_[s].bytes_begin; }
  const ByteEdge* bytes_end(StateId s) const { return bytes_.data() + states_[s + 1].bytes_begin; }
  const StateId* empties_begin(StateId s) const { return empties_.data() + states_[s].empties_begin; }
  const StateId* empties_end(StateId s) const { return empties_.data() + states_[s + 1].empties_begin; }
  const CallEdge* calls_begin(StateId s) const { return calls_.data() + states_[s].calls_begin; }
  const CallEdge* calls_end(StateId s) const { return calls_.data() + states_[s + 1].calls_begin; }

  // Bytes that no edge tells apart share a class.
  const uint8_t* byte_classes() const { return byte_classes_; }
  int num_byte_classes() const { return num_byte_classes_; }
  size_t memory_bytes() const;

 private:
  friend class GrammarBuilder;
  std::vector<State> states_;  // and one past the end
  std::vector<Rule> rules_;
  std::vector<ByteEdge> bytes_;
  std::vector<StateId> empties_;
  std::vector<CallEdge> calls_;
  std::vector<RuleId> order_;
  std::vector<uint32_t> group_end_;
  std::vector<UniqueElements> uniques_;
  uint8_t byte_classes_[256] = {};
  int num_byte_classes_ = 1;
  RuleId root_ = 0;
};

// Rules are built state by state: every emit_* reads from a state and returns where it ends. A
// failure (too many states, out of time) is kept; finish() returns it. Not thread-safe.
class GrammarBuilder {
 public:
  explicit GrammarBuilder(const GrammarLimits& limits);

  const GrammarLimits& limits() const { return limits_; }
  RuleId add_rule();
  RuleId add_grammar(const Grammar& grammar);  // its rules; the one that is its root
  StateId start(RuleId rule) const { return rule_starts_[rule]; }
  StateId add_state();
  void add_byte(StateId from, uint8_t first, uint8_t last, StateId to);
  void add_empty(StateId from, StateId to);
  void add_call(StateId from, RuleId rule, StateId to);
  void set_accepting(StateId state);
  void set_plain_run(StateId state, PlainRun run) { plain_[state] = run; }
  void set_unique(StateId state, UniqueElements elements);
  void set_inside(StateId state) { inside_[state] = true; }
  void set_min_level(StateId state, uint16_t level) { min_level_[state] = level; }

  StateId emit_text(StateId from, std::string_view bytes);
  StateId emit_chars(StateId from, const CharSet& set);
  void emit_chars_to(StateId from, const CharSet& set, StateId to);
  StateId emit_call(StateId from, RuleId rule);
  // A rule's end: whatever reaches `state` completes the rule.
  void end_rule(StateId state) { set_accepting(state); }

  void fail(Status status);
  bool failed() const { return !status_.ok(); }
  const Status& status() const { return status_; }
  size_t num_states() const { return accepting_.size(); }
  // False (and failed) when the limits are passed; loops ask it.
  bool within_limits();
  ThreadDeadline* deadline() { return &deadline_; }

  Result<std::shared_ptr<const Grammar>> finish(RuleId root);

 private:
  struct From {
    StateId from;
  };
  struct BuildByte : From { ByteEdge edge; };
  struct BuildEmpty : From { StateId to; };
  struct BuildCall : From { CallEdge edge; };

  void skip_single_empties();
  bool drop_dead_ends(RuleId root);
  void lay_out(Grammar* out) const;
  void find_nullable(Grammar* out) const;
  void order_rules(Grammar* out) const;
  void find_byte_classes(Grammar* out) const;

  GrammarLimits limits_;
  ThreadDeadline deadline_;
  Status status_;
  std::vector<StateId> rule_starts_;
  std::vector<bool> accepting_;
  std::vector<PlainRun> plain_;
  std::vector<int32_t> unique_;
  std::vector<bool> inside_;
  std::vector<uint16_t> min_level_;
  std::vector<UniqueElements> uniques_;
  std::vector<BuildByte> bytes_;
  std::vector<BuildEmpty> empties_;
  std::vector<BuildCall> calls_;
  std::map<std::pair<StateId, uint64_t>, StateId> tails_;  // of characters' bytes, by where they end
};

}  // namespace warpweave::grammar
