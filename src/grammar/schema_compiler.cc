#include "grammar/schema_compiler.h"

#include <algorithm>

namespace warpweave::grammar {
namespace {

// Indentation behind a line break, in columns: by the brackets that are open, and at most.
constexpr int kColumnsPerLevel = 8, kFurtherColumns = 4, kTabColumns = 4;
constexpr int kMaxIndentation = 64;

// The open brackets that an indentation of `columns` needs.
uint16_t level_for(int columns) {
  return static_cast<uint16_t>(std::max(0, (columns - kFurtherColumns + kColumnsPerLevel - 1) / kColumnsPerLevel));
}

const Json* find(const Json& node, const char* key) { return SchemaDocument::find(node, key); }

}  // namespace

bool is_never(const SchemaSet& set) {
  return std::any_of(set.begin(), set.end(), [](const SchemaRef& ref) {
    return ref.node->is_boolean() && ref.node->get<bool>() == ref.negated;
  });
}

int64_t whole_number(const Json& node, const char* key, int64_t otherwise) {
  const Json* value = find(node, key);
  return value == nullptr ? otherwise : static_cast<int64_t>(value->get<double>());
}

Result<RuleId> SchemaCompiler::compile() {
  WW_RETURN_IF_ERROR(document_.check());
  const RuleId root = rule_for({{&document_.root()}}, {});
  while (!to_build_.empty() && builder_.within_limits()) {
    const auto [rule, set, mode] = std::move(to_build_.back());
    to_build_.pop_back();
    build_rule(rule, set, mode);
  }
  if (builder_.failed()) return builder_.status();
  return root;
}

// Follows bare references and drops what says nothing, so that equal meanings share a rule.
bool SchemaCompiler::simplify(SchemaSet* set) {
  SchemaSet out;
  for (SchemaRef ref : *set) {
    for (int hops = 0; !ref.negated && document_.is_reference(*ref.node); ++hops) {
      const bool bare = SchemaDocument::only_annotations_besides(*ref.node, "$ref");
      if (!bare || find(*ref.node, "$ref") == nullptr) break;
      const Result<const Json*> target = document_.resolve(*ref.node);
      if (!target.ok() || hops > 64) {
        fail(target.ok() ? Status::invalid_argument("$ref goes round in a circle and says nothing") : target.status());
        return false;
      }
      ref.node = *target;
    }
    const bool says_nothing = !ref.negated && ((ref.node->is_boolean() && ref.node->get<bool>()) ||
                                               (ref.node->is_object() && !document_.is_made(ref.node) &&
                                                SchemaDocument::only_annotations_besides(*ref.node, "")));
    if (!says_nothing && std::find(out.begin(), out.end(), ref) == out.end()) out.push_back(ref);
  }
  *set = std::move(out);
  return true;
}

RuleId SchemaCompiler::rule_for(SchemaSet set, Mode mode) {
  simplify(&set);
  const auto [at, fresh] = rules_.try_emplace({set, mode}, 0);
  if (fresh) {
    at->second = builder_.add_rule();
    to_build_.emplace_back(at->second, set, mode);
  }
  return at->second;
}

// A bare anyOf, or oneOf of schemas that exclude each other, is a choice of rules.
bool SchemaCompiler::build_as_choice(RuleId rule, const SchemaSet& set, Mode mode) {
  if (set.size() != 1 || set[0].negated || !set[0].node->is_object()) return false;
  const Json& node = *set[0].node;
  const char* keyword = find(node, "anyOf") != nullptr ? "anyOf" : "oneOf";
  const Json* parts = find(node, keyword);
  if (parts == nullptr || !SchemaDocument::only_annotations_besides(node, keyword)) return false;
  if (keyword[0] == 'o') {
    for (size_t i = 0; i < parts->size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        if (!expander_.disjoint({&(*parts)[i]}, {&(*parts)[k]})) return false;
      }
    }
  }
  const StateId end = builder_.add_state();
  for (const Json& part : *parts) builder_.add_call(builder_.start(rule), rule_for({{&part}}, mode), end);
  builder_.end_rule(end);
  return true;
}

