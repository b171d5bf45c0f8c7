#include <algorithm>

#include "grammar/grammar.h"

namespace warpweave::grammar {
namespace {

// Edges by the state they start from, as offsets: counting sort.
template <typename Edge>
std::vector<uint32_t> offsets_by_from(const std::vector<Edge>& edges, size_t states) {
  std::vector<uint32_t> offsets(states + 1, 0);
  for (const Edge& edge : edges) ++offsets[edge.from + 1];
  for (size_t i = 0; i < states; ++i) offsets[i + 1] += offsets[i];
  return offsets;
}

bool reads_plain(const std::vector<ByteEdge>& edges, uint32_t begin, uint32_t end) {
  for (uint32_t i = begin; i < end; ++i) {
    for (int b = edges[i].first; b <= edges[i].last; ++b) {
      if (b >= 0x20 && b != '"' && b != '\\' && b != 0x7F) return true;
    }
  }
  return false;
}

}  // namespace

GrammarBuilder::GrammarBuilder(const GrammarLimits& limits)
    : limits_(limits), deadline_(compile_deadline(limits)) {}

void GrammarBuilder::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

bool GrammarBuilder::within_limits() {
  if (!status_.ok()) return false;
  if (accepting_.size() > limits_.max_states || rule_starts_.size() > limits_.max_rules ||
      bytes_.size() + empties_.size() + calls_.size() > limits_.max_edges) {
    fail(Status::invalid_argument("the grammar needs more than " + std::to_string(limits_.max_states) +
                                  " states; make it smaller, with fewer or shorter repetitions"));
  } else if (deadline_.passed()) {
    fail(Status::invalid_argument("the grammar takes more than " +
                                  std::to_string(limits_.max_compile_time.count()) +
                                  " ms to compile; make it smaller"));
  }
  return status_.ok();
}

RuleId GrammarBuilder::add_rule() {
  rule_starts_.push_back(add_state());
  return static_cast<RuleId>(rule_starts_.size() - 1);
}

// Past the limits everything lands in one state, so that a runaway loop costs no memory.
StateId GrammarBuilder::add_state() {
  if (!within_limits() && !accepting_.empty()) return 0;
  accepting_.push_back(false);
  plain_.push_back({});
  unique_.push_back(-1);
  inside_.push_back(false);
  min_level_.push_back(0);
  return static_cast<StateId>(accepting_.size() - 1);
}

RuleId GrammarBuilder::add_grammar(const Grammar& grammar) {
  const auto first_state = static_cast<StateId>(num_states());
  const auto first_rule = static_cast<RuleId>(rule_starts_.size());
  if (grammar.num_states() > limits_.max_states - std::min<size_t>(first_state, limits_.max_states)) {
    fail(Status::invalid_argument("the grammar needs more than " + std::to_string(limits_.max_states) + " states"));
    return add_rule();
  }
  for (StateId s = 0; s < grammar.num_states(); ++s) {
    const StateId own = add_state();
    const Grammar::State& state = grammar.state(s);
    accepting_[own] = state.accepting;
    plain_[own] = state.plain;
    if (state.unique >= 0) set_unique(own, grammar.uniques()[state.unique]);
    inside_[own] = state.inside;
    min_level_[own] = state.min_level;
    for (auto e = grammar.bytes_begin(s); e != grammar.bytes_end(s); ++e)
      add_byte(own, e->first, e->last, first_state + e->to);
    for (auto e = grammar.empties_begin(s); e != grammar.empties_end(s); ++e) add_empty(own, first_state + *e);
    for (auto c = grammar.calls_begin(s); c != grammar.calls_end(s); ++c)
      add_call(own, first_rule + c->rule, first_state + c->to);
  }
  for (RuleId r = 0; r < grammar.num_rules(); ++r) rule_starts_.push_back(first_state + grammar.rule(r).start);
  return first_rule + grammar.root();
}

void GrammarBuilder::add_byte(StateId from, uint8_t first, uint8_t last, StateId to) {
  if (within_limits()) bytes_.push_back({{from}, {first, last, to}});
}

void GrammarBuilder::add_empty(StateId from, StateId to) {
  if (from != to && within_limits()) empties_.push_back({{from}, to});
}

void GrammarBuilder::add_call(StateId from, RuleId rule, StateId to) {
  if (within_limits()) calls_.push_back({{from}, {rule, to}});
}

void GrammarBuilder::set_accepting(StateId state) { accepting_[state] = true; }

void GrammarBuilder::set_unique(StateId state, UniqueElements elements) {
  unique_[state] = static_cast<int32_t>(uniques_.size());
  uniques_.push_back(std::move(elements));
}

StateId GrammarBuilder::emit_text(StateId from, std::string_view bytes) {
  for (const char c : bytes) {
    const StateId to = add_state();
    add_byte(from, static_cast<uint8_t>(c), static_cast<uint8_t>(c), to);
    from = to;
  }
  return from;
}

StateId GrammarBuilder::emit_chars(StateId from, const CharSet& set) {
  const StateId to = add_state();
  emit_chars_to(from, set, to);
  return to;
}

void GrammarBuilder::emit_chars_to(StateId from, const CharSet& set, StateId to) {
  std::vector<Utf8Sequence> sequences;
  append_utf8_sequences(set, &sequences);
  // Sequences that end alike in one target share their last states.
  const auto key = [&](const Utf8Sequence& s, int from_byte) {
    uint64_t tail = 0;
    for (int i = from_byte; i < s.length; ++i) tail = tail << 16 | s.bytes[i].first << 8 | s.bytes[i].last;
    return std::pair(to, tail);
  };
  for (const Utf8Sequence& s : sequences) {
    StateId next = to;
    for (int i = s.length - 1; i > 0; --i) {
      const auto [at, fresh] = tails_.try_emplace(key(s, i), 0);
      if (fresh) {
        at->second = add_state();
        add_byte(at->second, s.bytes[i].first, s.bytes[i].last, next);
      }
      next = at->second;
    }
    add_byte(from, s.bytes[0].first, s.bytes[0].last, next);
  }
}

StateId GrammarBuilder::emit_call(StateId from, RuleId rule) {
  const StateId to = add_state();
  add_call(from, rule, to);
  return to;
}

// A state that only leads on without reading is replaced by where it leads.
void GrammarBuilder::skip_single_empties() {
  const size_t states = accepting_.size();
  std::vector<uint8_t> ways(states, 0);
  std::vector<StateId> next(states);
  for (StateId s = 0; s < states; ++s) next[s] = s;
  const auto count = [&](StateId s, int n) { ways[s] = static_cast<uint8_t>(std::min(2, ways[s] + n)); };
  for (const auto& e : bytes_) count(e.from, 2);
  for (const auto& e : calls_) count(e.from, 2);
  for (const auto& e : empties_) count(e.from, 1);
  for (const auto& e : empties_) {
    if (ways[e.from] == 1 && !accepting_[e.from] && unique_[e.from] < 0 && min_level_[e.from] == 0) next[e.from] = e.to;
  }
  const auto target = [&](StateId s) {
    for (int hops = 0; next[s] != s && hops < 64; ++hops) s = next[s];
    return s;
  };
  for (auto& e : bytes_) e.edge.to = target(e.edge.to);
  for (auto& e : calls_) {
    const StateId to = target(e.edge.to);
    if (inside_[e.edge.to]) inside_[to] = true;
    e.edge.to = to;
  }
  for (auto& e : empties_) e.to = target(e.to);
}

// Keeps the edges from which some end can be reached. False when the root has none.
bool GrammarBuilder::drop_dead_ends(RuleId root) {
  const size_t states = accepting_.size();
  struct Back {
    StateId from;  // here: the state the edge leads to
    StateId source;
    int64_t call;
  };
  std::vector<Back> back;
  back.reserve(bytes_.size() + empties_.size() + calls_.size());
  for (const auto& e : bytes_) back.push_back({e.edge.to, e.from, -1});
  for (const auto& e : empties_) back.push_back({e.to, e.from, -1});
  for (size_t i = 0; i < calls_.size(); ++i) {
    back.push_back({calls_[i].edge.to, calls_[i].from, static_cast<int64_t>(i)});
  }
  const std::vector<uint32_t> offsets = offsets_by_from(back, states);
  std::vector<uint32_t> sorted(back.size());
  std::vector<uint32_t> fill(offsets.begin(), offsets.end() - 1);
  for (uint32_t i = 0; i < back.size(); ++i) sorted[fill[back[i].from]++] = i;

  std::vector<int32_t> rule_of_start(states, -1);
  for (RuleId r = 0; r < rule_starts_.size(); ++r) rule_of_start[rule_starts_[r]] = static_cast<int32_t>(r);
  std::vector<std::vector<uint32_t>> waiting(rule_starts_.size());  // calls whose rule has no end yet
  std::vector<bool> live(states, false), ends(rule_starts_.size(), false);
  std::vector<StateId> work;
  const auto mark = [&](StateId s) {
    if (!live[s]) live[s] = true, work.push_back(s);
  };
  for (StateId s = 0; s < states; ++s) {
    if (accepting_[s]) mark(s);
  }
  while (!work.empty()) {
    const StateId s = work.back();
    work.pop_back();
    if (const int32_t r = rule_of_start[s]; r >= 0 && !ends[r]) {
      ends[r] = true;
      for (const uint32_t call : waiting[r]) mark(calls_[call].from);
    }
    for (uint32_t i = offsets[s]; i < offsets[s + 1]; ++i) {
      const Back& edge = back[sorted[i]];
      if (edge.call < 0 || ends[calls_[edge.call].edge.rule]) {
        mark(edge.source);
      } else {
        waiting[calls_[edge.call].edge.rule].push_back(static_cast<uint32_t>(edge.call));
      }
    }
  }
  std::erase_if(bytes_, [&](const BuildByte& e) { return !live[e.edge.to]; });
  std::erase_if(empties_, [&](const BuildEmpty& e) { return !live[e.to]; });
  std::erase_if(calls_, [&](const BuildCall& e) { return !live[e.edge.to] || !ends[e.edge.rule]; });
  return ends[root];
}

void GrammarBuilder::lay_out(Grammar* out) const {
  const size_t states = accepting_.size();
  out->states_.resize(states + 1);
  const auto place = [&](const auto& edges, auto member, auto* list, const auto& value) {
    const std::vector<uint32_t> offsets = offsets_by_from(edges, states);
    list->resize(edges.size());
    std::vector<uint32_t> fill(offsets.begin(), offsets.end() - 1);
    for (const auto& e : edges) (*list)[fill[e.from]++] = value(e);
    for (size_t s = 0; s <= states; ++s) out->states_[s].*member = offsets[s];
  };
  place(bytes_, &Grammar::State::bytes_begin, &out->bytes_, [](const BuildByte& e) { return e.edge; });
  place(empties_, &Grammar::State::empties_begin, &out->empties_, [](const BuildEmpty& e) { return e.to; });
  place(calls_, &Grammar::State::calls_begin, &out->calls_, [](const BuildCall& e) { return e.edge; });
  for (StateId s = 0; s < states; ++s) {
    Grammar::State& state = out->states_[s];
    const Grammar::State& next = out->states_[s + 1];
    state.plain = plain_[s];
    // A state that says nothing of plain characters leaves it to those it calls or leads to.
    const bool reads = reads_plain(out->bytes_, state.bytes_begin, next.bytes_begin);
    if (state.plain.least == 0 && !reads) state.plain = {0, 0, true};
    state.unique = unique_[s];
    state.inside = inside_[s];
    state.min_level = min_level_[s];
    state.accepting = accepting_[s];
    state.only_accepting = accepting_[s] && state.bytes_begin == next.bytes_begin &&
                           state.empties_begin == next.empties_begin && state.calls_begin == next.calls_begin;
  }
  for (const StateId start : rule_starts_) out->rules_.push_back({start, 0, false, false});
}

namespace {

// Calls `visit(call)` for every call a rule can make before it reads a byte; true when the rule can
// end there. `seen` is scratch, stamped with `stamp`.
template <typename Visit>
bool walk_left_edge(const Grammar& grammar, StateId start, std::vector<uint32_t>* seen, uint32_t stamp,
                    const Visit& visit) {
  std::vector<StateId> work{start};
  (*seen)[start] = stamp;
  bool ends = false;
  while (!work.empty()) {
    const StateId s = work.back();
    work.pop_back();
    ends = ends || grammar.state(s).accepting;
    const auto push = [&](StateId to) {
      if ((*seen)[to] != stamp) (*seen)[to] = stamp, work.push_back(to);
    };
    for (auto e = grammar.empties_begin(s); e != grammar.empties_end(s); ++e) push(*e);
    for (auto c = grammar.calls_begin(s); c != grammar.calls_end(s); ++c) {
      visit(*c);
      if (grammar.rule(c->rule).nullable) push(c->to);
    }
  }
  return ends;
}

}  // namespace

void GrammarBuilder::find_nullable(Grammar* out) const {
  std::vector<uint32_t> seen(out->num_states(), 0);
  uint32_t stamp = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (Grammar::Rule& rule : out->rules_) {
      if (rule.nullable) continue;
      rule.nullable = walk_left_edge(*out, rule.start, &seen, ++stamp, [](const CallEdge&) {});
      changed = changed || rule.nullable;
    }
  }
}

