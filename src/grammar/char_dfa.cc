#include "grammar/char_dfa.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "grammar/vocabulary.h"

namespace warpweave::grammar {
namespace {

constexpr size_t kMaxLengthWork = size_t{1} << 24;  // steps of within_lengths()
constexpr int kPlainStateLimit = 0xFFFE;  // of a run that is counted

}  // namespace

Status CharDfa::too_large(const GrammarLimits& limits) {
  return Status::invalid_argument(
      fmt::format("the pattern needs more than {} states, or more than {} cells in its table (states times classes "
                  "of characters); make it simpler, with fewer different characters or smaller repetitions",
                  limits.max_dfa_states, limits.max_dfa_cells));
}

Status CharDfa::too_much_work() {
  return Status::invalid_argument(
      "the patterns take too many steps to compile; make them simpler, with fewer different characters or smaller "
      "repetitions");
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

Result<CharDfa> CharDfa::literals(const std::vector<std::string>& texts, const GrammarLimits& limits,
                                  WorkBudget* budget) {
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
  std::optional<CharPartition> partition = partition_chars(sets, budget);
  if (!partition) return too_much_work();
  const size_t cells = trie.size() * partition->atoms.size();
  if (cells > limits.max_dfa_cells) return too_large(limits);
  if (!budget->spend(cells)) return too_much_work();
  CharDfa dfa;
  dfa.atoms_ = std::move(partition->atoms);
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

Result<CharDfa> CharDfa::intersect(const CharDfa& other, const GrammarLimits& limits, WorkBudget* budget) const {
  if (!budget->spend(4 * atoms_.size() * other.atoms_.size())) return too_much_work();
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
    if (states.size() > limits.max_dfa_states || states.size() * pairs.size() > limits.max_dfa_cells)
      return too_large(limits);
    if (!budget->spend(8 * pairs.size())) return too_much_work();
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
  WorkBudget budget(kMaxLengthWork);
  // All states reached by texts of n characters, n after n; more steps than states mean a cycle.
  std::vector<bool> now(accepting_.size(), false);
  now[0] = true;
  for (int64_t n = 0; n <= num_states(); ++n) {
    std::vector<bool> then(accepting_.size(), false);
    bool any = false;
    for (int s = 0; s < num_states(); ++s) {
      if (!now[s]) continue;
      if (accepting_[s] && (n < min || (max >= 0 && n > max))) return false;
      if (!budget.spend(atoms_.size())) return false;
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
      runs[from].most =
          static_cast<uint16_t>(std::max<int>(runs[from].most, std::min<int>(runs[s].most + 1, kPlainStateLimit)));
      if (--ways[from] == 0) ended.push_back(from);
    }
  }
  for (int s = 0; s < states; ++s) {
    if (!done[s]) runs[s].most = PlainRun::kUnbounded;
  }
  return runs;
}

}  // namespace warpweave::grammar
