#include "grammar/schema_document.h"

#include <algorithm>
#include <array>

namespace warpweave::grammar {
namespace {

// Keywords and the JSON types their values may have: b(ool) n(umber) s(tring) a(rray) o(bject).
// S: a schema, L: a list of schemas, M: an object of schemas.
struct Keyword {
  std::string_view name;
  std::string_view types;
};
constexpr Keyword kKeywords[] = {
    {"$ref", "s"}, {"$dynamicRef", "s"}, {"$recursiveRef", "s"}, {"$defs", "M"}, {"definitions", "M"},
    {"type", "sa"}, {"enum", "a"}, {"const", ""}, {"allOf", "L"}, {"anyOf", "L"}, {"oneOf", "L"}, {"not", "S"},
    {"if", "S"}, {"then", "S"}, {"else", "S"}, {"properties", "M"}, {"patternProperties", "M"},
    {"additionalProperties", "S"}, {"unevaluatedProperties", "S"}, {"propertyNames", "S"}, {"required", "a"},
    {"minProperties", "n"}, {"maxProperties", "n"}, {"dependentRequired", "o"}, {"dependentSchemas", "M"},
    {"dependencies", "o"}, {"items", "SL"}, {"prefixItems", "L"}, {"additionalItems", "S"},
    {"unevaluatedItems", "S"}, {"contains", "S"}, {"minContains", "n"}, {"maxContains", "n"}, {"minItems", "n"},
    {"maxItems", "n"}, {"uniqueItems", "b"}, {"minLength", "n"}, {"maxLength", "n"}, {"pattern", "s"},
    {"format", "s"}, {"minimum", "n"}, {"maximum", "n"}, {"exclusiveMinimum", "nb"}, {"exclusiveMaximum", "nb"},
    {"multipleOf", "n"},
};
// Of older drafts, with a meaning that nothing here obeys.
constexpr std::string_view kRefused[] = {"extends", "disallow", "divisibleBy"};

const Keyword* find_keyword(std::string_view name) {
  const auto at =
      std::find_if(std::begin(kKeywords), std::end(kKeywords), [&](const Keyword& k) { return k.name == name; });
  return at == std::end(kKeywords) ? nullptr : at;
}

bool has_json_type(const Json& value, std::string_view types) {
  if (types.empty()) return true;
  for (const char t : types) {
    if ((t == 'b' && value.is_boolean()) || (t == 'n' && value.is_number()) || (t == 's' && value.is_string()) ||
        (t == 'o' && value.is_object()) || (t == 'a' && value.is_array()) ||
        (t == 'S' && (value.is_object() || value.is_boolean())) || (t == 'L' && value.is_array()) ||
        (t == 'M' && value.is_object())) {
      return true;
    }
  }
  return false;
}

std::string unescape_pointer(std::string_view part) {
  std::string out;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] == '%' && i + 2 < part.size()) {
      out += static_cast<char>(std::strtol(std::string(part.substr(i + 1, 2)).c_str(), nullptr, 16));
      i += 2;
    } else if (part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1')) {
      out += part[++i] == '0' ? '~' : '/';
    } else {
      out += part[i];
    }
  }
  return out;
}

const Json* follow_pointer(const Json* node, std::string_view pointer) {
  while (!pointer.empty() && node != nullptr) {
    if (pointer[0] != '/') return nullptr;
    const size_t end = std::min(pointer.find('/', 1), pointer.size());
    const std::string part = unescape_pointer(pointer.substr(1, end - 1));
    pointer.remove_prefix(end);
    if (node->is_array()) {
      const bool digits = !part.empty() && part.size() < 9 && part.find_first_not_of("0123456789") == std::string::npos;
      const size_t i = digits ? std::stoul(part) : node->size();
      node = i < node->size() ? &(*node)[i] : nullptr;
    } else {
      node = SchemaDocument::find(*node, part.c_str());
    }
  }
  return node;
}

}  // namespace

SchemaDocument::SchemaDocument(const Json& root, const GrammarLimits& limits)
    : root_(root), limits_(limits), dfa_work_(limits.max_dfa_work), work_(limits.max_schema_work) {
  index(root_, &root_, 0);
}

void SchemaDocument::index(const Json& node, const Json* resource, int depth) {
  if (depth > limits_.max_nesting) return;
  if (node.is_object()) {
    for (const char* key : {"$id", "id"}) {
      const Json* id = find(node, key);
      if (id != nullptr && id->is_string() && !id->get<std::string>().starts_with("#")) resource = &node;
    }
    if (resource != &root_ && is_reference(node)) resource_of_.emplace(&node, resource);
    for (const char* key : {"$id", "id", "$anchor", "$dynamicAnchor"}) {
      const Json* id = find(node, key);
      if (id == nullptr || !id->is_string()) continue;
      std::string name = id->get<std::string>();
      if (key[1] == 'a' || key[1] == 'd') name = "#" + name;
      if (name.size() > 1 && name.back() == '#') name.pop_back();
      if (!name.empty()) by_id_.try_emplace(name, &node);
    }
  }
  if (!node.is_structured()) return;
  for (const Json& child : node) index(child, resource, depth + 1);
}

