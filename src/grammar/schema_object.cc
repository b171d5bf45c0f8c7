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

void SchemaCompiler::emit_object(StateId from, StateId end, const SchemaLeaf& leaf, const SchemaSet& origin,
                                 Mode mode) {
  int64_t min = 0, max = -1;
  std::set<std::string> required;
  for (const Json* node : leaf) {
    min = std::max(min, whole_number(*node, "minProperties", 0));
    const int64_t most = whole_number(*node, "maxProperties", -1);
    if (most >= 0) max = max < 0 ? most : std::min(max, most);
    if (const Json* names = find(*node, "required")) required.insert(names->begin(), names->end());
  }
  struct Member {
    std::string name;
    SchemaSet values;
    bool required;
  };
  std::vector<Member> members;
  const std::vector<std::string> declared = declared_names(leaf);
  for (const std::string& name : declared) {
    Member member{name, member_set(leaf, origin, name), required.contains(name)};
    const bool never = is_never(member.values) || !name_allowed(leaf, name);
    if (never && member.required) return;
    if (!never) members.push_back(std::move(member));
  }
  std::vector<NameClass> classes;
  // Names that may repeat each other cannot be told apart inside an array of unique elements.
  if (!mode.one_spelling || members.empty()) classes = name_classes(leaf, origin, declared);
  if (builder_.failed()) return;
  if (mode.one_spelling) max = max < 0 ? static_cast<int64_t>(members.size()) + 1 : max;

  // A column of states per number of members so far, as far as they must be counted.
  if (static_cast<int64_t>(required.size()) >= min) min = 0;
  const auto all = static_cast<int64_t>(members.size());
  if (max >= all && classes.empty()) max = -1;
  const int64_t columns = std::max<int64_t>({1, min, max});  // the last one: so many or more
  if (columns > 4096) return fail(Status::unsupported("minProperties and maxProperties above 4096 are not supported"));
  const auto next_column = [&](int64_t column) { return std::min(column + 1, columns); };
  std::vector<StateId> at(columns + 1, 0);
  std::vector<bool> reached(columns + 1, false);
  at[0] = emit_open(from, '{', mode);
  reached[0] = true;
  for (const Member& member : members) {
    std::vector<StateId> next(columns + 1, 0);
    std::vector<bool> next_reached(columns + 1, false);
    const auto state = [&](int64_t column) {
      if (!next_reached[column]) next[column] = builder_.add_state(), next_reached[column] = true;
      return next[column];
    };
    for (int64_t column = 0; column <= columns && builder_.within_limits(); ++column) {
      if (!reached[column]) continue;
      if (!member.required) builder_.add_empty(at[column], state(column));
      if (max >= 0 && column >= max) continue;
      const StateId key = column == 0 ? at[0] : emit_comma(at[column], mode);
      const StateId behind = builder_.add_state();
      emit_pair(builder_.emit_text(key, json_quote(member.name)), member.values, behind, mode);
      builder_.add_empty(behind, state(next_column(column)));
    }
    at = std::move(next);
    reached = std::move(next_reached);
  }
  // Others, any number. Two of them may have one name, so that only the first counts for the minimum.
  std::vector<StateId> looping(columns + 1, 0);
  std::vector<bool> loops(columns + 1, false);
  const auto close = [&](StateId state, int64_t column) {
    if (column >= min) builder_.add_empty(builder_.emit_text(column > 0 ? emit_spaces(state, mode) : state, "}"), end);
  };
  for (int64_t column = 0; column <= columns; ++column) {
    if (reached[column]) close(at[column], column);
  }
  const auto emit_others = [&](StateId key, StateId to) {
    for (const NameClass& names : classes) {
      const StateId own = builder_.add_state();
      builder_.add_empty(key, own);
      emit_pair(names.names ? strings_.emit_dfa(own, *names.names, mode.one_spelling)
                            : strings_.emit_any(own, mode.one_spelling),
                names.values, to, mode);
    }
  };
  const auto loop_state = [&](int64_t column) {
    if (!loops[column]) {
      looping[column] = builder_.add_state();
      loops[column] = true;
    }
    return looping[column];
  };
  for (int64_t column = 0; column <= columns && !classes.empty() && builder_.within_limits(); ++column) {
    const bool full = max >= 0 && column >= max;
    if (reached[column] && !full)
      emit_others(column == 0 ? at[0] : emit_comma(at[column], mode), loop_state(next_column(column)));
    if (!loops[column]) continue;
    close(looping[column], column);
    if (full) continue;
    // Under a maximum every member counts, under a minimum no further one does; under both none comes.
    if (max >= 0 && min > 0) continue;
    emit_others(emit_comma(looping[column], mode), max >= 0 ? loop_state(next_column(column)) : looping[column]);
  }
}

}  // namespace warpweave::grammar
