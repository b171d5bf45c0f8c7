// A text that some server wrote, taken apart: /parse_function_call and /separate_reasoning, in SGLang's shapes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "output/formats.h"
#include "server/api/chat_answer.h"
#include "server/api/json_write.h"
#include "server/api/limits.h"
#include "server/api/native.h"

namespace warpweave::server {
namespace {

// The name of a format: the field's, or the server's own where there is none.
Result<std::string> read_format(const FieldReader& reader, std::string_view field, std::string_view own, bool calls) {
  const Json* const value = reader.find(field);
  std::string name(own);
  if (value != nullptr) WW_RETURN_IF_ERROR(read_string(*value, field, kMaxRidBytes, &name));
  if (calls ? output::find_call_format(name) != nullptr : output::find_reasoning_format(name) != nullptr) return name;
  return Status::invalid_argument(
      fmt::format("{} is {}, but must be one of {}.", field, name.empty() ? "missing" : '"' + name.substr(0, 100) + '"',
                  fmt::join(calls ? output::call_format_names() : output::reasoning_format_names(), ", ")),
      std::string(field));
}

Result<CollectedAnswer> take_apart(FieldReader* reader, const output::AnswerFormat& format, bool allow_unknown) {
  std::string text;
  const bool has_text = reader->get("text", TextLimit{kMaxTextBytes}, &text);
  if (!allow_unknown) reader->refuse_unknown();
  WW_RETURN_IF_ERROR(reader->status());
  if (!has_text) return Status::invalid_argument("text is missing; send what is to be taken apart.", "text");
  output::AnswerParser parser(format);
  CollectedAnswer out;
  out.add(parser.feed(text));
  out.add(parser.finish());
  return out;
}

}  // namespace

Result<std::string> parse_function_call(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value);
  WW_ASSIGN_OR_RETURN(const std::string name, read_format(reader, "tool_call_parser", api.call_format(), true));
  WW_ASSIGN_OR_RETURN(const std::shared_ptr<const output::ToolSet> tools, read_tool_set(api, reader));
  WW_ASSIGN_OR_RETURN(
      const CollectedAnswer answer,
      take_apart(&reader, {.reasoning = {}, .calls = name, .tools = tools}, api.context().args.allow_unknown_fields));
  std::string out = "{\"normal_text\":";
  append_json_string(answer.content, &out);
  out += ",\"calls\":[";
  for (size_t i = 0; i < answer.calls.size(); ++i) {
    out += fmt::format("{}{{\"tool_index\":{},\"name\":", i > 0 ? "," : "", i);
    append_json_string(answer.calls[i].name, &out);
    out += ",\"parameters\":";
    append_json_string(answer.calls[i].arguments, &out);
    out += '}';
  }
  return out + "]}";
}

Result<std::string> separate_reasoning(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  FieldReader reader(owned.value);
  WW_ASSIGN_OR_RETURN(const std::string name, read_format(reader, "reasoning_parser", api.reasoning_format(), false));
  const output::AnswerFormat format = {
      .reasoning = name,
      .calls = {},
      .begins_in_reasoning = output::begins_in_reasoning(*output::find_reasoning_format(name), {}),
      .tools = {}};
  WW_ASSIGN_OR_RETURN(const CollectedAnswer answer,
                      take_apart(&reader, format, api.context().args.allow_unknown_fields));
  std::string out = "{\"reasoning_text\":";
  append_json_string(answer.reasoning, &out);
  out += ",\"text\":";
  append_json_string(answer.content, &out);
  return out + "}";
}

}  // namespace warpweave::server