bool SchemaDocument::is_reference(const Json& node) const {
  return find(node, "$ref") != nullptr || find(node, "$dynamicRef") != nullptr ||
         find(node, "$recursiveRef") != nullptr;
}

Result<const Json*> SchemaDocument::resolve(const Json& node) {
  const Json* ref = find(node, "$ref");
  if (ref == nullptr) ref = find(node, "$dynamicRef");
  if (ref == nullptr) ref = find(node, "$recursiveRef");
  const std::string text = ref->is_string() ? ref->get<std::string>() : "";
  const size_t hash = std::min(text.find('#'), text.size());
  const std::string base = text.substr(0, hash), fragment = text.substr(std::min(hash + 1, text.size()));
  // A reference without a document's name means the document it stands in, which may be a part of this one.
  const auto own = resource_of_.find(&node);
  if (base.empty() && !fragment.empty() && fragment[0] == '/' && own != resource_of_.end()) {
    if (const Json* named = follow_pointer(own->second, fragment)) return named;
  }
  if (text == "#" && own != resource_of_.end()) return own->second;
  const Json* from = &root_;
  if (!base.empty()) {
    auto at = by_id_.find(base);
    if (at == by_id_.end()) {  // a relative name of a part that has an absolute one
      at = std::find_if(by_id_.begin(), by_id_.end(), [&](const auto& entry) {
        return entry.first[0] != '#' && entry.first.ends_with("/" + base);
      });
    }
    from = at == by_id_.end() ? nullptr : at->second;
  }
  if (from != nullptr && !fragment.empty()) {
    if (fragment[0] == '/') {
      from = follow_pointer(from, fragment);
    } else {
      const auto at = by_id_.find("#" + fragment);
      from = at == by_id_.end() ? nullptr : at->second;
    }
  }
  if (from == nullptr) {
    return Status::invalid_argument("$ref \"" + text.substr(0, 200) +
                                    "\" names nothing in this schema; only parts of the schema itself can be referred "
                                    "to, so put what it names under $defs");
  }
  return from;
}

const Json* SchemaDocument::make(Json node) {
  made_.push_back(std::move(node));
  made_set_.insert(&made_.back());
  return &made_.back();
}

Status SchemaDocument::check() { return check_node(root_, "", 0); }

Status SchemaDocument::check_node(const Json& node, const std::string& path, int depth) {
  const auto at = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  if (depth > limits_.max_nesting) {
    return Status::invalid_argument("the schema is nested deeper than " + std::to_string(limits_.max_nesting) +
                                    " levels; use $ref");
  }
  if (node.is_boolean()) return {};
  if (!node.is_object())
    return Status::invalid_argument((path.empty() ? "the schema" : path) + " must be an object or a boolean");
  for (const auto& [key, value] : node.items()) {
    if (std::find(std::begin(kRefused), std::end(kRefused), key) != std::end(kRefused)) {
      return Status::unsupported(at(key) + " (draft 3) is not supported; use the keywords of draft 2020-12");
    }
    const Keyword* keyword = find_keyword(key);
    if (keyword == nullptr) continue;
    if (!has_json_type(value, keyword->types))
      return Status::invalid_argument(at(key) + " has a value of the wrong type");
    if (value.is_number() && key != "minimum" && key != "maximum" && key != "exclusiveMinimum" &&
        key != "exclusiveMaximum" && key != "multipleOf" && key != "const" &&
        (value.get<double>() < 0 || decimal_of_json(value).fraction.size() > 0 || value.get<double>() > 1e18)) {
      return Status::invalid_argument(at(key) + " must be a whole number, not below 0");
    }
    if (key == "multipleOf" && value.get<double>() <= 0) return Status::invalid_argument(at(key) + " must be above 0");
    if (key == "required" && !std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); })) {
      return Status::invalid_argument(at(key) + " must be a list of strings");
    }
    if (key == "enum" && value.empty()) return Status::invalid_argument(at(key) + " is empty; no value can be valid");
    if (keyword->types.find('S') != std::string_view::npos && !value.is_array()) {
      WW_RETURN_IF_ERROR(check_node(value, at(key), depth + 1));
    }
    if (keyword->types.find('L') != std::string_view::npos && value.is_array()) {
      for (size_t i = 0; i < value.size(); ++i)
        WW_RETURN_IF_ERROR(check_node(value[i], at(key) + "[" + std::to_string(i) + "]", depth + 1));
    }
    if (keyword->types == "M" && key[0] != '$' && key != "definitions") {
      for (const auto& [name, child] : value.items())
        WW_RETURN_IF_ERROR(check_node(child, at(key) + "." + name, depth + 1));
    }
    if (key == "type") {
      static constexpr std::string_view kTypes[] = {"null",   "boolean", "integer", "number",
                                                    "string", "array",   "object"};
      for (const Json& type : value.is_array() ? value : Json::array({value})) {
        if (!type.is_string() ||
            std::find(std::begin(kTypes), std::end(kTypes), type.get<std::string>()) == std::end(kTypes)) {
          return Status::invalid_argument(
              at(key) + " must be null, boolean, integer, number, string, array, object or a list of these");
        }
      }
    }
  }
  return {};
}

