// The body of /v1/messages (Anthropic's shape) as a chat request.
#include <array>
#include <utility>

#include <fmt/format.h>

#include "server/api/body_rewriter.h"
#include "server/api/limits.h"
#include "server/api/messages_request.h"

namespace warpweave::server {
namespace {

constexpr std::string_view kText[] = {"text"};
constexpr std::string_view kBlockFieldsWithoutEffect[] = {"cache_control", "citations"};
// Calls are streamed as they are written, asked for or not.
constexpr std::string_view kToolFieldsWithoutEffect[] = {"cache_control", "citations", "eager_input_streaming"};

// What one message's blocks become: tool results are messages of their own, before the rest.
class Blocks {
 public:
  Blocks(std::string role, Json* messages) : role_(std::move(role)), messages_(*messages) {}

  // A block of the message that `of` reads.
  Status add(const FieldReader& of, const Json& block, const std::string& field) {
    WW_RETURN_IF_ERROR(require_object(block, field));
    FieldReader reader = of.inside(block, field + ".");
    std::string type;
    reader.get("type", TextLimit{kMaxRidBytes}, &type);
    if (type == "text") {
      std::string text;
      reader.get("text", TextLimit{kMaxTextBytes}, &text);
      content_ += text;
    } else if (type == "tool_use" && role_ == "assistant") {
      read_call(&reader);
    } else if (type == "tool_result" && role_ == "user") {
      WW_RETURN_IF_ERROR(read_result(&reader));
    } else if (type == "thinking" && role_ == "assistant") {
      reader.get("thinking", TextLimit{kMaxTextBytes}, &reasoning_);
      reader.find("signature");
    } else if (type == "redacted_thinking" && role_ == "assistant") {
      std::string sealed;  // by who made it: no model here can read it
      reader.get("data", TextLimit{kMaxTextBytes}, &sealed);
    } else {
      return Status::unsupported(
          fmt::format("{}.type is \"{}\", which a message of the role {} cannot hold here; there are text, "
                      "tool_use, thinking and redacted_thinking (assistant) and tool_result (user).",
                      field, type, role_),
          field + ".type");
    }
    reader.refuse_unknown(kBlockFieldsWithoutEffect);
    return reader.status();
  }

  void end() {
    const bool only_results = content_.empty() && calls_.empty() && reasoning_.empty() && had_results_;
    if (only_results) return;
    Json message{{"role", role_}};
    message["content"] = content_.empty() && !calls_.empty() ? Json() : Json(content_);
    if (!reasoning_.empty()) message["reasoning_content"] = reasoning_;
    if (!calls_.empty()) message["tool_calls"] = std::move(calls_);
    messages_.push_back(std::move(message));
  }

 private:
  void read_call(FieldReader* reader) {
    std::string id, name;
    reader->get("id", TextLimit{kMaxRidBytes}, &id);
    reader->get("name", TextLimit{kMaxRidBytes}, &name);
    const Json* input = reader->find("input");
    if (input && !input->is_object()) reader->fail(wrong_type(reader->path("input"), "an object", *input));
    calls_.push_back(chat_tool_call(id, name, input ? input->dump() : "{}"));
  }

  Status read_result(FieldReader* reader) {
    std::string id;
    bool failed = false;
    reader->get("tool_use_id", TextLimit{kMaxRidBytes}, &id);
    reader->get("is_error", &failed);
    WW_ASSIGN_OR_RETURN(std::string text, read_text_parts(*reader, "content", kText));
    if (failed) text = "Error: " + text;
    messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(text)}});
    had_results_ = true;
    return {};
  }

  const std::string role_;
  Json& messages_;
  std::string content_, reasoning_;
  Json calls_ = Json::array();
  bool had_results_ = false;
};

Status add_message(const FieldReader& body, const Json& message, const std::string& field, Json* out) {
  WW_RETURN_IF_ERROR(require_object(message, field));
  FieldReader reader = body.inside(message, field + ".");
  std::string role;
  reader.get("role", TextLimit{kMaxRidBytes}, &role);
  const Json* content = reader.find("content");
  reader.refuse_unknown();
  WW_RETURN_IF_ERROR(reader.status());
  if (role != "user" && role != "assistant" && role != "system") {
    return Status::invalid_argument(
        fmt::format("{}.role is \"{}\", but must be user or assistant.", field, role.substr(0, 60)), field + ".role");
  }
  if (!content) {
    return Status::invalid_argument(fmt::format("{}.content is missing; send a text or a list of blocks.", field),
                                    field + ".content");
  }
  if (content->is_string()) {
    out->push_back({{"role", role}, {"content", *content}});
    return {};
  }
  if (!content->is_array() || content->size() > kMaxContentParts) {
    return wrong_type(field + ".content", "a text or a list of blocks", *content);
  }
  Blocks blocks(role, out);
  for (size_t i = 0; i < content->size(); ++i) {
    WW_RETURN_IF_ERROR(blocks.add(reader, (*content)[i], fmt::format("{}.content[{}]", field, i)));
  }
  blocks.end();
  return {};
}

