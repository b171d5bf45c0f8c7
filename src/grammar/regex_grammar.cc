#include "grammar/regex_grammar.h"

#include <algorithm>

#include "grammar/vocabulary.h"

namespace warpweave::grammar {
namespace {

// A repeated class that holds all plain characters keeps plain text going.
bool runs_on_plain(const Regex& part) {
  return part.kind == Regex::Kind::chars && part.chars.contains(Vocabulary::plain_chars());
}

StateId emit_repeat(GrammarBuilder* b, StateId from, const Regex& repeat) {
  const Regex& part = repeat.parts[0];
  for (int i = 0; i < repeat.min && b->within_limits(); ++i) from = emit_regex(b, from, part);
  const StateId end = b->add_state();
  if (repeat.max == Regex::kNoLimit) {
    const StateId head = b->add_state();
    b->add_empty(from, head);
    if (runs_on_plain(part)) {
      b->set_plain_run(head, {PlainRun::kUnbounded, PlainRun::kUnbounded, true});
      b->emit_chars_to(head, part.chars, head);
    } else {
      b->add_empty(emit_regex(b, head, part), head);
    }
    b->add_empty(head, end);
    return end;
  }
  for (int i = repeat.min; i < repeat.max && b->within_limits(); ++i) {
    b->add_empty(from, end);
    from = emit_regex(b, from, part);
  }
  b->add_empty(from, end);
  return end;
}

bool has_anchor(const Regex& regex) {
  if (regex.kind >= Regex::Kind::begin) return true;
  return std::any_of(regex.parts.begin(), regex.parts.end(), has_anchor);
}

void strip(Regex* regex, bool at_begin, bool at_end) {
  if (regex->kind == Regex::Kind::choice) {
    for (Regex& part : regex->parts) strip(&part, at_begin, at_end);
  }
  if (regex->kind == Regex::Kind::begin && at_begin) *regex = {};
  if (regex->kind == Regex::Kind::end && at_end) *regex = {};
  if (regex->kind != Regex::Kind::sequence || regex->parts.empty()) return;
  if (at_begin) strip(&regex->parts.front(), true, at_end && regex->parts.size() == 1);
  if (at_end) strip(&regex->parts.back(), at_begin && regex->parts.size() == 1, true);
}

}  // namespace

StateId emit_regex(GrammarBuilder* b, StateId from, const Regex& regex) {
  if (!b->within_limits()) return from;
  switch (regex.kind) {
    case Regex::Kind::chars: return b->emit_chars(from, regex.chars);
    case Regex::Kind::sequence:
      for (const Regex& part : regex.parts) from = emit_regex(b, from, part);
      return from;
    case Regex::Kind::choice: {
      const StateId end = b->add_state();
      for (const Regex& part : regex.parts) {
        const StateId own = b->add_state();
        b->add_empty(from, own);
        b->add_empty(emit_regex(b, own, part), end);
      }
      return end;
    }
    case Regex::Kind::repeat: return emit_repeat(b, from, regex);
    case Regex::Kind::begin:
    case Regex::Kind::end:
    case Regex::Kind::boundary:
    case Regex::Kind::no_boundary: return from;  // refused by strip_outer_anchors()
  }
  return from;
}

Status strip_outer_anchors(Regex* regex) {
  strip(regex, true, true);
  if (has_anchor(*regex))
    return Status::unsupported(
        "^ and $ are supported only at the two ends of the expression, which matches the whole text anyway, and word "
        "boundaries (\\b, \\B) only in patterns of JSON schemas and in stop_regex");
  return {};
}

Result<RuleId> add_regex(std::string_view pattern, GrammarBuilder* builder) {
  WW_ASSIGN_OR_RETURN(Regex regex, parse_regex(pattern, builder->limits()));
  WW_RETURN_IF_ERROR(strip_outer_anchors(&regex));
  const RuleId rule = builder->add_rule();
  builder->end_rule(emit_regex(builder, builder->start(rule), regex));
  return rule;
}

Result<std::shared_ptr<const Grammar>> compile_regex(std::string_view pattern, const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  WW_ASSIGN_OR_RETURN(const RuleId root, add_regex(pattern, &builder));
  return builder.finish(root);
}

Result<std::shared_ptr<const Grammar>> compile_choice(const std::vector<std::string>& choices,
                                                      const GrammarLimits& limits) {
  if (choices.empty()) return Status::invalid_argument("the list of choices is empty; give at least one");
  GrammarBuilder builder(limits);
  const RuleId root = builder.add_rule();
  const StateId end = builder.add_state();
  for (const std::string& text : choices) {
    if (text.empty()) return Status::invalid_argument("a choice is empty; give texts of at least one character");
    builder.add_empty(builder.emit_text(builder.start(root), text), end);
  }
  builder.end_rule(end);
  return builder.finish(root);
}

Result<std::shared_ptr<const Grammar>> compile_ebnf(std::string_view text, const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  WW_ASSIGN_OR_RETURN(const RuleId root, add_ebnf(text, &builder));
  return builder.finish(root);
}

}  // namespace warpweave::grammar
