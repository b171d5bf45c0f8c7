#include "server/api/chat_prompt.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "server/api/limits.h"
#include "server/api/openai_common.h"

namespace warpweave::server {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

Status check_content(const Json& message, const std::string& field) {
  const auto it = message.find("content");
  if (it == message.end() || it->is_null()) {
    if (is_text(message["role"], "assistant")) return {};
    return Status::invalid_argument(
        fmt::format("{} is missing; send a string or a list of text parts.", field), field);
  }
  if (it->is_string()) return {};
  if (!it->is_array()) return wrong_type(field, "a string or a list of text parts", *it);
  if (it->size() > kMaxContentParts) {
    return Status::invalid_argument(
        fmt::format("{} has {} parts, but at most {} are allowed.", field, it->size(),
                    kMaxContentParts),
        field);
  }
  for (size_t i = 0; i < it->size(); ++i) {
    const Json& part = (*it)[i];
    const std::string part_field = fmt::format("{}[{}]", field, i);
    if (!part.is_object()) return wrong_type(part_field, "an object", part);
    FieldReader reader(part, part_field + ".");
    std::string type;
    std::string text;
    reader.get("type", TextLimit{kMaxRidBytes}, &type);
    WW_RETURN_IF_ERROR(reader.status());
    if (type != "text") {
      return Status::unsupported(
          fmt::format("{}.type is \"{}\", but only \"text\" is supported: {}.", part_field, type,
                      "this server takes text"),
          part_field + ".type");
    }
    if (!reader.get("text", TextLimit{kMaxTextBytes}, &text)) {
      WW_RETURN_IF_ERROR(reader.status());
      return Status::invalid_argument(fmt::format("{}.text is missing.", part_field),
                                      part_field + ".text");
    }
  }
  return {};
}

// What templates read of an earlier call.
Status check_call(const Json& call, const std::string& field) {
  if (!call.is_object()) return wrong_type(field, "an object with id, type and function", call);
  FieldReader reader(call, field + ".");
  std::string text;
  reader.get("id", TextLimit{kMaxTextBytes}, &text);
  reader.get("type", TextLimit{kMaxRidBytes}, &text);
  WW_RETURN_IF_ERROR(reader.status());
  const Json* function = reader.find("function");
  if (function == nullptr) return {};
  if (!function->is_object()) return wrong_type(field + ".function", "an object with name and arguments", *function);
  FieldReader parts(*function, field + ".function.");
  parts.get("name", TextLimit{kMaxTextBytes}, &text);
  WW_RETURN_IF_ERROR(parts.status());
  const Json* arguments = parts.find("arguments");
  if (arguments == nullptr || arguments->is_string() || arguments->is_object()) return {};
  return wrong_type(field + ".function.arguments", "a string of JSON, or an object", *arguments);
}

// The members beside role and content that are known; what else a template reads is between it and the client.
Status check_extras(const Json& message, const std::string& field) {
  FieldReader reader(message, field + ".");
  std::string text;
  for (const char* name : {"name", "tool_call_id", "reasoning_content", "reasoning", "refusal"}) {
    reader.get(name, TextLimit{kMaxTextBytes}, &text);
  }
  WW_RETURN_IF_ERROR(reader.status());
  if (reader.find("audio") != nullptr) {
    return Status::unsupported(
        field + ".audio is not supported: this server takes text; send its transcript as content.", field + ".audio");
  }
  const Json* calls = reader.find("tool_calls");
  if (calls == nullptr) return {};
  if (!calls->is_array()) return wrong_type(field + ".tool_calls", "a list of calls", *calls);
  for (size_t i = 0; i < calls->size(); ++i) {
    WW_RETURN_IF_ERROR(check_call((*calls)[i], fmt::format("{}.tool_calls[{}]", field, i)));
  }
  return {};
}

Status check_message(const Json& message, const std::string& field) {
  if (!message.is_object()) return wrong_type(field, "an object with role and content", message);
  FieldReader reader(message, field + ".");
  std::string role;
  reader.get("role", TextLimit{kMaxRidBytes}, &role);
  WW_RETURN_IF_ERROR(reader.status());
  if (role.empty()) {
    return Status::invalid_argument(
        fmt::format("{}.role is missing; it must be one of {}.", field, fmt::join(kRoles, ", ")), field + ".role");
  }
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    return Status::invalid_argument(
        fmt::format("{}.role is \"{}\", but must be one of {}.", field, role,
                    fmt::join(kRoles, ", ")),
        field + ".role");
  }
  WW_RETURN_IF_ERROR(check_content(message, field + ".content"));
  return check_extras(message, field);
}

