// Runs: how long characters of some kinds go on from a config whatever they are, found by trying
// every byte, so that a mask need not walk the tokens made of them.
#include <algorithm>

#include "grammar/automaton.h"

namespace warpweave::grammar {
namespace {

// The characters beyond ASCII by their first and second byte, and how many more follow (RFC 3629).
struct Utf8Form {
  uint8_t first, last, second_first, second_last;
  int more;
};
constexpr Utf8Form kForms[] = {
    {0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1}, {0xED, 0xED, 0x80, 0x9F, 1},
    {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2}, {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};

}  // namespace

// Where each of the bytes leads; kSeveral when not to one place.
ConfigId Automaton::step_all(ConfigId config, uint8_t first, uint8_t last) {
  if (config < 0) return config;
  const ConfigId to = step(config, first);
  for (int byte = first + 1; byte <= last; ++byte) {
    if (step(config, static_cast<uint8_t>(byte)) != to) return kSeveral;
  }
  return to;
}

// Where each character beyond ASCII leads.
ConfigId Automaton::step_beyond_ascii(ConfigId config) {
  ConfigId common = kUnknown;
  for (const Utf8Form& form : kForms) {
    ConfigId to = step_all(config, form.first, form.last);
    to = step_all(to, form.second_first, form.second_last);
    for (int i = 0; i < form.more; ++i) to = step_all(to, 0x80, 0xBF);
    if (common == kUnknown) common = to;
    if (to == kSeveral || to != common) return kSeveral;
  }
  return common;
}

const Automaton::Successor& Automaton::successor(ConfigId config) {
  if (successors_.size() <= static_cast<size_t>(config)) successors_.resize(config + 1);
  if (successors_[config].known) return successors_[config];
  ConfigId to[kNumKinds];
  std::fill(std::begin(to), std::end(to), kUnknown);
  for (int c = 0; c < 128; ++c) {
    ConfigId& of_kind = to[kind_of_ascii(static_cast<uint8_t>(c))];
    const ConfigId next = step(config, static_cast<uint8_t>(c));
    of_kind = of_kind == kUnknown || of_kind == next ? next : kSeveral;
  }
  to[kBeyondKind] = step_beyond_ascii(config);
  to[kBrokenKind] = kSeveral;
  Successor found;
  found.known = true;
  for (int kind = 0; kind < kNumKinds; ++kind) {
    if (to[kind] == kDead) found.dead |= kinds(kind);
    if (to[kind] >= 0 && found.next == kDead) found.next = to[kind];
    if (to[kind] >= 0 && found.next == to[kind]) found.kinds |= kinds(kind);
  }
  return successors_[config] = found;
}

// Runs of more than `enough` characters may be given as if they were shorter.
Automaton::Run Automaton::run(ConfigId config, int enough) {
  // What the grammar says of plain characters saves trying.
  if (const PlainRun plain = closed(config).plain; plain.alike && plain.least > 0) {
    return {Vocabulary::plain_kinds(), plain.least, plain.most == plain.least};
  }
  const Successor first = successor(config);
  Run run{first.kinds, 0, false};
  if (first.kinds == 0) return run;
  for (ConfigId at = config; run.chars < enough;) {
    const Successor now = successor(at);
    if (!contains_kinds(now.kinds, run.kinds)) {
      run.ends = contains_kinds(now.dead, run.kinds);
      return run;
    }
    ++run.chars;
    if (now.next == at) run.chars = kEndless;
    at = now.next;
  }
  return run;
}

}  // namespace warpweave::grammar