Status read_messages(const FieldReader& reader, Json* chat) {
  Json messages = Json::array();
  WW_ASSIGN_OR_RETURN(const std::string system, read_text_parts(reader, "system", kText));
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  const Json* given = reader.find("messages");
  if (!given || !given->is_array() || given->empty() || given->size() > kMaxMessages) {
    return Status::invalid_argument(fmt::format("messages must be a list of 1 to {} messages.", kMaxMessages),
                                    "messages");
  }
  for (size_t i = 0; i < given->size(); ++i) {
    WW_RETURN_IF_ERROR(add_message(reader, (*given)[i], fmt::format("messages[{}]", i), &messages));
  }
  const bool goes_on = is_text(messages.back()["role"], "assistant") && messages.back()["content"].is_string() &&
                       !messages.back().contains("tool_calls");
  if (goes_on) (*chat)["continue_final_message"] = true;  // a prefill, as Anthropic takes it
  (*chat)["messages"] = std::move(messages);
  return {};
}

Status read_tools(const FieldReader& reader, Json* chat) {
  const Json* tools = reader.find("tools");
  if (!tools) return {};
  if (!tools->is_array() || tools->size() > kMaxTools) return wrong_type("tools", "a list of tools", *tools);
  Json list = Json::array();
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string field = fmt::format("tools[{}]", i);
    WW_RETURN_IF_ERROR(require_object((*tools)[i], field));
    FieldReader tool = reader.inside((*tools)[i], field + ".");
    std::string type = "custom";
    tool.get("type", TextLimit{kMaxRidBytes}, &type);
    if (type != "custom") {
      return Status::unsupported(
          fmt::format("{}.type is \"{}\", but this server runs no tools of its own; send name and input_schema.", field,
                      type),
          field + ".type");
    }
    list.push_back(
        chat_tool({tool.find("name"), tool.find("description"), tool.find("input_schema"), tool.find("strict")}));
    tool.refuse_unknown(kToolFieldsWithoutEffect);
    WW_RETURN_IF_ERROR(tool.status());
  }
  (*chat)["tools"] = std::move(list);
  return {};
}

Status read_tool_choice(const FieldReader& reader, Json* chat) {
  const Json* choice = reader.find("tool_choice");
  if (!choice) return {};
  WW_RETURN_IF_ERROR(require_object(*choice, "tool_choice"));
  FieldReader fields = reader.inside(*choice, "tool_choice.");
  std::string type, name;
  bool one_call = false;
  fields.get("type", TextLimit{kMaxRidBytes}, &type);
  fields.get("name", TextLimit{kMaxRidBytes}, &name);
  fields.get("disable_parallel_tool_use", &one_call);
  fields.refuse_unknown();
  WW_RETURN_IF_ERROR(fields.status());
  if (one_call) (*chat)["parallel_tool_calls"] = false;
  if (type == "tool" && name.empty()) {
    return Status::invalid_argument("tool_choice.name is missing; name the tool, or send the type any.",
                                    "tool_choice.name");
  }
  if (type == "tool") {
    (*chat)["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
  } else if (type == "auto" || type == "any" || type == "none") {
    (*chat)["tool_choice"] = type == "any" ? "required" : type;
  } else {
    return Status::invalid_argument(
        fmt::format("tool_choice.type is \"{}\", but must be auto, any, tool or none.", type), "tool_choice.type");
  }
  return {};
}

// Whether to think is the template's to know; how much is the model's.
Status read_thinking(const FieldReader& reader, Json* chat) {
  const Json* thinking = reader.find("thinking");
  if (!thinking) return {};
  WW_RETURN_IF_ERROR(require_object(*thinking, "thinking"));
  FieldReader fields = reader.inside(*thinking, "thinking.");
  std::string type;
  fields.get("type", TextLimit{kMaxRidBytes}, &type);
  constexpr std::string_view kWithoutEffect[] = {"budget_tokens", "display"};
  fields.refuse_unknown(kWithoutEffect);
  WW_RETURN_IF_ERROR(fields.status());
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return Status::invalid_argument("thinking.type must be enabled, disabled or adaptive.", "thinking.type");
  }
  if (type != "adaptive") {
    (*chat)["chat_template_kwargs"] = {{"enable_thinking", type == "enabled"}, {"thinking", type == "enabled"}};
  }
  return {};
}

