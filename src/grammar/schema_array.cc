// Arrays: items by position, counts, contains, and elements that must differ.
#include <algorithm>

#include "grammar/schema_compiler.h"

namespace warpweave::grammar {
namespace {

constexpr int64_t kNoArrayIsLonger = int64_t{1} << 22;

const Json* find(const Json& node, const char* key) { return SchemaDocument::find(node, key); }

// prefixItems and items of 2020-12, or items as a list and additionalItems of the drafts before.
struct Items {
  const Json* prefix = nullptr;
  const Json* rest = nullptr;
};

Items items_of(const Json& node) {
  Items items{find(node, "prefixItems"), find(node, "items")};
  if (items.rest != nullptr && items.rest->is_array()) items = {items.rest, find(node, "additionalItems")};
  return items;
}

size_t prefix_length(const SchemaLeaf& leaf) {
  size_t length = 0;
  for (const Json* node : leaf) {
    if (const Json* prefix = items_of(*node).prefix) length = std::max(length, prefix->size());
  }
  return length;
}

}  // namespace

SchemaSet SchemaCompiler::item_set(const SchemaLeaf& leaf, const SchemaSet& origin, size_t index) {
  SchemaSet set;
  bool evaluated = false;
  const Json* unevaluated = nullptr;
  for (const Json* node : leaf) {
    const Items items = items_of(*node);
    const bool in_prefix = items.prefix != nullptr && index < items.prefix->size();
    const Json* schema = in_prefix ? &(*items.prefix)[index] : items.rest;
    if (schema != nullptr) {
      set.push_back({schema});
      evaluated = evaluated || !document_.is_made(node);
    }
    if (const Json* last = find(*node, "unevaluatedItems");
        last != nullptr && is_origin(node, origin, "unevaluatedItems"))
      unevaluated = last;
  }
  if (unevaluated != nullptr && !evaluated) set.push_back({unevaluated});
  return set;
}

// All JSON texts of a set that allows only values of enum, const and the like.
std::optional<std::vector<std::string>> SchemaCompiler::finite_values(const SchemaSet& set) {
  const Result<std::vector<SchemaLeaf>> leaves = expander_.expand(set);
  if (!leaves.ok()) return std::nullopt;
  std::vector<std::string> all;
  for (const SchemaLeaf& leaf : *leaves) {
    if (const std::optional<std::vector<std::string>> texts = literals_of(leaf)) {
      all.insert(all.end(), texts->begin(), texts->end());
      continue;
    }
    for (const char* type : {"string", "integer", "number", "array", "object"}) {
      if (std::all_of(leaf.begin(), leaf.end(), [&](const Json* n) { return SchemaDocument::has_type(*n, type); }))
        return std::nullopt;
    }
    const auto has = [&](const char* type) {
      return std::all_of(leaf.begin(), leaf.end(), [&](const Json* n) { return SchemaDocument::has_type(*n, type); });
    };
    if (has("null")) all.emplace_back("null");
    if (has("boolean")) all.insert(all.end(), {"true", "false"});
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

std::optional<SchemaCompiler::ArrayRules> SchemaCompiler::array_rules(const SchemaLeaf& leaf) {
  ArrayRules rules;
  for (const Json* node : leaf) {
    rules.min = std::max(rules.min, whole_number(*node, "minItems", 0));
    const int64_t most = whole_number(*node, "maxItems", -1);
    if (most >= 0) rules.max = rules.max < 0 ? most : std::min(rules.max, most);
    if (const Json* flag = find(*node, "uniqueItems")) rules.unique = rules.unique || flag->get<bool>();
    const Json* contained = find(*node, "contains");
    if (contained == nullptr) continue;
    const int64_t least = whole_number(*node, "minContains", 1);
    if (find(*node, "maxContains") != nullptr || least > 1 || (rules.contains != nullptr && least > 0)) {
      fail(Status::unsupported("maxContains, minContains above 1 and two contains for one array are not supported"));
      return std::nullopt;
    }
    if (least == 1) rules.contains = contained;
  }
  return rules;
}

void SchemaCompiler::limit_unique(StateId open, const SchemaLeaf& leaf, const SchemaSet& origin, ArrayRules& rules) {
  UniqueElements elements;
  if (prefix_length(leaf) == 0) {
    if (std::optional<std::vector<std::string>> values = finite_values(item_set(leaf, origin, 0))) {
      elements.all = std::move(*values);
      const auto count = static_cast<int64_t>(elements.all.size());
      rules.max = rules.max < 0 ? count : std::min(rules.max, count);
      if (rules.min > rules.max) return;
    }
  }
  builder_.set_unique(open, std::move(elements));
}

namespace {

// One row of states without and one with the contained element; a column per element so far.
struct ArrayColumn {
  StateId state[2] = {0, 0};
  bool made[2] = {false, false};

  StateId at(int found, GrammarBuilder& builder) {
    if (!made[found]) state[found] = builder.add_state();
    made[found] = true;
    return state[found];
  }
};

}  // namespace

void SchemaCompiler::emit_array(StateId from, StateId end, const SchemaLeaf& leaf, const SchemaSet& origin, Mode mode) {
  std::optional<ArrayRules> rules = array_rules(leaf);
  if (!rules) return;
  if (rules->max > kNoArrayIsLonger) rules->max = -1;
  if (rules->max >= 0 && rules->min > rules->max) return;
  if (rules->max == 0 || (rules->max == 1 && rules->min <= 1)) rules->unique = false;
  const Mode inner{mode.one_spelling || rules->unique};
  const StateId open = emit_open(from, '[', inner);
  if (rules->unique) limit_unique(open, leaf, origin, *rules);
  const auto [min, max, unique, contains] = *rules;
  if (max >= 0 && min > max) return;
  const int64_t columns = max >= 0 ? max : std::max(min, static_cast<int64_t>(prefix_length(leaf)));
  ArrayColumn now;
  now.state[contains == nullptr] = open;
  now.made[contains == nullptr] = true;
  for (int64_t count = 0; builder_.within_limits(); ++count) {
    if (count >= min && now.made[1])
      builder_.add_empty(builder_.emit_text(count > 0 ? emit_spaces(now.state[1], inner) : now.state[1], "]"), end);
    if (max >= 0 && count == max) return;
    const bool last = max < 0 && count == columns;  // loops
    const SchemaSet items = item_set(leaf, origin, static_cast<size_t>(count));
    ArrayColumn next;
    std::vector<std::tuple<StateId, SchemaSet, int>> steps;
    for (const int found : {0, 1}) {
      if (!now.made[found]) continue;
      const StateId at = count == 0 ? now.state[found] : emit_comma(now.state[found], inner);
      if (!is_never(items)) steps.emplace_back(at, items, found);
      if (found == 0) {
        SchemaSet both = items;
        both.push_back({contains});
        steps.emplace_back(at, std::move(both), 1);
      }
    }
    for (auto& [at, set, found] : steps) emit_inner(at, set, next.at(found, builder_), inner);
    if (last) {
      // From here on every element is like this one.
      for (const int found : {0, 1}) {
        if (!next.made[found]) continue;
        const StateId again = emit_comma(next.state[found], inner);
        const SchemaSet more = item_set(leaf, origin, static_cast<size_t>(count) + 1);
        emit_inner(again, more, next.state[found], inner);
        if (found == 1) builder_.add_empty(builder_.emit_text(emit_spaces(next.state[1], inner), "]"), end);
        if (found == 0) {
          SchemaSet both = more;
          both.push_back({contains});
          emit_inner(again, both, next.at(1, builder_), inner);
        }
      }
      return;
    }
    now = next;
  }
}

}  // namespace warpweave::grammar
