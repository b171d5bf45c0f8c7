// Whether a value given in a schema (enum, const) is valid against other parts of it.
#include <algorithm>
#include <map>

#include "grammar/schema_document.h"

namespace warpweave::grammar {
namespace {

constexpr int kMaxDepth = 200;

// A text that equal values have in common and no others: numbers by their value, members in the order of their names.
void append_key(const Json& value, std::string* out) {
  if (value.is_number()) {
    const Decimal number = decimal_of_json(value);
    *out += number.negative && !number.is_zero() ? "#-" : "#";
    *out += number.whole + "." + number.fraction;
  } else if (value.is_array()) {
    *out += '[';
    for (const Json& item : value) {
      append_key(item, out);
      *out += ',';
    }
    *out += ']';
  } else if (value.is_object()) {
    std::map<std::string, const Json*> members;
    for (const auto& [name, member] : value.items()) members.emplace(name, &member);
    *out += '{';
    for (const auto& [name, member] : members) {
      append_key(Json(name), out);
      *out += ':';
      append_key(*member, out);
      *out += ',';
    }
    *out += '}';
  } else {
    *out += value.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

std::string key_of(const Json& value) {
  std::string out;
  append_key(value, &out);
  return out;
}

bool same_value(const Json& a, const Json& b) {
  if (a.is_string() && b.is_string()) return a.get_ref<const std::string&>() == b.get_ref<const std::string&>();
  return a.is_string() == b.is_string() && key_of(a) == key_of(b);
}

int64_t whole(const Json* value, int64_t otherwise) {
  return value == nullptr ? otherwise : static_cast<int64_t>(value->get<double>());
}

}  // namespace

// Looked up, not compared one by one: each value of a list of thousands is asked for in that list.
bool SchemaDocument::is_one_of(const Json& list, const Json& value) {
  if (list.size() == 1) return same_value(list[0], value);
  const auto [keys, fresh] = keys_of_lists_.try_emplace(&list);
  if (fresh) {
    for (const Json& item : list) keys->second.insert(key_of(item));
  }
  return keys->second.contains(key_of(value));
}

bool SchemaDocument::valid_number(const Json& node, const Json& value, bool unknown) {
  return number_fits(decimal_of_json(value), number_bounds(node));
}

bool SchemaDocument::valid_string(const Json& node, const std::string& value, bool unknown) {
  const auto length = static_cast<int64_t>(count_characters(value));
  if (length < whole(find(node, "minLength"), 0) || length > whole(find(node, "maxLength"), INT64_MAX)) return false;
  if (const Json* text = find(node, "pattern")) {
    const Result<const CharDfa*> dfa = pattern(text->get<std::string>());
    if (!dfa.ok() ? !unknown : !(*dfa)->matches(value)) return false;
  }
  if (const Json* texts = find(node, kNotStrings); texts != nullptr && is_one_of(*texts, value)) {
    return false;
  }
  if (const Json* text = find(node, kNotPattern)) {
    const Result<const CharDfa*> dfa = pattern(text->get<std::string>());
    if (!dfa.ok() ? !unknown : (*dfa)->matches(value)) return false;
  }
  if (const Json* name = find(node, "format")) {
    const Result<const CharDfa*> dfa = format(name->get<std::string>());
    // The automata of formats leave out rare valid texts.
    if (!dfa.ok() || (*dfa != nullptr && !(*dfa)->matches(value))) return unknown;
  }
  return true;
}

bool SchemaDocument::valid_array(const Json& node, const Json& value, bool unknown, int depth) {
  const auto size = static_cast<int64_t>(value.size());
  if (size < whole(find(node, "minItems"), 0) || size > whole(find(node, "maxItems"), INT64_MAX)) return false;
  const Json* items = find(node, "items");
  const Json* prefix = find(node, "prefixItems");
  if (items != nullptr && items->is_array()) prefix = items, items = find(node, "additionalItems");
  int64_t contained = 0;
  const Json* contains = find(node, "contains");
  for (size_t i = 0; i < value.size(); ++i) {
    const Json* item = prefix != nullptr && i < prefix->size() ? &(*prefix)[i] : items;
    if (item != nullptr && !valid(*item, value[i], unknown, depth + 1)) return false;
    if (contains != nullptr && valid(*contains, value[i], unknown, depth + 1)) ++contained;
  }
  if (contains != nullptr &&
      (contained < whole(find(node, "minContains"), 1) || contained > whole(find(node, "maxContains"), INT64_MAX)))
    return false;
  if (const Json* unique = find(node, "uniqueItems"); unique != nullptr && unique->get<bool>()) {
    std::unordered_set<std::string> keys;
    for (const Json& item : value) {
      if (!keys.insert(key_of(item)).second) return false;
    }
  }
  return find(node, "unevaluatedItems") == nullptr || unknown;
}

bool SchemaDocument::valid_object(const Json& node, const Json& value, bool unknown, int depth) {
  const auto size = static_cast<int64_t>(value.size());
  if (size < whole(find(node, "minProperties"), 0) || size > whole(find(node, "maxProperties"), INT64_MAX))
    return false;
  if (const Json* required = find(node, "required")) {
    for (const Json& name : *required) {
      if (!value.contains(name.get<std::string>())) return false;
    }
  }
  for (const auto& [name, member] : value.items()) {
    bool known = false;
    if (const Json* properties = find(node, "properties")) {
      if (const Json* property = find(*properties, name.c_str())) {
        known = true;
        if (!valid(*property, member, unknown, depth + 1)) return false;
      }
    }
    if (const Json* patterns = find(node, "patternProperties")) {
      for (const auto& [text, schema] : patterns->items()) {
        const Result<const CharDfa*> dfa = pattern(text);
        if (!dfa.ok()) return unknown;
        if (!(*dfa)->matches(name)) continue;
        known = true;
        if (!valid(schema, member, unknown, depth + 1)) return false;
      }
    }
    const Json* additional = find(node, "additionalProperties");
    if (!known && additional != nullptr && !valid(*additional, member, unknown, depth + 1)) return false;
    const Json* names = find(node, "propertyNames");
    if (names != nullptr && !valid(*names, Json(name), unknown, depth + 1)) return false;
  }
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const Json* dependencies = find(node, keyword);
    if (dependencies == nullptr) continue;
    for (const auto& [name, what] : dependencies->items()) {
      if (!value.contains(name)) continue;
      if (!what.is_array()) {
        if (!valid(what, value, unknown, depth + 1)) return false;
      } else if (!std::all_of(what.begin(), what.end(),
                              [&](const Json& n) { return n.is_string() && value.contains(n.get<std::string>()); })) {
        return false;
      }
    }
  }
  return find(node, "unevaluatedProperties") == nullptr || unknown;
}

bool SchemaDocument::valid_applicators(const Json& node, const Json& value, bool unknown, int depth) {
  const auto holds = [&](const Json& schema, bool otherwise) { return valid(schema, value, otherwise, depth + 1); };
  if (const Json* all = find(node, "allOf")) {
    for (const Json& part : *all) {
      if (!holds(part, unknown)) return false;
    }
  }
  if (const Json* any = find(node, "anyOf")) {
    if (std::none_of(any->begin(), any->end(), [&](const Json& part) { return holds(part, unknown); })) return false;
  }
  if (const Json* one = find(node, "oneOf")) {
    const auto sure = std::count_if(one->begin(), one->end(), [&](const Json& part) { return holds(part, false); });
    const auto maybe = std::count_if(one->begin(), one->end(), [&](const Json& part) { return holds(part, true); });
    if (sure != maybe) return unknown;
    if (sure != 1) return false;
  }
  if (const Json* none = find(node, "not"); none != nullptr && holds(*none, !unknown)) return false;
  if (const Json* condition = find(node, "if")) {
    const bool sure = holds(*condition, false), maybe = holds(*condition, true);
    if (sure != maybe) return unknown;
    const Json* then = find(node, sure ? "then" : "else");
    if (then != nullptr && !holds(*then, unknown)) return false;
  }
  return true;
}

bool SchemaDocument::valid(const Json& node, const Json& value, bool unknown, int depth) {
  if (node.is_boolean()) return node.get<bool>();
  if (!node.is_object() || depth > kMaxDepth) return unknown;
  if (is_reference(node)) {
    const Result<const Json*> target = resolve(node);
    if (!target.ok()) return unknown;
    if (!valid(**target, value, unknown, depth + 1)) return false;
  }
  const std::string_view type = type_of(value);
  if (!has_type(node, type)) return false;
  if (const Json* constant = find(node, "const"); constant != nullptr && !same_value(*constant, value)) return false;
  if (const Json* values = find(node, "enum"); values != nullptr && !is_one_of(*values, value)) return false;
  if (value.is_number() && !valid_number(node, value, unknown)) return false;
  if (value.is_string() && !valid_string(node, value.get<std::string>(), unknown)) return false;
  if (value.is_array() && !valid_array(node, value, unknown, depth)) return false;
  if (value.is_object() && !valid_object(node, value, unknown, depth)) return false;
  return valid_applicators(node, value, unknown, depth);
}

}  // namespace warpweave::grammar
