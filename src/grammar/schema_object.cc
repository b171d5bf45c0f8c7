// Objects: members in the schema's order, then any others by the pattern of their names.
#include <algorithm>

#include "grammar/schema_compiler.h"

namespace warpweave::grammar {
namespace {

constexpr size_t kStepsPerNode = 32;  // to ask a node of a leaf for a member
constexpr size_t kMaxNameClasses = 64;  // of one object: each overlap of patterns is one

const Json* find(const Json& node, const char* key) { return SchemaDocument::find(node, key); }

std::vector<std::string> patterns_of(const SchemaLeaf& leaf) {
  std::vector<std::string> out;
  for (const Json* node : leaf) {
    const Json* patterns = find(*node, "patternProperties");
    if (patterns == nullptr) continue;
    for (const auto& [text, schema] : patterns->items()) {
      if (std::find(out.begin(), out.end(), text) == out.end()) out.push_back(text);
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> SchemaCompiler::declared_names(const SchemaLeaf& leaf) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  const auto add = [&](const std::string& name) {
    if (seen.insert(name).second) names.push_back(name);
  };
  for (const Json* node : leaf) {
    if (const Json* properties = find(*node, "properties")) {
      for (const auto& [name, schema] : properties->items()) add(name);
    }
  }
  for (const Json* node : leaf) {
    if (const Json* required = find(*node, "required")) {
      for (const Json& name : *required) add(name.get<std::string>());
    }
  }
  return names;
}

// What must hold for a member: of each part of the leaf what `own` finds for it, which is pushed and said to be known,
// or else additionalProperties; and unevaluatedProperties where nothing that counts knew it.
template <typename Own>
SchemaSet SchemaCompiler::member_schemas(const SchemaLeaf& leaf, const SchemaSet& origin, Own&& own) {
  document_.work()->spend(kStepsPerNode * leaf.size());
  SchemaSet set;
  bool evaluated = false;
  const Json* unevaluated = nullptr;
  for (const Json* node : leaf) {
    bool known = own(*node, &set);
    if (const Json* additional = find(*node, "additionalProperties"); additional != nullptr && !known) {
      set.push_back({additional});
      known = true;
    }
    evaluated = evaluated || (known && !document_.is_made(node));
    if (const Json* last = find(*node, "unevaluatedProperties");
        last != nullptr && is_origin(node, origin, "unevaluatedProperties"))
      unevaluated = last;
  }
  if (unevaluated != nullptr && !evaluated) set.push_back({unevaluated});
  return set;
}

// What must hold for the member `name`.
SchemaSet SchemaCompiler::member_set(const SchemaLeaf& leaf, const SchemaSet& origin, const std::string& name) {
  return member_schemas(leaf, origin, [&](const Json& node, SchemaSet* set) {
    bool known = false;
    const Json* properties = find(node, "properties");
    if (const Json* property = properties != nullptr ? find(*properties, name.c_str()) : nullptr) {
      set->push_back({property});
      known = true;
    }
    const Json* patterns = find(node, "patternProperties");
    if (patterns == nullptr) return known;
    for (const auto& [text, schema] : patterns->items()) {
      const Result<const CharDfa*> dfa = document_.pattern(text);
      if (!dfa.ok()) {
        fail(dfa.status());
      } else if ((*dfa)->matches(name)) {
        set->push_back({&schema});
        known = true;
      }
    }
    return known;
  });
}

bool SchemaCompiler::name_allowed(const SchemaLeaf& leaf, const std::string& name) {
  return std::all_of(leaf.begin(), leaf.end(), [&](const Json* node) {
    const Json* names = find(*node, "propertyNames");
    return names == nullptr || document_.valid(*names, Json(name), false);
  });
}

// The texts that every propertyNames allows; nothing without one.
std::optional<CharDfa> SchemaCompiler::names_dfa(const SchemaLeaf& leaf) {
  SchemaSet set;
  for (const Json* node : leaf) {
    if (const Json* names = find(*node, "propertyNames")) set.push_back({names});
  }
  if (set.empty()) return std::nullopt;
  const CharDfa none = CharDfa::any_text().complement();
  const Result<std::vector<SchemaLeaf>> leaves = expander_.expand(set);
  if (!leaves.ok()) {
    fail(leaves.status());
    return none;
  }
  CharDfa excluded = CharDfa::any_text();  // the complement of the union
  for (const SchemaLeaf& alternative : *leaves) {
    CharDfa allowed = none;
    if (const std::optional<std::vector<std::string>> literals = literals_of(alternative)) {
      std::vector<std::string> texts;
      for (const std::string& text : *literals) {
        if (const Result<Json> value = parse_json(text); value.ok() && value->is_string())
          texts.push_back(value->get<std::string>());
      }
      Result<CharDfa> dfa = CharDfa::literals(texts, builder_.limits(), document_.dfa_work());
      if (!dfa.ok()) {
        fail(dfa.status());
        return none;
      }
      allowed = std::move(*dfa);
    } else if (std::all_of(alternative.begin(), alternative.end(),
                           [](const Json* n) { return SchemaDocument::has_type(*n, "string"); })) {
      const std::optional<StringFacts> facts = string_facts(alternative);
      const std::optional<CharDfa> dfa = facts ? whole_dfa(*facts) : std::nullopt;
      if (dfa) allowed = *dfa;
    }
    Result<CharDfa> rest = excluded.intersect(allowed.complement(), builder_.limits(), document_.dfa_work());
    if (!rest.ok()) {
      fail(rest.status());
      return none;
    }
    excluded = std::move(*rest);
  }
  return excluded.complement();
}

// What must hold for a member that is not declared and whose name matches `matched` of the patterns, and no other.
SchemaSet SchemaCompiler::undeclared_set(const SchemaLeaf& leaf, const SchemaSet& origin,
                                         const std::vector<std::string>& matched) {
  return member_schemas(leaf, origin, [&](const Json& node, SchemaSet* set) {
    bool known = false;
    const Json* patterns = find(node, "patternProperties");
    for (const std::string& pattern : matched) {
      const Json* schema = patterns != nullptr ? find(*patterns, pattern.c_str()) : nullptr;
      if (schema == nullptr) continue;
      set->push_back({schema});
      known = true;
    }
    return known;
  });
}

// The names that are not declared, by which patterns they match: all of them, split by one pattern after another.
Result<std::vector<SchemaCompiler::NamesAndPatterns>> SchemaCompiler::split_names(
    const SchemaLeaf& leaf, const std::vector<std::string>& declared) {
  CharDfa undeclared = CharDfa::any_text();
  if (!declared.empty()) {
    WW_ASSIGN_OR_RETURN(const CharDfa names, CharDfa::literals(declared, builder_.limits(), document_.dfa_work()));
    undeclared = names.complement();
  }
  if (const std::optional<CharDfa> names = names_dfa(leaf)) {
    WW_ASSIGN_OR_RETURN(undeclared, undeclared.intersect(*names, builder_.limits(), document_.dfa_work()));
  }
  std::vector<NamesAndPatterns> parts;
  if (!undeclared.empty()) parts.push_back({std::move(undeclared), {}});
  for (const std::string& text : patterns_of(leaf)) {
    WW_ASSIGN_OR_RETURN(const CharDfa* pattern, document_.pattern(text));
    const CharDfa others = pattern->complement();
    std::vector<NamesAndPatterns> next;
    for (NamesAndPatterns& part : parts) {
      WW_ASSIGN_OR_RETURN(CharDfa matched, part.names.intersect(*pattern, builder_.limits(), document_.dfa_work()));
      WW_ASSIGN_OR_RETURN(CharDfa rest, part.names.intersect(others, builder_.limits(), document_.dfa_work()));
      if (!rest.empty()) next.push_back({std::move(rest), part.patterns});
      if (matched.empty()) continue;
      next.push_back({std::move(matched), std::move(part.patterns)});
      next.back().patterns.push_back(text);
    }
    if (next.size() > kMaxNameClasses) {
      return Status::unsupported("patternProperties whose patterns overlap in more than " +
                                 std::to_string(kMaxNameClasses) + " ways in one object are not supported");
    }
    parts = std::move(next);
  }
  return parts;
}

// The members that are not declared, by the pattern of their names.
std::vector<SchemaCompiler::NameClass> SchemaCompiler::name_classes(const SchemaLeaf& leaf, const SchemaSet& origin,
                                                                    const std::vector<std::string>& declared) {
  Result<std::vector<NamesAndPatterns>> parts = split_names(leaf, declared);
  if (!parts.ok()) {
    fail(parts.status().with_context("the names of members"));
    return {};
  }
  const bool any_name =
      declared.empty() && patterns_of(leaf).empty() &&
      std::none_of(leaf.begin(), leaf.end(), [](const Json* node) { return find(*node, "propertyNames") != nullptr; });
  std::vector<NameClass> classes;
  for (NamesAndPatterns& part : *parts) {
    NameClass next{.names = std::nullopt, .values = undeclared_set(leaf, origin, part.patterns)};
    if (!any_name) next.names = std::move(part.names);
    if (!is_never(next.values)) classes.push_back(std::move(next));
  }
  return classes;
}

void SchemaCompiler::emit_pair(StateId key_end, const SchemaSet& values, StateId to, Mode mode) {
  StateId colon = builder_.emit_text(key_end, ":");
  if (!style_.any_whitespace && !mode.one_spelling) colon = builder_.emit_text(colon, style_.separator);
  colon = emit_spaces(colon, mode);
  emit_inner(colon, values, to, mode);
}

std::optional<SchemaCompiler::ObjectRules> SchemaCompiler::object_rules(const SchemaLeaf& leaf, const SchemaSet& origin,
                                                                     Mode mode) {
  ObjectRules rules;
  std::set<std::string> required;
  for (const Json* node : leaf) {
    rules.min = std::max(rules.min, whole_number(*node, "minProperties", 0));
    const int64_t most = whole_number(*node, "maxProperties", -1);
    if (most >= 0) rules.max = rules.max < 0 ? most : std::min(rules.max, most);
    if (const Json* names = find(*node, "required")) required.insert(names->begin(), names->end());
  }
  const std::vector<std::string> declared = declared_names(leaf);
  for (const std::string& name : declared) {
    ObjectMember member{name, member_set(leaf, origin, name), required.contains(name)};
    const bool never = is_never(member.values) || !name_allowed(leaf, name);
    if (never && member.required) return std::nullopt;
    if (!never) rules.members.push_back(std::move(member));
  }
  // Names that may repeat each other cannot be told apart inside an array of unique elements.
  if (!mode.one_spelling || rules.members.empty()) rules.others = name_classes(leaf, origin, declared);
  const auto all = static_cast<int64_t>(rules.members.size());
  if (mode.one_spelling) rules.max = rules.max < 0 ? all + 1 : rules.max;
  if (static_cast<int64_t>(required.size()) >= rules.min) rules.min = 0;
  if (rules.max >= all && rules.others.empty()) rules.max = -1;
  return rules;
}

void SchemaCompiler::emit_object(StateId from, StateId end, const SchemaLeaf& leaf, const SchemaSet& origin,
                                 Mode mode) {
  const std::optional<ObjectRules> rules = object_rules(leaf, origin, mode);
  if (!rules || builder_.failed()) return;
  if (rules->columns() > 4096) {
    return fail(Status::unsupported("minProperties and maxProperties above 4096 are not supported"));
  }
  ObjectColumns start(rules->columns());
  start.state(0, [&] { return emit_open(from, '{', mode); });
  const ObjectColumns at = emit_members(*rules, std::move(start), mode);
  for (int64_t column = 0; column <= rules->columns(); ++column) {
    if (at.reached[column]) emit_close(*rules, at.states[column], column, end, mode);
  }
  emit_others(*rules, at, end, mode);
}

// The members that the schema names, each in its place or, if it may, left out.
SchemaCompiler::ObjectColumns SchemaCompiler::emit_members(const ObjectRules& rules, ObjectColumns at, Mode mode) {
  const int64_t columns = rules.columns();
  for (const ObjectMember& member : rules.members) {
    ObjectColumns next(columns);
    const auto state = [&](int64_t column) { return next.state(column, [&] { return builder_.add_state(); }); };
    for (int64_t column = 0; column <= columns && builder_.within_limits(); ++column) {
      if (!at.reached[column]) continue;
      if (!member.required) builder_.add_empty(at.states[column], state(column));
      if (rules.max >= 0 && column >= rules.max) continue;
      const StateId key = column == 0 ? at.states[0] : emit_comma(at.states[column], mode);
      const StateId behind = builder_.add_state();
      emit_pair(builder_.emit_text(key, json_quote(member.name)), member.values, behind, mode);
      builder_.add_empty(behind, state(std::min(column + 1, columns)));
    }
    at = std::move(next);
  }
  return at;
}

void SchemaCompiler::emit_close(const ObjectRules& rules, StateId state, int64_t column, StateId end, Mode mode) {
  if (column < rules.min) return;
  builder_.add_empty(builder_.emit_text(column > 0 ? emit_spaces(state, mode) : state, "}"), end);
}

// Others, any number. Two of them may have one name, so that only the first counts for the minimum.
void SchemaCompiler::emit_others(const ObjectRules& rules, const ObjectColumns& at, StateId end, Mode mode) {
  if (rules.others.empty()) return;
  const int64_t columns = rules.columns(), max = rules.max;
  ObjectColumns loops(columns);
  const auto loop_state = [&](int64_t column) { return loops.state(column, [&] { return builder_.add_state(); }); };
  const auto emit_any = [&](StateId key, StateId to) {
    for (const NameClass& names : rules.others) {
      const StateId own = builder_.add_state();
      builder_.add_empty(key, own);
      emit_pair(names.names ? strings_.emit_dfa(own, *names.names, mode.one_spelling)
                            : strings_.emit_any(own, mode.one_spelling),
                names.values, to, mode);
    }
  };
  for (int64_t column = 0; column <= columns && builder_.within_limits(); ++column) {
    const bool full = max >= 0 && column >= max;
    const int64_t next = std::min(column + 1, columns);
    if (at.reached[column] && !full) {
      emit_any(column == 0 ? at.states[0] : emit_comma(at.states[column], mode), loop_state(next));
    }
    if (!loops.reached[column]) continue;
    emit_close(rules, loops.states[column], column, end, mode);
    if (full) continue;
    // Under a maximum every member counts, under a minimum no further one does; under both none comes.
    if (max >= 0 && rules.min > 0) continue;
    emit_any(emit_comma(loops.states[column], mode), max >= 0 ? loop_state(next) : loops.states[column]);
  }
}

}  // namespace warpweave::grammar