// Tarjan's strongly connected components, without recursion; a component is done after all it calls.
void GrammarBuilder::order_rules(Grammar* out) const {
  const size_t rules = out->rules_.size();
  std::vector<std::vector<RuleId>> calls(rules);
  std::vector<uint32_t> seen(out->num_states(), 0);
  for (RuleId r = 0; r < rules; ++r) {
    walk_left_edge(*out, out->rules_[r].start, &seen, r + 1, [&](const CallEdge& call) {
      if (call.rule == r) out->rules_[r].left_recursive = true;
      calls[r].push_back(call.rule);
    });
  }
  std::vector<uint32_t> index(rules, 0), low(rules, 0);
  std::vector<bool> open(rules, false);
  std::vector<RuleId> stack, order;
  std::vector<std::pair<RuleId, size_t>> path;
  std::vector<uint32_t> ends;  // of groups, counted from the back
  uint32_t next_index = 0;
  const auto enter = [&](RuleId r) {
    index[r] = low[r] = ++next_index;
    open[r] = true;
    stack.push_back(r);
    path.push_back({r, 0});
  };
  for (RuleId root = 0; root < rules; ++root) {
    if (index[root] == 0) enter(root);
    while (!path.empty()) {
      auto& [r, at] = path.back();
      if (at < calls[r].size()) {
        const RuleId callee = calls[r][at++];
        if (index[callee] == 0) {
          enter(callee);
        } else if (open[callee]) {
          low[r] = std::min(low[r], index[callee]);
        }
        continue;
      }
      const RuleId done = r;
      path.pop_back();
      if (!path.empty()) low[path.back().first] = std::min(low[path.back().first], low[done]);
      if (low[done] != index[done]) continue;
      const size_t before = order.size();
      RuleId member;
      do {
        member = stack.back();
        stack.pop_back();
        open[member] = false;
        order.push_back(member);
      } while (member != done);
      const bool group = order.size() - before > 1;
      for (size_t i = before; i < order.size(); ++i) {
        if (group) out->rules_[order[i]].left_recursive = true;
        ends.push_back(static_cast<uint32_t>(rules - before));
      }
    }
  }
  std::reverse(order.begin(), order.end());
  std::reverse(ends.begin(), ends.end());
  out->order_ = std::move(order);
  out->group_end_ = std::move(ends);
  for (uint32_t i = 0; i < rules; ++i) out->rules_[out->order_[i]].order = i;
}