bool SchemaDocument::only_annotations_besides(const Json& node, const char* keyword) {
  for (const auto& [key, value] : node.items()) {
    if (key == keyword || key == "$defs" || key == "definitions") continue;
    if (find_keyword(key) != nullptr) return false;
  }
  return true;
}

const char* SchemaDocument::type_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null: return "null";
    case Json::value_t::boolean: return "boolean";
    case Json::value_t::string: return "string";
    case Json::value_t::array: return "array";
    case Json::value_t::object: return "object";
    default: return decimal_of_json(value).is_whole() ? "integer" : "number";
  }
}

bool SchemaDocument::has_type(const Json& node, std::string_view type) {
  const Json* types = find(node, "type");
  if (types == nullptr) return true;
  const auto one = [&](const Json& t) { return t == type || (type == "integer" && t == "number"); };
  return types->is_array() ? std::any_of(types->begin(), types->end(), one) : one(*types);
}

Result<const CharDfa*> SchemaDocument::pattern(const std::string& text) {
  if (const auto at = patterns_.find(text); at != patterns_.end()) return &at->second;
  const auto context = [&](const Status& status) {
    return status.with_context("pattern \"" + text.substr(0, 200) + "\"");
  };
  const Result<PatternSyntax> syntax = parse_pattern(text, limits_);
  if (!syntax.ok()) return context(syntax.status());
  Result<CharDfa> dfa = CharDfa::from_regex(syntax->regex, true, limits_, &dfa_work_);
  for (const PatternSyntax::LookAhead& ahead : syntax->look_aheads) {
    if (!dfa.ok()) break;
    const Result<CharDfa> seen = CharDfa::from_regex(ahead.regex, true, limits_, &dfa_work_);
    if (!seen.ok()) return context(seen.status());
    dfa = dfa->intersect(ahead.negated ? seen->complement() : *seen, limits_, &dfa_work_);
  }
  if (!dfa.ok()) return context(dfa.status());
  return &patterns_.emplace(text, std::move(*dfa)).first->second;
}

Decimal decimal_of_json(const Json& number) { return decimal_of(number.dump()); }

NumberBounds number_bounds(const Json& node) {
  NumberBounds bounds;
  const auto tighten = [](std::optional<NumberBounds::Bound>* bound, const Json& value, bool exclusive, int sign) {
    NumberBounds::Bound next{decimal_of_json(value), exclusive};
    const int order = *bound ? sign * compare(next.value, (*bound)->value) : 1;
    if (order > 0 || (order == 0 && exclusive)) *bound = next;
  };
  const Json* exclusive_low = SchemaDocument::find(node, "exclusiveMinimum");
  const Json* exclusive_high = SchemaDocument::find(node, "exclusiveMaximum");
  // Draft 4 has booleans that say how minimum and maximum are meant.
  const auto flag = [](const Json* value) { return value != nullptr && value->is_boolean() && value->get<bool>(); };
  if (const Json* low = SchemaDocument::find(node, "minimum")) tighten(&bounds.low, *low, flag(exclusive_low), 1);
  if (const Json* high = SchemaDocument::find(node, "maximum")) tighten(&bounds.high, *high, flag(exclusive_high), -1);
  if (exclusive_low != nullptr && exclusive_low->is_number()) tighten(&bounds.low, *exclusive_low, true, 1);
  if (exclusive_high != nullptr && exclusive_high->is_number()) tighten(&bounds.high, *exclusive_high, true, -1);
  if (const Json* multiple = SchemaDocument::find(node, "multipleOf")) bounds.multiple_of = decimal_of_json(*multiple);
  return bounds;
}

size_t count_characters(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

}  // namespace warpweave::grammar
