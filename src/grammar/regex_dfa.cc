// Expressions to automata over characters: Thompson's construction, then the subset construction (Rabin and Scott,
// 1959), within bounds on states, on the table and on the steps, all of which a short expression can make huge.
#include <algorithm>
#include <map>

#include "grammar/char_dfa.h"

namespace warpweave::grammar {
namespace {

struct Nfa {
  struct Edge {
    int set;  // index into sets; or one of those below, which read nothing or a mark
    int to;
  };
  static constexpr int kEmpty = -1, kBegin = -2, kEnd = -3, kBoundary = -4, kNoBoundary = -5;
  std::vector<std::vector<Edge>> edges;
  std::vector<CharSet> sets;
  bool has_boundaries = false;

  int add() {
    edges.emplace_back();
    return static_cast<int>(edges.size()) - 1;
  }
  void link(int from, int set, int to) { edges[from].push_back({set, to}); }
};

// Appends `regex` behind `from`; the state it ends in, or -1 when it grows too large.
int append(const Regex& regex, int from, size_t max_states, Nfa* nfa) {
  if (from < 0 || nfa->edges.size() > max_states) return -1;
  switch (regex.kind) {
    case Regex::Kind::begin:
    case Regex::Kind::end: {
      const int to = nfa->add();
      nfa->link(from, regex.kind == Regex::Kind::begin ? Nfa::kBegin : Nfa::kEnd, to);
      return to;
    }
    case Regex::Kind::boundary:
    case Regex::Kind::no_boundary: {
      const int to = nfa->add();
      nfa->link(from, regex.kind == Regex::Kind::boundary ? Nfa::kBoundary : Nfa::kNoBoundary, to);
      nfa->has_boundaries = true;
      return to;
    }
    case Regex::Kind::chars: {
      const int to = nfa->add();
      nfa->sets.push_back(regex.chars);
      nfa->link(from, static_cast<int>(nfa->sets.size()) - 1, to);
      return to;
    }
    case Regex::Kind::sequence:
      for (const Regex& part : regex.parts) from = append(part, from, max_states, nfa);
      return from;
    case Regex::Kind::choice: {
      const int to = nfa->add();
      for (const Regex& part : regex.parts) {
        const int begin = nfa->add();
        nfa->link(from, Nfa::kEmpty, begin);
        const int end = append(part, begin, max_states, nfa);
        if (end < 0) return -1;
        nfa->link(end, Nfa::kEmpty, to);
      }
      return to;
    }
    case Regex::Kind::repeat: break;
  }
  const Regex& part = regex.parts[0];
  for (int i = 0; i < regex.min && from >= 0; ++i) from = append(part, from, max_states, nfa);
  if (from < 0) return -1;
  const int to = nfa->add();
  if (regex.max == Regex::kNoLimit) {
    const int head = nfa->add();
    nfa->link(from, Nfa::kEmpty, head);
    const int end = append(part, head, max_states, nfa);
    if (end < 0) return -1;
    nfa->link(end, Nfa::kEmpty, head);
    nfa->link(head, Nfa::kEmpty, to);
    return to;
  }
  for (int i = regex.min; i < regex.max; ++i) {
    nfa->link(from, Nfa::kEmpty, to);
    from = append(part, from, max_states, nfa);
    if (from < 0) return -1;
  }
  nfa->link(from, Nfa::kEmpty, to);
  return to;
}

// States of the NFA times kWants, each with what the next character must be so that the boundaries on the way hold;
// where there are boundaries, in front also what the last character was: -1 - Word.
using StateSet = std::vector<int>;
enum Word { kNoWord, kWord, kUnsure };  // of a character; beside the ends of the text there is no word
enum Want { kAnything, kWantsWord, kWantsNoWord, kWants };

}  // namespace

// One automaton in the making.
class SubsetConstruction {
 public:
  SubsetConstruction(bool search, const GrammarLimits& limits, WorkBudget* budget)
      : search_(search), limits_(limits), budget_(budget) {}

  Result<CharDfa> run(const Regex& regex) {
    if (!read(regex)) return CharDfa::too_large(limits_);
    std::optional<CharPartition> partition = partition_chars(nfa_.sets, budget_);
    if (!partition) return CharDfa::too_much_work();
    dfa_.atoms_ = std::move(partition->atoms);
    atoms_of_set_ = std::move(partition->atoms_of_set);
    find_words();
    id_of(targets(closure({begin_ * kWants}, kUnsure), Nfa::kBegin), kNoWord);
    for (size_t state = 0; state < sets_.size(); ++state) {
      if (sets_.size() > limits_.max_dfa_states || sets_.size() * dfa_.atoms_.size() > limits_.max_dfa_cells) {
        return CharDfa::too_large(limits_);
      }
      if (!add_row(*sets_[state])) return CharDfa::too_much_work();
    }
    dfa_.trim();
    return std::move(dfa_);
  }

 private:
  // Over texts with a mark at each end, so that anchors are ordinary symbols: an expression that
  // does not read a mark itself has it, and anything next to it, read around it.
  bool read(const Regex& regex) {
    begin_ = nfa_.add();
    const int inside_begin = nfa_.add(), skipped = nfa_.add();
    nfa_.sets.push_back(CharSet::any());
    nfa_.link(begin_, Nfa::kEmpty, inside_begin);  // the expression reads the begin mark
    nfa_.link(begin_, Nfa::kBegin, skipped);
    if (search_) nfa_.link(skipped, 0, skipped);
    nfa_.link(skipped, Nfa::kEmpty, inside_begin);
    const int inside_end = append(regex, inside_begin, limits_.max_dfa_states * 4, &nfa_);
    if (inside_end < 0) return false;
    rest_ = nfa_.add();
    end_ = nfa_.add();
    nfa_.link(inside_end, Nfa::kEmpty, end_);  // it read the end mark
    nfa_.link(inside_end, Nfa::kEmpty, rest_);
    if (search_) nfa_.link(rest_, 0, rest_);
    nfa_.link(rest_, Nfa::kEnd, end_);
    seen_.assign(nfa_.edges.size() * kWants, 0);
    if (!nfa_.has_boundaries) return true;
    for (const char* kind : {"w", "W"}) {
      size_t at = 0;
      nfa_.sets.emplace_back();
      (void)parse_class_escape(kind, &at, &nfa_.sets.back());
    }
    return true;
  }

