#include "server/api/responses_request.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/api/body_rewriter.h"
#include "server/api/input_items.h"
#include "server/api/limits.h"
#include "server/api/openai_common.h"

namespace warpweave::server {
namespace {

constexpr std::string_view kTexts[] = {"input_text", "output_text", "text", "summary_text", "reasoning_text"};

// Items to chat messages: calls that follow one another belong to one message of the assistant.
class Items {
 public:
  explicit Items(Json* messages) : messages_(*messages) {}

  // An item of the body's input.
  Status add(const FieldReader& body, const Json& item, const std::string& field) {
    WW_RETURN_IF_ERROR(require_object(item, field));
    FieldReader reader = body.inside(item, field + ".");
    std::string type = "message";
    reader.get("type", TextLimit{kMaxRidBytes}, &type);
    WW_RETURN_IF_ERROR(reader.status());
    if (type == "message") return add_message(&reader, field);
    if (type == "function_call") {
      std::string id, name, arguments;
      reader.get("call_id", TextLimit{kMaxRidBytes}, &id);
      reader.get("name", TextLimit{kMaxRidBytes}, &name);
      reader.get("arguments", TextLimit{kMaxTextBytes}, &arguments);
      WW_RETURN_IF_ERROR(check_size(arguments, field + ".arguments"));
      assistant()["tool_calls"].push_back(chat_tool_call(id, name, arguments));
      return end(&reader);
    }
    if (type == "function_call_output") {
      std::string id;
      reader.get("call_id", TextLimit{kMaxRidBytes}, &id);
      WW_ASSIGN_OR_RETURN(std::string output, read_text_parts(reader, "output", kTexts));
      messages_.push_back({{"role", "tool"}, {"tool_call_id", id}, {"content", std::move(output)}});
      return end(&reader);
    }
    if (type == "reasoning") {
      WW_ASSIGN_OR_RETURN(const std::string text, read_text_parts(reader, "content", kTexts));
      reader.find("summary");
      reader.find("encrypted_content");
      if (!text.empty()) messages_.push_back({{"role", "assistant"}, {"content", ""}, {"reasoning_content", text}});
      return end(&reader);
    }
    return Status::unsupported(
        fmt::format("{}.type is \"{}\", but must be message, function_call, function_call_output or reasoning.",
                    field, type.substr(0, 60)),
        field + ".type");
  }

 private:
  // Held to what the chat may read of all its calls, for an error that names the item: the chat's messages are others.
  Status check_size(const std::string& arguments, const std::string& field) {
    size_t used_values = 0;
    const Result<Json> parsed = parse_json(arguments, argument_limits_, &used_values);
    argument_limits_.max_values -= std::min(argument_limits_.max_values, used_values);
    if (parsed.ok() || parsed.status().code() != StatusCode::resource_exhausted) return {};
    return Status::invalid_argument(
        fmt::format("{} cannot be read: {}; send smaller arguments.", field, parsed.status().message()), field);
  }

  // The message that a call belongs to: the assistant's last one, or a new one.
  Json& assistant() {
    if (messages_.empty() || !is_text(messages_.back()["role"], "assistant")) {
      messages_.push_back({{"role", "assistant"}, {"content", nullptr}});
    }
    Json& last = messages_.back();
    if (!last.contains("tool_calls")) last["tool_calls"] = Json::array();
    return last;
  }

  Status add_message(FieldReader* reader, const std::string& field) {
    std::string role;
    reader->get("role", TextLimit{kMaxRidBytes}, &role);
    WW_RETURN_IF_ERROR(reader->status());
    constexpr std::string_view kRoles[] = {"user", "assistant", "system", "developer"};
    if (std::ranges::find(kRoles, role) == std::end(kRoles)) {
      return Status::invalid_argument(
          fmt::format("{}.role is \"{}\", but must be user, assistant, system or developer.", field, role),
          field + ".role");
    }
    WW_ASSIGN_OR_RETURN(std::string text, read_text_parts(*reader, "content", kTexts));
    const bool follows_reasoning = role == "assistant" && !messages_.empty() &&
                                   messages_.back().contains("reasoning_content") &&
                                   is_text(messages_.back()["content"], "");
    if (follows_reasoning) {
      messages_.back()["content"] = std::move(text);
    } else {
      messages_.push_back({{"role", role == "developer" ? "system" : role}, {"content", std::move(text)}});
    }
    return end(reader);
  }