void SchemaCompiler::build_rule(RuleId rule, const SchemaSet& set, Mode mode) {
  if (is_never(set) || build_as_choice(rule, set, mode)) return;
  Result<std::vector<SchemaLeaf>> leaves = expander_.expand(set);
  if (!leaves.ok()) return fail(leaves.status());
  const StateId end = builder_.add_state();
  for (const SchemaLeaf& leaf : *leaves) emit_leaf(builder_.start(rule), end, leaf, set, mode);
  builder_.end_rule(end);
}

void SchemaCompiler::emit_leaf(StateId from, StateId end, const SchemaLeaf& leaf, const SchemaSet& origin, Mode mode) {
  if (std::optional<std::vector<std::string>> texts = literals_of(leaf))
    return emit_literals(from, end, std::move(*texts));
  const auto has = [&](const char* type) {
    return std::all_of(leaf.begin(), leaf.end(),
                       [&](const Json* node) { return SchemaDocument::has_type(*node, type); });
  };
  if (has("null")) builder_.add_empty(builder_.emit_text(from, "null"), end);
  if (has("boolean")) {
    builder_.add_empty(builder_.emit_text(from, "true"), end);
    builder_.add_empty(builder_.emit_text(from, "false"), end);
  }
  if (has("number")) {
    emit_number_leaf(from, end, leaf, false, mode);
  } else if (has("integer")) {
    emit_number_leaf(from, end, leaf, true, mode);
  }
  if (has("string")) emit_string_leaf(from, end, leaf, mode);
  if (has("array")) emit_array(from, end, leaf, origin, mode);
  if (has("object")) emit_object(from, end, leaf, origin, mode);
}

