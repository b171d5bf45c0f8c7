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

void SchemaCompiler::emit_array(StateId from, StateId end, const SchemaLeaf& leaf, const SchemaSet& origin, Mode mode) {
  int64_t min = 0, max = -1;
  bool unique = false;
  const Json* contains = nullptr;
  for (const Json* node : leaf) {
    min = std::max(min, whole_number(*node, "minItems", 0));
    const int64_t most = whole_number(*node, "maxItems", -1);
    if (most >= 0) max = max < 0 ? most : std::min(max, most);
    if (const Json* flag = find(*node, "uniqueItems")) unique = unique || flag->get<bool>();
    const Json* contained = find(*node, "contains");
    if (contained == nullptr) continue;
    const int64_t least = whole_number(*node, "minContains", 1);
    if (find(*node, "maxContains") != nullptr || least > 1 || (contains != nullptr && least > 0)) {
      return fail(
          Status::unsupported("maxContains, minContains above 1 and two contains for one array are not supported"));
    }
    if (least == 1) contains = contained;
  }
  const auto prefix = static_cast<int64_t>(prefix_length(leaf));
  if (max > kNoArrayIsLonger) max = -1;
  if (max >= 0 && min > max) return;
  if (max == 0 || (max == 1 && min <= 1)) unique = false;
  const Mode inner{mode.one_spelling || unique};
  const StateId open = emit_open(from, '[', inner);
  if (unique) {
    UniqueElements elements;
    if (prefix == 0) {
      if (std::optional<std::vector<std::string>> values = finite_values(item_set(leaf, origin, 0))) {
        elements.all = std::move(*values);
        const auto count = static_cast<int64_t>(elements.all.size());
        max = max < 0 ? count : std::min(max, count);
        if (min > max) return;
      }
    }
    builder_.set_unique(open, std::move(elements));
  }
  // One row of states without and one with the contained element; a column per element so far.
  const int64_t columns = max >= 0 ? max : std::max(min, prefix);
  struct Column {
    StateId state[2] = {0, 0};
    bool made[2] = {false, false};
  };
  Column now;
  now.state[contains == nullptr] = open;
  now.made[contains == nullptr] = true;
  for (int64_t count = 0; builder_.within_limits(); ++count) {
    if (count >= min && now.made[1])
      builder_.add_empty(builder_.emit_text(count > 0 ? emit_spaces(now.state[1], inner) : now.state[1], "]"), end);
    if (max >= 0 && count == max) return;
    const bool last = max < 0 && count == columns;  // loops
    const SchemaSet items = item_set(leaf, origin, static_cast<size_t>(count));
    Column next;
    const auto target = [&](int found) {
      if (!next.made[found]) {
        next.state[found] = builder_.add_state();
        next.made[found] = true;
      }
      return next.state[found];
    };
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
    for (auto& [at, set, found] : steps) emit_inner(at, set, target(found), inner);
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
          emit_inner(again, both, target(1), inner);
        }
      }
      return;
    }
    now = next;
  }
}

}  // namespace warpweave::grammar
