#include "server/api/body_rewriter.h"

#include <algorithm>

#include <fmt/format.h>

#include "server/api/limits.h"

namespace warpweave::server {

Status require_object(const Json& value, const std::string& field) {
  return value.is_object() ? Status() : wrong_type(field, "an object", value);
}

Result<std::string> read_text_parts(const FieldReader& reader, std::string_view name,
                                    std::span<const std::string_view> types) {
  // What other services cache by, and what an answer's parts have beside their text when they come back.
  constexpr std::string_view kWithoutEffect[] = {"cache_control", "citations", "annotations", "logprobs"};
  const Json* const value = reader.find(name);
  const std::string field = reader.path(name);
  if (value == nullptr) return std::string();
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array() || value->size() > kMaxContentParts) {
    return wrong_type(field, fmt::format("a text or a list of at most {} parts", kMaxContentParts), *value);
  }
  std::string text;
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string part_field = fmt::format("{}[{}]", field, i);
    WW_RETURN_IF_ERROR(require_object((*value)[i], part_field));
    FieldReader part = reader.inside((*value)[i], part_field + ".");
    std::string type, piece;
    part.get("type", TextLimit{kMaxRidBytes}, &type);
    if (std::find(types.begin(), types.end(), type) == types.end()) {
      return Status::unsupported(fmt::format("{}.type is \"{}\", but must be one of {}: this server takes text.",
                                             part_field, type, fmt::join(types, ", ")),
                                 part_field + ".type");
    }
    part.get("text", TextLimit{kMaxTextBytes}, &piece);
    part.refuse_unknown(kWithoutEffect);
    WW_RETURN_IF_ERROR(part.status());
    text += piece;
  }
  return text;
}

Json chat_tool(const ToolParts& parts) {
  Json function = Json::object();
  const auto add = [&](const char* name, const Json* value) {
    if (value) function[name] = *value;
  };
  add("name", parts.name);
  add("description", parts.description);
  add("parameters", parts.parameters);
  add("strict", parts.strict);
  return {{"type", "function"}, {"function", std::move(function)}};
}

Json chat_tool_call(std::string_view id, std::string_view name, std::string_view arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

void copy_fields(const FieldReader& reader, std::span<const std::string_view> names, Json* chat) {
  for (const std::string_view name : names) {
    if (const Json* value = reader.find(name)) (*chat)[std::string(name)] = *value;
  }
}

namespace {

bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }

bool stands_at(std::string_view text, size_t at, std::string_view name) {
  if (!text.substr(at).starts_with(name)) return false;
  const size_t end = at + name.size();
  if (is_word(name.front()) && at > 0 && is_word(text[at - 1])) return false;
  return !is_word(name.back()) || end == text.size() || !is_word(text[end]);
}

std::string with_own_names(std::string_view text, std::span<const OtherName> names) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto found =
        std::ranges::find_if(names, [&](const OtherName& name) { return stands_at(text, at, name.chat); });
    if (found == names.end()) {
      out += text[at++];
    } else {
      out += found->own;
      at += found->chat.size();
    }
  }
  return out;
}

}  // namespace

Status in_own_names(const Status& status, std::span<const OtherName> names) {
  return {status.code(), with_own_names(status.message(), names), with_own_names(status.field(), names)};
}

}  // namespace warpweave::server