// The JSON texts of an enum or const that are valid against everything else.
std::optional<std::vector<std::string>> SchemaCompiler::literals_of(const SchemaLeaf& leaf) {
  const Json* values = nullptr;
  Json constant;
  for (const Json* node : leaf) {
    if (values == nullptr) values = find(*node, "enum");
    if (const Json* value = find(*node, "const")) {
      constant = Json::array({*value});
      values = &constant;
      break;
    }
  }
  if (values == nullptr) return std::nullopt;
  std::vector<std::string> texts;
  for (const Json& value : *values) {
    if (!std::all_of(leaf.begin(), leaf.end(), [&](const Json* node) { return document_.valid(*node, value, false); }))
      continue;
    texts.push_back(value.is_string() ? json_quote(value.get<std::string>())
                                      : value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return texts;
}

// Texts that begin alike share states.
void SchemaCompiler::emit_literals(StateId from, StateId end, std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  std::vector<StateId> path;  // behind each byte of the text before
  const std::string* last = nullptr;
  for (const std::string& text : texts) {
    size_t shared = 0;
    while (last != nullptr && shared < std::min(last->size(), text.size()) && (*last)[shared] == text[shared]) ++shared;
    path.resize(shared);
    while (path.size() < text.size()) {
      path.push_back(
          builder_.emit_text(path.empty() ? from : path.back(), std::string_view(text).substr(path.size(), 1)));
    }
    builder_.add_empty(path.back(), end);
    last = &text;
  }
}

RuleId SchemaCompiler::number_rule(const NumberBounds& bounds, bool one_spelling) {
  const auto [at, fresh] = number_rules_.try_emplace({bounds, one_spelling});
  if (fresh) {
    at->second = builder_.add_rule();
    builder_.end_rule(emit_number(&builder_, builder_.start(at->second), bounds, one_spelling));
  }
  return at->second;
}

void SchemaCompiler::emit_number_leaf(StateId from, StateId end, const SchemaLeaf& leaf, bool integer, Mode mode) {
  NumberBounds bounds;
  bounds.integer = integer;
  for (const Json* node : leaf) {
    const NumberBounds next = number_bounds(*node);
    const auto tighter = [](const NumberBounds::Bound& a, const NumberBounds::Bound& b, int sign) {
      const int order = sign * compare(a.value, b.value);
      return order > 0 || (order == 0 && a.exclusive);
    };
    if (next.low && (!bounds.low || tighter(*next.low, *bounds.low, 1))) bounds.low = next.low;
    if (next.high && (!bounds.high || tighter(*next.high, *bounds.high, -1))) bounds.high = next.high;
    if (!next.multiple_of) continue;
    if (bounds.multiple_of && compare(*bounds.multiple_of, *next.multiple_of) != 0) {
      return fail(Status::unsupported(
          "multipleOf: two different divisors for one number are not supported; give their least common multiple"));
    }
    bounds.multiple_of = next.multiple_of;
  }
  const StateId own = builder_.add_state();
  builder_.add_empty(from, own);
  builder_.add_call(own, number_rule(bounds, mode.one_spelling), end);
}

// Nothing when some constraint was refused.
std::optional<SchemaCompiler::StringFacts> SchemaCompiler::string_facts(const SchemaLeaf& leaf) {
  StringFacts facts;
  std::set<std::string> done;
  Status status;
  const auto both = [&](const CharDfa& dfa) {
    if (!facts.dfa) {
      facts.dfa = dfa;
      return;
    }
    Result<CharDfa> next = facts.dfa->intersect(dfa, builder_.limits(), document_.dfa_work());
    if (next.ok()) {
      facts.dfa = std::move(*next);
    } else {
      status = next.status();
    }
  };
  for (const Json* node : leaf) {
    facts.min = std::max(facts.min, whole_number(*node, "minLength", 0));
    const int64_t max = whole_number(*node, "maxLength", -1);
    if (max >= 0) facts.max = facts.max < 0 ? max : std::min(facts.max, max);
    for (const char* keyword : {"pattern", kNotPattern, "format"}) {
      const Json* text = find(*node, keyword);
      if (text == nullptr || !done.insert(keyword + text->get<std::string>()).second) continue;
      const auto name = text->get<std::string>();
      const Result<const CharDfa*> dfa = keyword[0] == 'f' ? document_.format(name) : document_.pattern(name);
      if (!dfa.ok()) {
        fail(dfa.status());
        return std::nullopt;
      }
      if (*dfa != nullptr) both(keyword[0] == '\x01' ? (*dfa)->complement() : **dfa);
    }
    if (const Json* texts = find(*node, kNotStrings)) {
      const Result<CharDfa> dfa =
          CharDfa::literals(texts->get<std::vector<std::string>>(), builder_.limits(), document_.dfa_work());
      if (!dfa.ok()) {
        fail(dfa.status());
        return std::nullopt;
      }
      both(dfa->complement());
    }
  }
  if (!status.ok()) {
    fail(status);
    return std::nullopt;
  }
  return facts;
}

std::optional<CharDfa> SchemaCompiler::whole_dfa(const StringFacts& facts) {
  CharDfa dfa = facts.dfa ? *facts.dfa : CharDfa::any_text();
  if ((facts.min == 0 && facts.max < 0) || dfa.within_lengths(facts.min, facts.max)) return dfa;
  const int64_t bound = std::max(facts.min, facts.max);
  if (bound > static_cast<int64_t>(builder_.limits().max_dfa_states)) {
    fail(Status::invalid_argument("minLength or maxLength of " + std::to_string(bound) +
                                  " along with pattern or format is too large; use at most " +
                                  std::to_string(builder_.limits().max_dfa_states)));
    return std::nullopt;
  }
  if (facts.max >= 0 && facts.min > facts.max) return std::nullopt;
  Result<CharDfa> both =
      dfa.intersect(CharDfa::length_between(facts.min, facts.max), builder_.limits(), document_.dfa_work());
  if (both.ok()) return std::move(*both);
  fail(both.status());
  return std::nullopt;
}

void SchemaCompiler::emit_string_leaf(StateId from, StateId end, const SchemaLeaf& leaf, Mode mode) {
  const std::optional<StringFacts> facts = string_facts(leaf);
  if (!facts || (facts->max >= 0 && facts->min > facts->max)) return;
  if (!facts->dfa) {
    builder_.add_empty(strings_.emit_length(from, facts->min, facts->max, mode.one_spelling), end);
    return;
  }
  const std::optional<CharDfa> dfa = whole_dfa(*facts);
  if (dfa && !dfa->empty()) builder_.add_empty(strings_.emit_dfa(from, *dfa, mode.one_spelling), end);
}

// Nothing, a space, or a line break and an indentation.
RuleId SchemaCompiler::make_spaces_rule() {
  const RuleId rule = builder_.add_rule();
  const StateId begin = builder_.start(rule), end = builder_.add_state();
  builder_.add_empty(begin, end);
  builder_.add_byte(begin, ' ', ' ', end);
  std::vector<StateId> at{builder_.emit_text(begin, "\n")};  // by columns so far
  builder_.add_byte(builder_.emit_text(begin, "\r"), '\n', '\n', at[0]);
  for (int column = 1; column <= kMaxIndentation; ++column) {
    at.push_back(builder_.add_state());
    builder_.set_min_level(at[column], level_for(column));
    builder_.add_byte(at[column - 1], ' ', ' ', at[column]);
    if (column >= kTabColumns) builder_.add_byte(at[column - kTabColumns], '\t', '\t', at[column]);
  }
  for (const StateId state : at) builder_.add_empty(state, end);
  builder_.end_rule(end);
  return rule;
}

// What writers of JSON put between brackets. Whitespace without end would let a model write nothing else.
StateId SchemaCompiler::emit_spaces(StateId from, Mode mode) {
  if (!style_.any_whitespace || mode.one_spelling) return from;
  if (!spaces_rule_) spaces_rule_ = make_spaces_rule();
  const StateId to = builder_.emit_call(from, *spaces_rule_);
  builder_.set_inside(to);
  return to;
}

// A member's value or an array's element.
void SchemaCompiler::emit_inner(StateId from, const SchemaSet& values, StateId to, Mode mode) {
  builder_.add_call(from, rule_for(values, mode), to);
  builder_.set_inside(to);
}

StateId SchemaCompiler::emit_open(StateId from, char bracket, Mode mode) {
  return emit_spaces(builder_.emit_text(from, std::string(1, bracket)), mode);
}

StateId SchemaCompiler::emit_comma(StateId from, Mode mode) {
  const StateId behind = builder_.emit_text(from, ",");
  if (!style_.any_whitespace && !mode.one_spelling) return builder_.emit_text(behind, style_.separator);
  return emit_spaces(behind, mode);
}

bool SchemaCompiler::is_origin(const Json* node, const SchemaSet& origin, const char* keyword) {
  if (origin.size() == 1 && origin[0].node == node) return true;
  fail(Status::unsupported(
      std::string(keyword) +
      " inside allOf, anyOf, oneOf, if or behind a $ref with siblings is not supported; put it beside them"));
  return false;
}

Result<Json> parse_schema_text(std::string_view text, const GrammarLimits& limits) {
  if (text.size() > limits.max_source_bytes) {
    return Status::invalid_argument("the schema is longer than " + std::to_string(limits.max_source_bytes) + " bytes");
  }
  Result<Json> value = parse_json(text, {.max_depth = static_cast<size_t>(limits.max_nesting)});
  if (value.ok()) return value;
  if (value.status().code() == StatusCode::resource_exhausted) {
    return Status::invalid_argument("the schema is too large or nested deeper than " +
                                    std::to_string(limits.max_nesting) + " levels; use $ref");
  }
  return Status::invalid_argument("the schema is no JSON");
}

Result<RuleId> add_json_schema(const Json& schema, const JsonStyle& style, GrammarBuilder* builder) {
  return SchemaCompiler(schema, style, builder).compile();
}

namespace {

constexpr size_t kFewAlternatives = 4;

Result<std::shared_ptr<const Grammar>> compile_within(const Json& schema, const JsonStyle& style,
                                                      GrammarBuilder& builder) {
  WW_ASSIGN_OR_RETURN(const RuleId root, add_json_schema(schema, style, &builder));
  return builder.finish(root);
}

}  // namespace

Result<std::shared_ptr<const Grammar>> compile_json_schema(const Json& schema, const JsonStyle& style,
                                                           const GrammarLimits& limits) {
  // Many ways around what must not hold, as long as that is cheap; else few. What is cheap is counted: by time, a slow
  // machine would allow fewer texts than a fast one. Time only ends a compilation.
  GrammarLimits cheap = limits;
  cheap.max_states /= 4;
  cheap.max_schema_work /= 8;
  GrammarBuilder first(cheap);
  Result<std::shared_ptr<const Grammar>> grammar = compile_within(schema, style, first);
  if (grammar.ok() || first.deadline()->was_passed()) return grammar;
  GrammarLimits few = limits;
  few.max_lossy_alternatives = std::min(limits.max_lossy_alternatives, kFewAlternatives);
  GrammarBuilder second(few);
  return compile_within(schema, style, second);
}

}  // namespace warpweave::grammar
