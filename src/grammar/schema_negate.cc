// The ways to break a schema, one per keyword. Ways that no grammar can say are left out.
#include <algorithm>

#include "grammar/schema_expand.h"

namespace warpweave::grammar {
namespace {

const Json* find(const Json& node, const char* key) { return SchemaDocument::find(node, key); }

Json other_types(const Json& types) {
  Json out = Json::array();
  const Json list = types.is_array() ? types : Json::array({types});
  const auto has = [&](const char* type) { return std::find(list.begin(), list.end(), type) != list.end(); };
  for (const char* type : {"null", "boolean", "string", "array", "object"}) {
    if (!has(type)) out.push_back(type);
  }
  if (!has("number") && !has("integer")) out.push_back("number");
  return out;
}

}  // namespace

SchemaExpander::Options SchemaExpander::negate(const Json& node) {
  Options out;
  if (!node.is_object()) return out;
  if (document_.is_reference(node)) {
    const Result<const Json*> target = document_.resolve(node);
    if (!target.ok()) {
      status_ = target.status();
      return out;
    }
    out.push_back({{*target, true}});
  }
  if (const Json* types = find(node, "type")) {
    Json others = other_types(*types);
    if (!others.empty()) out.push_back(made({{"type", std::move(others)}}));
  }
  negate_values(node, &out);
  negate_object(node, &out);
  negate_bounds(node, &out);
  negate_logic(node, &out);
  return out;
}

void SchemaExpander::negate_logic(const Json& node, Options* out) {
  if (const Json* all = find(node, "allOf")) {
    for (const Json& part : *all) out->push_back({{&part, true}});
  }
  if (const Json* any = find(node, "anyOf")) {
    SchemaSet none;
    for (const Json& part : *any) none.push_back({&part, true});
    out->push_back(std::move(none));
  }
  if (const Json* one = find(node, "oneOf")) {
    SchemaSet none;
    for (const Json& part : *one) none.push_back({&part, true});
    out->push_back(std::move(none));
    for (size_t i = 0; i < one->size(); ++i) {
      for (size_t k = 0; k < i; ++k) out->push_back({{&(*one)[i]}, {&(*one)[k]}});
    }
  }
  if (const Json* inner = find(node, "not")) out->push_back({{inner}});
  if (const Json* condition = find(node, "if")) {
    if (const Json* then = find(node, "then")) out->push_back({{condition}, {then, true}});
    if (const Json* otherwise = find(node, "else")) out->push_back({{condition, true}, {otherwise, true}});
  }
}

void SchemaExpander::negate_values(const Json& node, Options* out) {
  Json values;
  if (const Json* list = find(node, "enum")) values = *list;
  if (const Json* constant = find(node, "const")) values = Json::array({*constant});
  if (values.empty()) return;
  Json types = Json::array(), strings = Json::array();
  bool has_true = false, has_false = false;
  for (const Json& value : values) {
    types.push_back(value.is_number() ? "number" : SchemaDocument::type_of(value));
    if (value.is_string()) strings.push_back(value);
    if (value.is_boolean()) (value.get<bool>() ? has_true : has_false) = true;
  }
  Json others = other_types(types);
  if (!others.empty()) out->push_back(made({{"type", std::move(others)}}));
  if (!strings.empty()) out->push_back(made({{"type", "string"}, {kNotStrings, std::move(strings)}}));
  if (has_true != has_false) out->push_back(made({{"const", has_false}}));
  if (values.size() == 1 && values[0].is_number()) {
    out->push_back(made({{"type", "number"}, {"exclusiveMaximum", values[0]}}));
    out->push_back(made({{"type", "number"}, {"exclusiveMinimum", values[0]}}));
  }
}

void SchemaExpander::negate_object(const Json& node, Options* out) {
  if (const Json* required = find(node, "required")) {
    for (const Json& name : *required) {
      out->push_back(made({{"type", "object"}, {"properties", {{name.get<std::string>(), false}}}}));
    }
  }
  if (const Json* properties = find(node, "properties")) {
    for (const auto& [name, schema] : properties->items()) {
      if (schema.is_boolean() && schema.get<bool>()) continue;
      out->push_back(
          made({{"type", "object"}, {"required", Json::array({name})}, {"properties", {{name, {{"not", schema}}}}}}));
    }
  }
  for (const char* keyword : {"dependentRequired", "dependencies"}) {
    const Json* dependencies = find(node, keyword);
    if (dependencies == nullptr) continue;
    for (const auto& [name, names] : dependencies->items()) {
      if (!names.is_array()) continue;
      for (const Json& missing : names) {
        out->push_back(made({{"type", "object"},
                             {"required", Json::array({name})},
                             {"properties", {{missing.get<std::string>(), false}}}}));
      }
    }
  }
}

void SchemaExpander::negate_bounds(const Json& node, Options* out) {
  struct Counted {
    const char *least, *most, *type;
  };
  for (const Counted& c : {Counted{"minLength", "maxLength", "string"}, Counted{"minItems", "maxItems", "array"},
                           Counted{"minProperties", "maxProperties", "object"}}) {
    const Json *least = find(node, c.least), *most = find(node, c.most);
    if (least != nullptr && least->get<int64_t>() > 0)
      out->push_back(made({{"type", c.type}, {c.most, least->get<int64_t>() - 1}}));
    if (most != nullptr) out->push_back(made({{"type", c.type}, {c.least, most->get<int64_t>() + 1}}));
  }
  if (const Json* text = find(node, "pattern")) out->push_back(made({{"type", "string"}, {kNotPattern, *text}}));
  if (const Json* value = find(node, "minimum"))
    out->push_back(made({{"type", "number"}, {"exclusiveMaximum", *value}}));
  if (const Json* value = find(node, "maximum"))
    out->push_back(made({{"type", "number"}, {"exclusiveMinimum", *value}}));
  if (const Json* value = find(node, "exclusiveMinimum"); value != nullptr && value->is_number()) {
    out->push_back(made({{"type", "number"}, {"maximum", *value}}));
  }
  if (const Json* value = find(node, "exclusiveMaximum"); value != nullptr && value->is_number()) {
    out->push_back(made({{"type", "number"}, {"minimum", *value}}));
  }
  if (const Json* contained = find(node, "contains"); contained != nullptr && find(node, "minContains") == nullptr) {
    out->push_back(made({{"type", "array"}, {"items", {{"not", *contained}}}}));
  }
}

}  // namespace warpweave::grammar