// The member `name` of what `reader` reads.
Status set_format(const FieldReader& reader, std::string_view name, Json* chat) {
  const Json& format = *reader.find(name);
  const std::string field = reader.path(name);
  WW_RETURN_IF_ERROR(require_object(format, field));
  FieldReader fields = reader.inside(format, field + ".");
  std::string type;
  fields.get("type", TextLimit{kMaxRidBytes}, &type);
  const Json* schema = fields.find("schema");
  fields.refuse_unknown();
  WW_RETURN_IF_ERROR(fields.status());
  if (type != "json_schema" || schema == nullptr) {
    return Status::invalid_argument(fmt::format(R"({} must be {{"type": "json_schema", "schema": {{...}}}}.)", field), field);
  }
  (*chat)["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "output"}, {"schema", *schema}}}};
  return {};
}

// output_config.format, or output_format as it was called before; output_config.effort.
Status read_output_config(const FieldReader& reader, Json* chat) {
  const Json* format = reader.find("output_format");
  if (format) WW_RETURN_IF_ERROR(set_format(reader, "output_format", chat));
  const Json* config = reader.find("output_config");
  if (!config) return {};
  WW_RETURN_IF_ERROR(require_object(*config, "output_config"));
  FieldReader fields = reader.inside(*config, "output_config.");
  if (const Json* effort = fields.find("effort")) (*chat)["reasoning_effort"] = *effort;
  if (fields.find("format")) {
    if (format) {
      return Status::invalid_argument("output_format and output_config.format ask for the same; send one of them.",
                                      "output_format");
    }
    WW_RETURN_IF_ERROR(set_format(fields, "format", chat));
  }
  fields.refuse_unknown();
  return fields.status();
}

// What agents send with every request may ask for nothing: no servers, no edits, or to keep all thinking.
Status refuse_what_is_not_here(const FieldReader& reader) {
  const Json* servers = reader.find("mcp_servers");
  if (servers && !servers->empty()) {
    return Status::unsupported("mcp_servers is not supported: this server runs no tools of its own; leave it out.",
                               "mcp_servers");
  }
  if (reader.find("container")) {
    return Status::unsupported("container is not supported: this server runs no code; leave it out.", "container");
  }
  const Json* management = reader.find("context_management");
  if (!management) return {};
  WW_RETURN_IF_ERROR(require_object(*management, "context_management"));
  FieldReader fields = reader.inside(*management, "context_management.");
  const Json* edits = fields.find("edits");
  fields.refuse_unknown();
  WW_RETURN_IF_ERROR(fields.status());
  const Json keeps_all{{"type", "clear_thinking_20251015"}, {"keep", "all"}};
  if (edits &&
      !(edits->is_array() && std::ranges::all_of(*edits, [&](const Json& edit) { return edit == keeps_all; }))) {
    return Status::unsupported(
        "context_management.edits is not supported: messages are read as they come; leave it out.",
        "context_management.edits");
  }
  return {};
}

}  // namespace

Result<OwnedJson> chat_of_messages(const Api& api, const Json& body, bool needs_length) {
  FieldReader reader(body, {}, unknown_fields(api));
  OwnedJson chat(Json::object());
  constexpr std::string_view kSame[] = {"model", "max_tokens", "temperature", "top_p", "top_k", "stream"};
  copy_fields(reader, kSame, &chat.value);
  if (needs_length && !reader.find("max_tokens")) {
    return Status::invalid_argument("max_tokens is missing; say how long the answer may be.", "max_tokens");
  }
  const TextLimit stops{kMaxStopBytes, kMaxStopStrings};
  if (std::vector<std::string> stop; reader.get_filled("stop_sequences", stops, &stop)) {
    chat.value["stop"] = std::move(stop);
  }
  WW_RETURN_IF_ERROR(reader.status());
  WW_RETURN_IF_ERROR(read_messages(reader, &chat.value));
  WW_RETURN_IF_ERROR(read_tools(reader, &chat.value));
  WW_RETURN_IF_ERROR(read_tool_choice(reader, &chat.value));
  WW_RETURN_IF_ERROR(read_thinking(reader, &chat.value));
  WW_RETURN_IF_ERROR(read_output_config(reader, &chat.value));
  WW_RETURN_IF_ERROR(refuse_what_is_not_here(reader));
  constexpr std::string_view kWithoutEffect[] = {"metadata", "service_tier", "inference_geo", "cache_control"};
  reader.refuse_unknown(kWithoutEffect);
  WW_RETURN_IF_ERROR(reader.status());
  return chat;
}

}  // namespace warpweave::server