  static Status end(FieldReader* reader) {
    constexpr std::string_view kWithoutEffect[] = {"id", "status", "phase"};
    reader->refuse_unknown(kWithoutEffect);
    return reader->status();
  }

  Json& messages_;
  JsonLimits argument_limits_;
};

Status read_input(const FieldReader& reader, Json* messages) {
  const Json* input = reader.find("input");
  if (!input) return Status::invalid_argument("input is missing; send a text or a list of items.", "input");
  if (input->is_string()) {
    messages->push_back({{"role", "user"}, {"content", *input}});
    return {};
  }
  if (!input->is_array() || input->empty() || input->size() > kMaxMessages) {
    return wrong_type("input", fmt::format("a text or a list of 1 to {} items", kMaxMessages), *input);
  }
  Items items(messages);
  for (size_t i = 0; i < input->size(); ++i) {
    WW_RETURN_IF_ERROR(items.add(reader, (*input)[i], fmt::format("input[{}]", i)));
  }
  return {};
}

// {"type": "allowed_tools", "mode", "tools": [{"type": "function", "name"}]} as chats have it, whose reader finds
// what is wrong.
Json allowed_in_chat_shape(const Json& choice) {
  Json allowed = Json::object();
  for (const auto& [key, value] : choice.items()) {
    if (key != "type") allowed[key] = value;
  }
  if (const auto tools = allowed.find("tools"); tools != allowed.end() && tools->is_array()) {
    for (Json& tool : *tools) {
      if (!tool.is_object() || !tool.contains("name")) continue;
      tool = {{"type", "function"}, {"function", {{"name", tool["name"]}}}};
    }
  }
  return {{"type", "allowed_tools"}, {"allowed_tools", std::move(allowed)}};
}

Status read_tools(const FieldReader& reader, Json* chat) {
  const Json* tools = reader.find("tools");
  if (tools) {
    if (!tools->is_array() || tools->size() > kMaxTools) return wrong_type("tools", "a list of tools", *tools);
    Json list = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string field = fmt::format("tools[{}]", i);
      WW_RETURN_IF_ERROR(require_object((*tools)[i], field));
      FieldReader tool = reader.inside((*tools)[i], field + ".");
      const Json* type = tool.find("type");
      if (!type || !is_text(*type, "function")) {
        return Status::unsupported(
            fmt::format("{}.type is {}, but only \"function\" is supported: this server runs no tools of its own.",
                        field, type ? describe_value(*type) : "missing"),
            field + ".type");
      }
      list.push_back(
          chat_tool({tool.find("name"), tool.find("description"), tool.find("parameters"), tool.find("strict")}));
      tool.refuse_unknown();
      WW_RETURN_IF_ERROR(tool.status());
    }
    (*chat)["tools"] = std::move(list);
  }
  const Json* choice = reader.find("tool_choice");
  if (!choice) return {};
  const bool named = choice->is_object() && choice->contains("name");
  const auto type = choice->is_object() ? choice->find("type") : choice->end();
  if (choice->is_object() && type != choice->end() && is_text(*type, "allowed_tools")) {
    (*chat)["tool_choice"] = allowed_in_chat_shape(*choice);
    return {};
  }
  (*chat)["tool_choice"] = named ? Json{{"type", "function"}, {"function", {{"name", (*choice)["name"]}}}} : *choice;
  return {};
}

// text.format to response_format; reasoning.effort.
Status read_forms(const FieldReader& reader, Json* chat) {
  if (const Json* text = reader.find("text")) {
    WW_RETURN_IF_ERROR(require_object(*text, "text"));
    FieldReader fields = reader.inside(*text, "text.");
    constexpr std::string_view kWithoutEffect[] = {"verbosity"};
    if (const Json* format = fields.find("format")) {
      WW_RETURN_IF_ERROR(require_object(*format, "text.format"));
      const auto type = format->find("type");
      constexpr std::string_view kTypes[] = {"text", "json_object", "json_schema"};
      const bool known =
          type != format->end() && std::ranges::any_of(kTypes, [&](auto name) { return is_text(*type, name); });
      if (!known) {
        return Status::invalid_argument(
            fmt::format("text.format.type is {}, but must be text, json_object or json_schema.",
                        type == format->end() ? "missing" : describe_value(*type)), "text.format.type");
      }
      Json of_chat = *format;
      if (is_text(*type, "json_schema")) {
        of_chat.erase("type");
        of_chat = {{"type", "json_schema"}, {"json_schema", std::move(of_chat)}};
      }
      (*chat)["response_format"] = std::move(of_chat);
    }
    fields.refuse_unknown(kWithoutEffect);
    WW_RETURN_IF_ERROR(fields.status());
  }
  if (const Json* reasoning = reader.find("reasoning")) {
    WW_RETURN_IF_ERROR(require_object(*reasoning, "reasoning"));
    FieldReader fields = reader.inside(*reasoning, "reasoning.");
    if (const Json* effort = fields.find("effort")) (*chat)["reasoning_effort"] = *effort;
    constexpr std::string_view kWithoutEffect[] = {"summary", "generate_summary"};
    fields.refuse_unknown(kWithoutEffect);
    WW_RETURN_IF_ERROR(fields.status());
  }
  return {};
}

// What is asked for by a value that this server does not have.
Status refuse_what_is_not_here(FieldReader* reader) {
  bool background = false;
  reader->get("background", &background);
  if (background) {
    reader->fail(Status::unsupported(
        "background is true, but answers are made while the client waits; send false, or stream.", "background"));
  }
  std::string truncation = "disabled";
  reader->get("truncation", TextLimit{kMaxRidBytes}, &truncation);
  if (truncation != "disabled") {
    reader->fail(Status::unsupported("truncation must be \"disabled\": messages are not dropped here; shorten input.",
                                     "truncation"));
  }
  constexpr std::pair<const char*, std::string_view> kAdvice[] = {
      {"conversation", "use previous_response_id"},
      {"prompt", "prompts are not stored here; send their text as instructions and input"},
      {"max_tool_calls", "it counts calls of built-in tools, and there are none; leave it out"},
      {"context_management", "items are read as they come; leave it out"}};
  for (const auto& [name, advice] : kAdvice) {
    const Json* value = reader->find(name);
    if (!value || (value->is_array() && value->empty())) continue;
    reader->fail(Status::unsupported(fmt::format("{} is not supported: {}.", name, advice), name));
  }
  return reader->status();
}

// Obfuscation pads what a listener on the wire could measure; there is none to pad here.
Status read_stream_options(FieldReader* reader) {
  const Json* options = reader->find("stream_options");
  if (!options) return {};
  WW_RETURN_IF_ERROR(require_object(*options, "stream_options"));
  FieldReader fields = reader->inside(*options, "stream_options.");
  constexpr std::string_view kWithoutEffect[] = {"include_obfuscation"};
  fields.refuse_unknown(kWithoutEffect);
  WW_RETURN_IF_ERROR(fields.status());
  bool stream = false;
  reader->get("stream", &stream);
  WW_RETURN_IF_ERROR(reader->status());
  return require_stream(*options, stream);
}

// Log-probabilities of the answer's text where include asks for them. Reasoning is in the answer as it is, so that
// reasoning.encrypted_content, which is to bring it back with the next request, adds nothing.
Status read_include(FieldReader* reader, Json* chat) {
  constexpr std::string_view kLogprobs = "message.output_text.logprobs";
  std::vector<std::string> include;
  reader->get("include", TextLimit{kMaxRidBytes, 16}, &include);
  int top = 0;
  reader->get("top_logprobs", IntRange{0, kMaxChatTopLogprobs}, &top);
  WW_RETURN_IF_ERROR(reader->status());
  for (const std::string& what : include) {
    if (what == kLogprobs) {
      (*chat)["logprobs"] = true;
      (*chat)["top_logprobs"] = top;
    } else if (what != "reasoning.encrypted_content") {
      return Status::unsupported(
          fmt::format(
              "include holds \"{}\", but {} and reasoning.encrypted_content are all that is there; leave it out.",
              what.substr(0, 60), kLogprobs),
          "include");
    }
  }
  if (top > 0 && !chat->contains("logprobs")) {
    return Status::invalid_argument(fmt::format("top_logprobs needs include to hold \"{}\".", kLogprobs),
                                    "top_logprobs");
  }
  return {};
}

void echo_fields(const FieldReader& reader, Json* echoed) {
  constexpr std::string_view kNames[] = {
      "instructions", "max_output_tokens", "temperature", "top_p", "previous_response_id", "tools", "tool_choice",
      "parallel_tool_calls", "text", "reasoning", "metadata", "user"};
  for (const std::string_view name : kNames) (*echoed)[std::string(name)] = nullptr;
  copy_fields(reader, kNames, echoed);
  const auto otherwise = [&](const char* name, Json value) {
    if ((*echoed)[name].is_null()) (*echoed)[name] = std::move(value);
  };
  otherwise("tools", Json::array());
  otherwise("tool_choice", "auto");
  otherwise("parallel_tool_calls", true);
  otherwise("text", {{"format", {{"type", "text"}}}});
  otherwise("metadata", Json::object());
  (*echoed)["truncation"] = "disabled";
}

}  // namespace

