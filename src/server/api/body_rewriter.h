// Bodies of /v1/messages and /v1/responses to chat requests: what the two share. Not thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/api_state.h"
#include "server/api/field_reader.h"

namespace warpweave::server {

// The member `name`: a text, or a list of parts whose types are among `types` and hold one, joined. Absent: empty.
Result<std::string> read_text_parts(const FieldReader& reader, std::string_view name,
                                    std::span<const std::string_view> types);

// {"type": "function", "function": {...}} of a tool's members; null ones are left out.
struct ToolParts {
  const Json* name;
  const Json* description;
  const Json* parameters;
  const Json* strict;
};
Json chat_tool(const ToolParts& parts);

// {"id", "type": "function", "function": {"name", "arguments"}}
Json chat_tool_call(std::string_view id, std::string_view name, std::string_view arguments);

// Copies members that both requests call the same, where they are there.
void copy_fields(const FieldReader& reader, std::span<const std::string_view> names, Json* chat);

// An object of `value`, or the failure that names `field`.
Status require_object(const Json& value, const std::string& field);

// What a chat request calls something, and what the body that was rewritten to it does.
struct OtherName {
  std::string_view chat;
  std::string_view own;
};

// The failure of such a chat request in the body's own words. Of names that begin at one place the first in `names`
// counts; what begins with a letter is replaced as a whole word.
Status in_own_names(const Status& status, std::span<const OtherName> names);

}  // namespace warpweave::server