Result<Json> read_messages(const FieldReader& reader) {
  const Json* messages = reader.find("messages");
  WW_RETURN_IF_ERROR(reader.status());
  if (!messages) {
    return Status::invalid_argument(
        "messages is missing; send [{\"role\": \"user\", \"content\": \"...\"}].", "messages");
  }
  if (!messages->is_array()) return wrong_type("messages", "a list of messages", *messages);
  if (messages->empty()) {
    return Status::invalid_argument("messages is empty; it needs at least one message.",
                                    "messages");
  }
  if (messages->size() > kMaxMessages) {
    return Status::invalid_argument(
        fmt::format("messages has {} items, but at most {} are allowed.", messages->size(),
                    kMaxMessages),
        "messages");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    WW_RETURN_IF_ERROR(check_message((*messages)[i], fmt::format("messages[{}]", i)));
  }
  return *messages;
}

std::string token_text(const Tokenizer& tokenizer, std::optional<int32_t> id) {
  return id ? tokenizer.id_to_token(*id).value_or("") : std::string();
}

// The text a final assistant message starts the answer with, taken out of the messages.
Result<std::string> take_final_message(Json* messages) {
  const Json& last = messages->back();
  if (!is_text(last["role"], "assistant")) {
    return Status::invalid_argument(
        "continue_final_message needs a last message with the role \"assistant\".",
        "continue_final_message");
  }
  if (!last.contains("content") || !last["content"].is_string()) {
    return Status::invalid_argument(
        "continue_final_message needs a last message whose content is a string.",
        "continue_final_message");
  }
  std::string text = last["content"].get<std::string>();
  dismantle(messages->back());
  messages->get_ref<Json::array_t&>().pop_back();
  return text;
}

// Every string in `value`, keys too.
void mark_strings(const LiteralText& literal, Json* value) {
  if (value->is_string()) {
    *value = literal.mark(value->get_ref<const std::string&>());
  } else if (value->is_array()) {
    for (Json& item : *value) mark_strings(literal, &item);
  } else if (value->is_object()) {
    Json::object_t marked;
    for (auto& [key, item] : value->get_ref<Json::object_t&>()) {
      mark_strings(literal, &item);
      marked.emplace_back(literal.mark(key), std::move(item));
    }
    value->get_ref<Json::object_t&>() = std::move(marked);
  }
}

// An assistant's message without content: templates that know of calls expect null beside them, others a text.
void fill_in_content(const ChatTemplate& chat_template, Json* messages) {
  const bool knows_calls = chat_template.source().find("tool_calls") != std::string::npos;
  for (Json& message : *messages) {
    const auto content = message.find("content");
    if (content != message.end() && !content->is_null()) continue;
    const auto calls = message.find("tool_calls");
    const bool has_calls = calls != message.end() && !calls->is_null();
    message["content"] = knows_calls && has_calls ? Json() : Json("");
  }
}

// The tools, if the template shows them. A model that is not told of them may still be made to call one.
Json tools_for_template(const ChatTemplate& chat_template, const ToolRequest& tools) {
  if (tools.tools.value.is_null() || chat_template.source().find("tools") != std::string::npos) {
    return tools.tools.value;
  }
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    LOG_WARN("a request brings tools, but the model's chat template has no place for them: the prompt leaves them out; "
             "describe them in a system message, or serve with --chat-template FILE");
  }
  return {};
}

