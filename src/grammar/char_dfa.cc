#include "grammar/char_dfa.h"


#include <algorithm>
#include <deque>
#include <map>

#include "grammar/vocabulary.h"

namespace warpweave::grammar {
namespace {

constexpr int kPlainStateLimit = 0xFFFE;  // of a run that is counted

struct Nfa {
  struct Edge {
    int set;  // index into sets; -1: reads nothing, -2: the begin, -3: the end of the text
    int to;
  };
  static constexpr int kEmpty = -1, kBegin = -2, kEnd = -3;
  std::vector<std::vector<Edge>> edges;
  std::vector<CharSet> sets;

  int add() {
    edges.emplace_back();
    return static_cast<int>(edges.size()) - 1;
  }
  void link(int from, int set, int to) { edges[from].push_back({set, to}); }
};

Status too_large(const GrammarLimits& limits) {
  return Status::invalid_argument("the pattern needs more than " + std::to_string(limits.max_dfa_states) +
                                  " states; make it simpler, with smaller repetitions");
}

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
  for (int i = 0; i < regex.min; ++i) from = append(part, from, max_states, nfa);
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

using StateSet = std::vector<int>;

StateSet closure(const Nfa& nfa, StateSet states) {
  std::vector<bool> seen(nfa.edges.size(), false);
  StateSet out;
  while (!states.empty()) {
    const int s = states.back();
    states.pop_back();
    if (seen[s]) continue;
    seen[s] = true;
    out.push_back(s);
    for (const Nfa::Edge& e : nfa.edges[s]) {
      if (e.set == Nfa::kEmpty) states.push_back(e.to);
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

StateSet targets(const Nfa& nfa, const StateSet& from, int set) {
  StateSet to;
  for (const int s : from) {
    for (const Nfa::Edge& e : nfa.edges[s]) {
      if (e.set == set) to.push_back(e.to);
    }
  }
  return to;
}

}  // namespace

std::vector<CharSet> partition_chars(const std::vector<CharSet>& sets) {
  std::vector<CharSet> distinct = sets;
  std::sort(distinct.begin(), distinct.end(), [](const CharSet& a, const CharSet& b) {
    return std::lexicographical_compare(a.ranges().begin(), a.ranges().end(), b.ranges().begin(), b.ranges().end(),
                                        [](CharRange x, CharRange y) { return std::pair(x.first, x.last) < std::pair(y.first, y.last); });
  });
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  // Sweep over all range borders; characters in the same sets go together.
  std::map<uint32_t, std::vector<int>> changes{{0, {}}};
  for (size_t i = 0; i < distinct.size(); ++i) {
    for (const CharRange& r : distinct[i].ranges()) {
      changes[r.first].push_back(static_cast<int>(i));
      changes[r.last + 1].push_back(static_cast<int>(i));
    }
  }
  std::map<std::vector<bool>, CharSet> groups;
  std::vector<bool> inside(distinct.size(), false);
  for (auto at = changes.begin(); at != changes.end(); ++at) {
    for (const int set : at->second) inside[set] = !inside[set];
    const auto next = std::next(at);
    const uint32_t last = next == changes.end() ? kMaxChar : next->first - 1;
    if (at->first <= kMaxChar) groups[inside].add(at->first, std::min(last, kMaxChar));
  }
  std::vector<CharSet> atoms;
  for (auto& [key, set] : groups) {
    if (!set.empty()) atoms.push_back(std::move(set));
  }
  return atoms;
}

CharDfa CharDfa::any_text() {
  CharDfa dfa;
  dfa.atoms_ = {CharSet::any()};
  dfa.next_ = {0};
  dfa.accepting_ = {true};
  return dfa;
}

CharDfa CharDfa::length_between(int64_t min, int64_t max) {
  CharDfa dfa;
  dfa.atoms_ = {CharSet::any()};
  const int64_t states = (max < 0 ? min : max) + 1;
  for (int64_t i = 0; i < states; ++i) {
    const bool last = i + 1 == states;
    dfa.next_.push_back(static_cast<int>(!last ? i + 1 : max < 0 ? i : kDeadState));
    dfa.accepting_.push_back(i >= min);
  }
  return dfa;
}

CharDfa CharDfa::literals(const std::vector<std::string>& texts) {
  std::vector<std::map<uint32_t, int>> trie(1);
  std::vector<bool> accepting(1, false);
  std::vector<CharSet> sets;
  for (const std::string& text : texts) {
    int state = 0;
    uint32_t c = 0;
    for (size_t at = 0; next_utf8(text, &at, &c);) {
      const auto [edge, fresh] = trie[state].try_emplace(c, static_cast<int>(trie.size()));
      state = edge->second;
      if (fresh) {
        trie.emplace_back();
        accepting.push_back(false);
        sets.push_back(CharSet::of(c, c));
      }
    }
    accepting[state] = true;
  }
  CharDfa dfa;
  dfa.atoms_ = partition_chars(sets);
  dfa.accepting_ = std::move(accepting);
  dfa.next_.assign(trie.size() * dfa.atoms_.size(), kDeadState);
  std::map<uint32_t, size_t> atom_of;
  for (size_t a = 0; a < dfa.atoms_.size(); ++a) {
    if (const CharRange& r = dfa.atoms_[a].ranges()[0]; r.first == r.last) atom_of[r.first] = a;
  }
  for (size_t s = 0; s < trie.size(); ++s) {
    for (const auto& [c, to] : trie[s]) dfa.next_[s * dfa.atoms_.size() + atom_of.at(c)] = to;
  }
  return dfa;
}

Result<CharDfa> CharDfa::from_regex(const Regex& regex, bool search, const GrammarLimits& limits) {
  // Over texts with a mark at each end, so that anchors are ordinary symbols: an expression that
  // does not read a mark itself has it, and anything next to it, read around it.
  Nfa nfa;
  const int begin = nfa.add(), inside_begin = nfa.add();
  const size_t max_nfa = limits.max_dfa_states * 4;
  nfa.sets.push_back(CharSet::any());
  nfa.link(begin, Nfa::kEmpty, inside_begin);  // the expression reads the begin mark
  const int skipped = nfa.add();
  nfa.link(begin, Nfa::kBegin, skipped);
  if (search) nfa.link(skipped, 0, skipped);
  nfa.link(skipped, Nfa::kEmpty, inside_begin);
  const int inside_end = append(regex, inside_begin, max_nfa, &nfa);
  if (inside_end < 0) return too_large(limits);
  const int rest = nfa.add(), end = nfa.add();
  nfa.link(inside_end, Nfa::kEmpty, end);      // it read the end mark
  nfa.link(inside_end, Nfa::kEmpty, rest);
  if (search) nfa.link(rest, 0, rest);
  nfa.link(rest, Nfa::kEnd, end);

  CharDfa dfa;
  dfa.atoms_ = partition_chars(nfa.sets);
  std::vector<std::vector<size_t>> atoms_of_set(nfa.sets.size());
  for (size_t set = 0; set < nfa.sets.size(); ++set) {
    for (size_t a = 0; a < dfa.atoms_.size(); ++a) {
      if (nfa.sets[set].contains(dfa.atoms_[a].ranges()[0].first)) atoms_of_set[set].push_back(a);
    }
  }
  Deadline deadline(limits.max_compile_time);
  std::map<StateSet, int> ids;
  std::vector<StateSet> sets;
  const auto id_of = [&](StateSet states) {
    states = closure(nfa, std::move(states));
    // Once the rest of the text does not matter, nothing else does.
    if (search && std::binary_search(states.begin(), states.end(), rest)) states = closure(nfa, {rest});
    const auto [at, fresh] = ids.try_emplace(std::move(states), static_cast<int>(sets.size()));
    if (fresh) sets.push_back(at->first);
    return at->second;
  };
  id_of(targets(nfa, closure(nfa, {begin}), Nfa::kBegin));
  for (size_t s = 0; s < sets.size(); ++s) {
    if (sets.size() > limits.max_dfa_states || deadline.passed()) return too_large(limits);
    const StateSet states = sets[s];
    const StateSet ended = closure(nfa, targets(nfa, states, Nfa::kEnd));
    dfa.accepting_.push_back(std::binary_search(ended.begin(), ended.end(), end));
    std::vector<StateSet> to(dfa.atoms_.size());
    for (const int state : states) {
      for (const Nfa::Edge& e : nfa.edges[state]) {
        if (e.set < 0) continue;
        for (const size_t a : atoms_of_set[e.set]) to[a].push_back(e.to);
      }
    }
    std::map<StateSet, int> same;  // atoms often lead to the same place
    for (StateSet& target : to) {
      if (target.empty()) {
        dfa.next_.push_back(kDeadState);
        continue;
      }
      const auto [at, fresh] = same.try_emplace(target, 0);
      if (fresh) at->second = id_of(std::move(target));
      dfa.next_.push_back(at->second);
    }
  }
  dfa.trim();
  return dfa;
}

// The start state stays even when nothing can be matched.
void CharDfa::trim() {
  const size_t atoms = atoms_.size();
  std::vector<bool> live = accepting_;
  std::vector<std::vector<int>> back(accepting_.size());
  std::deque<int> work;
  for (int s = 0; s < num_states(); ++s) {
    if (live[s]) work.push_back(s);
    for (size_t a = 0; a < atoms; ++a) {
      if (const int to = next(s, a); to >= 0) back[to].push_back(s);
    }
  }
  while (!work.empty()) {
    const int s = work.front();
    work.pop_front();
    for (const int from : back[s]) {
      if (!live[from]) live[from] = true, work.push_back(from);
    }
  }
  live[0] = true;
  std::vector<int> renumbered(live.size(), kDeadState);
  int count = 0;
  for (size_t s = 0; s < live.size(); ++s) {
    if (live[s]) renumbered[s] = count++;
  }
  CharDfa kept;
  kept.atoms_ = atoms_;
  for (int s = 0; s < num_states(); ++s) {
    if (!live[s]) continue;
    kept.accepting_.push_back(accepting_[s]);
    for (size_t a = 0; a < atoms; ++a) {
      const int to = next(s, a);
      kept.next_.push_back(to < 0 ? kDeadState : renumbered[to]);
    }
  }
  *this = std::move(kept);
}

Result<CharDfa> CharDfa::intersect(const CharDfa& other, const GrammarLimits& limits) const {
  CharDfa dfa;
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t a = 0; a < atoms_.size(); ++a) {
    for (size_t b = 0; b < other.atoms_.size(); ++b) {
      CharSet both = atoms_[a].intersect(other.atoms_[b]);
      if (both.empty()) continue;
      dfa.atoms_.push_back(std::move(both));
      pairs.emplace_back(a, b);
    }
  }
  std::map<std::pair<int, int>, int> ids{{{0, 0}, 0}};
  std::vector<std::pair<int, int>> states{{0, 0}};
  for (size_t s = 0; s < states.size(); ++s) {
    if (states.size() > limits.max_dfa_states) return too_large(limits);
    const auto [x, y] = states[s];
    dfa.accepting_.push_back(accepting_[x] && other.accepting_[y]);
    for (const auto& [a, b] : pairs) {
      const int to_x = next(x, a), to_y = other.next(y, b);
      if (to_x < 0 || to_y < 0) {
        dfa.next_.push_back(kDeadState);
        continue;
      }
      const auto [at, fresh] = ids.try_emplace({to_x, to_y}, static_cast<int>(states.size()));
      if (fresh) states.emplace_back(to_x, to_y);
      dfa.next_.push_back(at->second);
    }
  }
  dfa.trim();
  return dfa;
}

CharDfa CharDfa::complement() const {
  CharDfa dfa = *this;
  const int sink = num_states();
  for (int& to : dfa.next_) {
    if (to < 0) to = sink;
  }
  dfa.next_.insert(dfa.next_.end(), atoms_.size(), sink);
  for (size_t s = 0; s < accepting_.size(); ++s) dfa.accepting_[s] = !accepting_[s];
  dfa.accepting_.push_back(true);
  dfa.trim();
  return dfa;
}

bool CharDfa::empty() const { return num_states() == 1 && !accepting_[0]; }

int CharDfa::advance(int state, std::string_view text) const {
  uint32_t c = 0;
  for (size_t at = 0; at < text.size() && state >= 0;) {
    if (!next_utf8(text, &at, &c)) return kDeadState;
    size_t atom = 0;
    while (atom < atoms_.size() && !atoms_[atom].contains(c)) ++atom;
    state = atom == atoms_.size() ? kDeadState : next(state, atom);
  }
  return state;
}

bool CharDfa::matches(std::string_view text) const {
  const int state = advance(start(), text);
  return state >= 0 && accepting_[state];
}

bool CharDfa::within_lengths(int64_t min, int64_t max) const {
  // All states reached by texts of n characters, n after n; more steps than states mean a cycle.
  std::vector<bool> now(accepting_.size(), false);
  now[0] = true;
  for (int64_t n = 0; n <= num_states(); ++n) {
    std::vector<bool> then(accepting_.size(), false);
    bool any = false;
    for (int s = 0; s < num_states(); ++s) {
      if (!now[s]) continue;
      if (accepting_[s] && (n < min || (max >= 0 && n > max))) return false;
      for (size_t a = 0; a < atoms_.size(); ++a) {
        if (const int to = next(s, a); to >= 0) any = then[to] = true;
      }
    }
    if (!any) return true;
    if (n >= min && max < 0) return true;
    now = std::move(then);
  }
  return false;
}

std::vector<std::string> CharDfa::texts(size_t max_texts) const {
  std::vector<std::string> out;
  std::deque<std::pair<int, std::string>> work{{0, ""}};
  size_t steps = 0;
  while (!work.empty()) {
    const auto [state, text] = std::move(work.front());
    work.pop_front();
    if (accepting_[state]) out.push_back(text);
    if (out.size() > max_texts || ++steps > 64 * (max_texts + 1) || work.size() > 64 * (max_texts + 1)) return {};
    for (size_t a = 0; a < atoms_.size(); ++a) {
      const int to = next(state, a);
      if (to < 0) continue;
      for (const CharRange& r : atoms_[a].ranges()) {
        if (r.last - r.first >= max_texts) return {};
        for (uint32_t c = r.first; c <= r.last; ++c) {
          work.emplace_back(to, text);
          append_utf8(c, &work.back().second);
        }
      }
    }
  }
  return out;
}

std::string CharDfa::content() const {
  std::string out;
  const auto put = [&](int64_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); };
  for (const CharSet& atom : atoms_) {
    put(static_cast<int64_t>(atom.ranges().size()));
    for (const CharRange& r : atom.ranges()) put(r.first), put(r.last);
  }
  for (const int to : next_) put(to);
  for (const bool accepting : accepting_) out += accepting ? '1' : '0';
  return out;
}

std::vector<CharDfa::Move> CharDfa::moves(int state) const {
  std::map<int, CharSet> by_target;
  for (size_t a = 0; a < atoms_.size(); ++a) {
    if (const int to = next(state, a); to >= 0) by_target[to].add(atoms_[a]);
  }
  std::vector<Move> out;
  for (auto& [to, chars] : by_target) out.push_back({std::move(chars), to});
  return out;
}

std::vector<PlainRun> CharDfa::plain_runs() const {
  const CharSet& plain = Vocabulary::plain_chars();
  const size_t atoms = atoms_.size();
  std::vector<size_t> plain_atoms;
  for (size_t a = 0; a < atoms; ++a) {
    if (!atoms_[a].intersect(plain).empty()) plain_atoms.push_back(a);
  }
  const int states = num_states();
  std::vector<PlainRun> runs(states, PlainRun{PlainRun::kUnbounded, 0, false});
  std::vector<std::vector<int>> back(states);
  std::vector<int> ways(states, 0);
  std::deque<int> broken;
  for (int s = 0; s < states; ++s) {
    for (const size_t a : plain_atoms) {
      const int to = next(s, a);
      if (to < 0) {
        if (runs[s].least != 0) runs[s].least = 0, broken.push_back(s);
      } else {
        back[to].push_back(s);
        ++ways[s];
      }
    }
  }
  std::deque<int> ended;
  for (int s = 0; s < states; ++s) {
    if (ways[s] == 0) ended.push_back(s);
  }
  while (!broken.empty()) {  // breadth first: the nearest state that breaks a run
    const int s = broken.front();
    broken.pop_front();
    for (const int from : back[s]) {
      if (runs[from].least != PlainRun::kUnbounded) continue;
      runs[from].least = static_cast<uint16_t>(std::min<int>(runs[s].least + 1, kPlainStateLimit));
      broken.push_back(from);
    }
  }
  std::vector<bool> done(states, false);
  while (!ended.empty()) {  // backwards from where all runs have ended; what is left has a cycle
    const int s = ended.front();
    ended.pop_front();
    done[s] = true;
    for (const int from : back[s]) {
      runs[from].most = static_cast<uint16_t>(std::max<int>(runs[from].most, std::min<int>(runs[s].most + 1, kPlainStateLimit)));
      if (--ways[from] == 0) ended.push_back(from);
    }
  }
  for (int s = 0; s < states; ++s) {
    if (!done[s]) runs[s].most = PlainRun::kUnbounded;
  }
  return runs;
}

}  // namespace warpweave::grammar
