// What one grammar may cost. Everything a request can make large is bounded here; a bound that is
// hit is an error of the request, never a slow or dead server.
#pragma once

#include <chrono>
#include <cstddef>

#include "base/thread_deadline.h"

namespace warpweave::grammar {

struct GrammarLimits {
  size_t max_source_bytes = size_t{2} << 20;     // of a schema, regex or grammar text
  size_t max_states = size_t{1} << 20;           // of the compiled grammar
  size_t max_edges = size_t{1} << 22;
  size_t max_rules = size_t{1} << 16;
  size_t max_dfa_states = 20'000;                // of one pattern after intersection with others
  size_t max_dfa_cells = size_t{1} << 24;        // of one pattern's table: states x classes of characters
  size_t max_dfa_work = size_t{1} << 27;         // steps to make all patterns' automata, see WorkBudget
  size_t max_schema_work = size_t{1} << 28;  // steps to combine a schema's alternatives; many ways may take an eighth
  size_t max_lossy_alternatives = 64;  // of a schema with not, or with oneOf whose parts overlap: ways that are kept
  int max_nesting = 256;                         // of parentheses, schemas inside schemas
  int max_depth = 512;                           // of open rules while text is matched
  size_t max_ambiguity = 4096;                   // parses of one text that are kept side by side
  size_t max_automaton_bytes = size_t{48} << 20; // of the states met while matching, per grammar
  size_t first_match_work = size_t{1} << 26;     // steps that a text may take to match, and that it keeps at most,
  size_t match_work_per_token = size_t{1} << 20; // and what each of its tokens adds to them
  std::chrono::milliseconds max_compile_time{
      2000};  // of the compiling thread on a processor: of a schema, for each of two tries
  ThreadClock clock = thread_time;               // what that time is measured by
};

// Steps of a few nanoseconds that some work may still take: a bound that, unlike time, is hit by the same input on
// every machine.
class WorkBudget {
 public:
  explicit WorkBudget(size_t steps) : left_(steps) {}
  // False once more was asked for than there was.
  bool spend(size_t steps) {
    left_ = steps > left_ ? 0 : left_ - steps;
    return left_ > 0;
  }
  size_t left() const { return left_; }

 private:
  size_t left_;
};

// The time of a compilation, asked for in its inner loops.
inline ThreadDeadline compile_deadline(const GrammarLimits& limits) {
  return {limits.max_compile_time, 256, limits.clock};
}

}  // namespace warpweave::grammar