// How much to think, which some templates tell the model; "none" and the others are the switch of those that know only
// one. What chat_template_kwargs say themselves stands.
void read_reasoning_effort(FieldReader* reader, Json* extra) {
  std::string effort;
  if (!reader->get("reasoning_effort", TextLimit{kMaxRidBytes}, &effort)) return;
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  if (std::ranges::find(kEfforts, effort) == std::end(kEfforts)) {
    return reader->fail(Status::invalid_argument(
        fmt::format(
            "reasoning_effort is \"{}\", but must be one of {}; what else a template knows goes into "
            "chat_template_kwargs.",
            effort.substr(0, 60), fmt::join(kEfforts, ", ")),
        "reasoning_effort"));
  }
  if (!extra->contains("reasoning_effort")) (*extra)["reasoning_effort"] = effort;
  if (extra->contains("enable_thinking") || extra->contains("thinking")) return;
  for (const char* name : {"enable_thinking", "thinking"}) (*extra)[name] = effort != "none";
}

Result<ChatInput> read_chat_input(const Api& api, FieldReader* reader, const ToolRequest& tools, bool* continue_final) {
  const ChatTemplate* chat_template = api.context().chat_template;
  if (!api.info().generates) {
    return Status::unsupported(std::string("This model generates no answers; use ") +
                                   (api.info().labels.empty() ? "/v1/embeddings." : "/classify."), "model");
  }
  if (!chat_template) {
    return Status::unsupported(
        "This model has no chat template; use /v1/completions, or serve with --chat-template "
        "FILE.",
        "messages");
  }
  ChatInput input;
  WW_ASSIGN_OR_RETURN(input.messages, read_messages(*reader));
  fill_in_content(*chat_template, &input.messages);
  input.tools = tools_for_template(*chat_template, tools);
  input.extra = Json::object();
  if (const Json* extra = reader->find("chat_template_kwargs")) {
    if (!extra->is_object()) return wrong_type("chat_template_kwargs", "an object", *extra);
    if (extra->size() > kMaxTemplateKwargs) {
      return Status::invalid_argument(
          fmt::format("chat_template_kwargs has {} members, but at most {} are allowed.",
                      extra->size(), kMaxTemplateKwargs),
          "chat_template_kwargs");
    }
    for (const char* own : {"messages", "tools"}) {
      if (!extra->contains(own)) continue;
      return Status::invalid_argument(
          fmt::format("chat_template_kwargs may not replace the {}; leave them out there.", own),
          "chat_template_kwargs");
    }
    input.extra = *extra;
  }
  read_reasoning_effort(reader, &input.extra);
  reader->get("add_generation_prompt", &input.add_generation_prompt);
  FieldReader kwargs(input.extra, "chat_template_kwargs.");
  kwargs.get("add_generation_prompt", &input.add_generation_prompt);
  kwargs.get("continue_final_message", continue_final);
  reader->fail(kwargs.status());
  reader->get("continue_final_message", continue_final);
  WW_RETURN_IF_ERROR(reader->status());
  WW_RETURN_IF_ERROR(refuse_unknown_fields(api, reader));
  return input;
}

}  // namespace

Result<ChatPrompt> read_chat_prompt(const Api& api, FieldReader* reader, std::string_view body,
                                    const ToolRequest& tools) {
  bool continue_final_message = false;
  WW_ASSIGN_OR_RETURN(ChatInput input, read_chat_input(api, reader, tools, &continue_final_message));
  const Tokenizer& tokenizer = *api.tokenizer();
  std::optional<LiteralText> literal;
  if (api.context().args.no_special_tokens_in_content) {
    // The body as it came has every character of it, also those spelled as escapes.
    const std::string strings = body.find("\\u") == body.npos
                                    ? std::string(body)
                                    : std::string(body) + input.messages.dump() +
                                          input.tools.dump() + input.extra.dump();
    WW_ASSIGN_OR_RETURN(literal, LiteralText::create(tokenizer, strings));
    for (Json* part : {&input.messages, &input.tools, &input.extra}) mark_strings(*literal, part);
  }
  ChatPrompt prompt;
  if (continue_final_message) {
    WW_ASSIGN_OR_RETURN(prompt.continued, take_final_message(&input.messages));
  }
  input.bos_token = token_text(tokenizer, tokenizer.bos_id());
  input.eos_token = token_text(tokenizer, tokenizer.eos_id());
  WW_ASSIGN_OR_RETURN(std::string text,
                      api.context().chat_template->render_chat(std::move(input)));
  text += prompt.continued;
  prompt.rendered = literal ? literal->unmark(text) : LiteralText::Unmarked{std::move(text), {}};
  return prompt;
}

}  // namespace warpweave::server