void GrammarBuilder::find_byte_classes(Grammar* out) const {
  bool boundary[257] = {};
  for (const ByteEdge& e : out->bytes_) boundary[e.first] = boundary[e.last + 1] = true;
  int next = 0;
  for (int b = 0; b < 256; ++b) {
    if (b > 0 && boundary[b]) ++next;
    out->byte_classes_[b] = static_cast<uint8_t>(next);
  }
  out->num_byte_classes_ = next + 1;
}

Result<std::shared_ptr<const Grammar>> GrammarBuilder::finish(RuleId root) {
  within_limits();
  if (!status_.ok()) return status_;
  skip_single_empties();
  if (!drop_dead_ends(root)) {
    return Status::invalid_argument("no text can satisfy it: every way through it is contradictory or "
                                    "never ends");
  }
  auto grammar = std::make_shared<Grammar>();
  grammar->root_ = root;
  grammar->uniques_ = uniques_;
  lay_out(grammar.get());
  find_nullable(grammar.get());
  order_rules(grammar.get());
  find_byte_classes(grammar.get());
  return std::shared_ptr<const Grammar>(std::move(grammar));
}

size_t Grammar::memory_bytes() const {
  return states_.size() * sizeof(State) + rules_.size() * (sizeof(Rule) + 8) + bytes_.size() * sizeof(ByteEdge) +
         empties_.size() * sizeof(StateId) + calls_.size() * sizeof(CallEdge);
}

}  // namespace warpweave::grammar