Result<ResponseRequest> read_response_request(Api& api, const Json& body, const std::string& owner) {
  FieldReader reader(body, {}, unknown_fields(api));
  ResponseRequest out;
  out.chat.value = Json::object();
  out.echoed.value = Json::object();
  Json messages = Json::array();
  reader.get("previous_response_id", TextLimit{kMaxRidBytes}, &out.previous_id);
  if (!out.previous_id.empty()) {
    const std::optional<ResponseStore::Entry> previous = api.responses().get(owner, out.previous_id);
    if (!previous) {
      return Status::invalid_argument(
          fmt::format("previous_response_id must be the id of a response that is stored here (they live in "
                      "memory, and a bounded number of them), and \"{}\" is none; send its items in input.",
                      out.previous_id),
          "previous_response_id");
    }
    WW_ASSIGN_OR_RETURN(messages, parse_json(previous->messages));
  }
  if (std::string text; reader.get("instructions", TextLimit{kMaxTextBytes}, &text)) {
    if (!messages.empty() && is_text(messages[0]["role"], "system")) messages.erase(0);
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", std::move(text)}});
  }
  WW_RETURN_IF_ERROR(reader.status());
  WW_RETURN_IF_ERROR(read_input(reader, &messages));
  out.input.value = listed_input(*reader.find("input"));
  Json& chat = out.chat.value;
  chat["messages"] = std::move(messages);
  constexpr std::string_view kSame[] = {
      "model", "temperature", "top_p", "stream", "parallel_tool_calls", "top_k", "min_p", "seed", "presence_penalty",
      "frequency_penalty", "repetition_penalty", "stop", "chat_template_kwargs", "priority", "cache_salt"};
  copy_fields(reader, kSame, &chat);
  const IntRange lengths{0, std::numeric_limits<int>::max()};
  if (int most = 0; reader.get("max_output_tokens", lengths, &most)) chat["max_completion_tokens"] = most;
  WW_RETURN_IF_ERROR(read_tools(reader, &chat));
  WW_RETURN_IF_ERROR(read_forms(reader, &chat));
  WW_RETURN_IF_ERROR(refuse_what_is_not_here(&reader));
  WW_RETURN_IF_ERROR(read_include(&reader, &chat));
  WW_RETURN_IF_ERROR(read_stream_options(&reader));
  reader.get("store", &out.store);
  echo_fields(reader, &out.echoed.value);
  constexpr std::string_view kWithoutEffect[] = {
      "metadata", "prompt_cache_key", "prompt_cache_retention", "safety_identifier", "service_tier", "user"};
  reader.refuse_unknown(kWithoutEffect);
  WW_RETURN_IF_ERROR(reader.status());
  return out;
}

}  // namespace warpweave::server