  // What kind of character each atom holds: the last two sets are \w and \W.
  void find_words() {
    words_.assign(dfa_.atoms_.size(), kUnsure);
    if (!nfa_.has_boundaries) return;
    for (const int atom : atoms_of_set_[nfa_.sets.size() - 2]) words_[atom] = kWord;
    for (const int atom : atoms_of_set_[nfa_.sets.size() - 1]) words_[atom] = kNoWord;
  }

  // What must follow for a boundary behind a `last` character; kWants: it cannot hold.
  static int want_of(int edge, Word last, int wanted) {
    if (edge == Nfa::kEmpty) return wanted;
    if (last == kUnsure || (edge != Nfa::kBoundary && edge != Nfa::kNoBoundary)) return kWants;
    const Want want = (last == kWord) == (edge == Nfa::kNoBoundary) ? kWantsWord : kWantsNoWord;
    return wanted == kAnything || wanted == want ? want : kWants;
  }

  // What `states` reach without reading; sorted.
  StateSet closure(StateSet states, Word last) {
    ++round_;
    StateSet out;
    while (!states.empty()) {
      const int state = states.back();
      states.pop_back();
      if (seen_[state] == round_) continue;
      seen_[state] = round_;
      out.push_back(state);
      for (const Nfa::Edge& edge : nfa_.edges[state / kWants]) {
        const int want = want_of(edge.set, last, state % kWants);
        if (want != kWants) states.push_back(edge.to * kWants + want);
      }
      if (!budget_->spend(1 + nfa_.edges[state / kWants].size())) break;
    }
    std::sort(out.begin(), out.end());
    return out;
  }

  // Over the mark of the text's begin or end, where no word is.
  StateSet targets(const StateSet& from, int mark) const {
    StateSet to;
    for (const int state : from) {
      if (state < 0 || state % kWants == kWantsWord) continue;
      for (const Nfa::Edge& edge : nfa_.edges[state / kWants]) {
        if (edge.set == mark) to.push_back(edge.to * kWants);
      }
    }
    return to;
  }

  int id_of(StateSet states, Word last) {
    states = closure(std::move(states), last);
    // Once the rest of the text does not matter, nothing else does.
    const bool done = search_ && std::binary_search(states.begin(), states.end(), rest_ * kWants);
    if (done) states = closure({rest_ * kWants}, kUnsure);
    if (nfa_.has_boundaries && !done) states.insert(states.begin(), -1 - last);
    const auto [at, fresh] = ids_.try_emplace(std::move(states), static_cast<int>(sets_.size()));
    if (fresh) sets_.push_back(&at->first);
    return at->second;
  }

  // False when the work is too much.
  bool add_row(const StateSet& states) {
    const StateSet ended = closure(targets(states, Nfa::kEnd), kUnsure);
    dfa_.accepting_.push_back(std::binary_search(ended.begin(), ended.end(), end_ * kWants));
    std::vector<StateSet> to(dfa_.atoms_.size());
    if (!budget_->spend(to.size())) return false;
    for (const int state : states) {
      if (state < 0) continue;
      const int want = state % kWants;
      for (const Nfa::Edge& edge : nfa_.edges[state / kWants]) {
        if (edge.set < 0) continue;
        if (!budget_->spend(1 + atoms_of_set_[edge.set].size())) return false;
        for (const int atom : atoms_of_set_[edge.set]) {
          if (want == kAnything || words_[atom] == (want == kWantsWord ? kWord : kNoWord))
            to[atom].push_back(edge.to * kWants);
        }
      }
    }
    std::map<std::pair<Word, StateSet>, int> same;  // atoms often lead to the same place
    for (size_t atom = 0; atom < to.size(); ++atom) {
      if (to[atom].empty()) {
        dfa_.next_.push_back(CharDfa::kDeadState);
        continue;
      }
      const auto [at, fresh] = same.try_emplace({words_[atom], to[atom]}, 0);
      if (fresh) at->second = id_of(std::move(to[atom]), words_[atom]);
      dfa_.next_.push_back(at->second);
    }
    return budget_->spend(1);
  }

  const bool search_;
  const GrammarLimits& limits_;
  WorkBudget* const budget_;
  Nfa nfa_;
  int begin_ = 0, rest_ = 0, end_ = 0;
  std::vector<std::vector<int>> atoms_of_set_;
  std::vector<Word> words_;     // by atom
  std::vector<uint32_t> seen_;  // by state of the NFA and want: the last round of closure() that met it
  uint32_t round_ = 0;
  CharDfa dfa_;
  std::map<StateSet, int> ids_;
  std::vector<const StateSet*> sets_;  // by state of dfa_; keys of ids_
};

Result<CharDfa> CharDfa::from_regex(const Regex& regex, bool search, const GrammarLimits& limits, WorkBudget* budget) {
  return SubsetConstruction(search, limits, budget).run(regex);
}

}  // namespace warpweave::grammar
