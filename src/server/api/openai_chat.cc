#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "server/api/json_write.h"
#include "server/api/limits.h"
#include "server/api/openai_common.h"
#include "server/api/openai_logprobs.h"
#include "server/api/request_cost.h"
#include "server/api/requests.h"
#include "text/literal_text.h"

namespace warpweave::server {
namespace {

struct ChatOptions : OpenAiOptions {
  bool logprobs = false;
  int top_logprobs = 0;
};

class ChatBuilder final : public OpenAiBuilder {
 public:
  ChatBuilder(const Api& api, const ChatOptions& options, std::vector<std::string> prompt_ids)
      : OpenAiBuilder(options, {"chat.completion", "chat.completion.chunk",
                                api.info().served_model_name,
                                static_cast<size_t>(options.sampling.n), std::move(prompt_ids)}),
        tokenizer_(*api.tokenizer()),
        with_logprobs_(options.logprobs),
        choices_(static_cast<size_t>(options.sampling.n)) {}

 private:
  struct Choice {
    bool opened = false;  // stream: the chunk with the role is out
    std::string text;     // stream: only what has yet to go out
    std::string token_ids;
    ChatLogprobs logprobs;
    std::optional<FinishReason> finish;
  };

  void collect(size_t index, const OutputDelta& delta) override {
    Choice& choice = choices_[index];
    choice.text += delta.text;
    if (return_token_ids()) append_json_items(delta.token_ids, &choice.token_ids);
    if (with_logprobs_) choice.logprobs.add(delta.output_logprobs, tokenizer_);
    if (delta.finish) choice.finish = delta.finish;
  }

  void append_choice_events(size_t index, const OutputDelta& delta, std::string* events) override {
    Choice& choice = choices_[index];
    collect(index, delta);
    if (!choice.opened) {
      choice.opened = true;
      begin_chunk(index, events);
      *events += "\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null";
      if (return_token_ids()) append_ids("prompt_token_ids", prompt_ids(index), events);
      end_chunk(nullptr, events);
    }
    if (!choice.text.empty() || !choice.token_ids.empty() ||
        (with_logprobs_ && !delta.output_logprobs.empty())) {
      begin_chunk(index, events);
      *events += "\"delta\":{\"content\":";
      append_json_string(choice.text, events);
      *events += "},\"logprobs\":";
      append_logprobs(choice, events);
      if (return_token_ids()) append_ids("token_ids", choice.token_ids, events);
      end_chunk(nullptr, events);
      choice.text.clear();
      choice.token_ids.clear();
      choice.logprobs.clear();
    }
    if (choice.finish) {
      begin_chunk(index, events);
      *events += "\"delta\":{},\"logprobs\":null";
      end_chunk(&*choice.finish, events);
    }
  }

  void append_choice(size_t index, std::string* out) override {
    const Choice& choice = choices_[index];
    *out += "{\"index\":";
    append_json_int(static_cast<int64_t>(index), out);
    *out += ",\"message\":{\"role\":\"assistant\",\"content\":";
    append_json_string(choice.text, out);
    *out += ",\"reasoning_content\":null,\"tool_calls\":null},\"logprobs\":";
    append_logprobs(choice, out);
    if (return_token_ids()) append_ids("token_ids", choice.token_ids, out);
    *out += ',';
    append_finish(choice.finish ? &*choice.finish : nullptr, out);
    *out += '}';
  }

  void append_answer_members(std::string* out) override {
    if (return_token_ids()) append_ids("prompt_token_ids", prompt_ids(0), out);
  }

  void append_logprobs(const Choice& choice, std::string* out) const {
    if (with_logprobs_) {
      choice.logprobs.append_json(out);
    } else {
      *out += "null";
    }
  }

  const Tokenizer& tokenizer_;
  const bool with_logprobs_;
  std::vector<Choice> choices_;
};

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

Status check_content(const Json& message, const std::string& field) {
  const auto it = message.find("content");
  if (it == message.end() || it->is_null()) {
    if (message.contains("tool_calls")) return {};
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

Status check_message(const Json& message, const std::string& field) {
  if (!message.is_object()) return wrong_type(field, "an object with role and content", message);
  FieldReader reader(message, field + ".");
  std::string role;
  reader.get("role", TextLimit{kMaxRidBytes}, &role);
  WW_RETURN_IF_ERROR(reader.status());
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    return Status::invalid_argument(
        fmt::format("{}.role is \"{}\", but must be one of {}.", field, role,
                    fmt::join(kRoles, ", ")),
        field + ".role");
  }
  return check_content(message, field + ".content");
}

Result<Json> read_messages(const FieldReader& reader) {
  const Json* messages = reader.find("messages");
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

// The tools for the template; null when there are none or the client chose none.
Result<Json> read_tools(const ChatTemplate& chat_template, const FieldReader& reader) {
  const Json* tools = reader.find("tools");
  const Json* choice = reader.find("tool_choice");
  const Json* parallel = reader.find("parallel_tool_calls");
  if (parallel && !parallel->is_boolean()) {
    return wrong_type("parallel_tool_calls", "true or false", *parallel);
  }
  if (choice && is_text(*choice, "none")) return Json();
  if (choice && !is_text(*choice, "auto")) {
    return Status::unsupported(
        fmt::format("tool_choice is {}, but must be \"auto\" or \"none\": a call cannot be forced "
                    "without constrained output.",
                    describe_value(*choice)),
        "tool_choice");
  }
  if (!tools) return Json();
  if (!tools->is_array()) return wrong_type("tools", "a list of tools", *tools);
  if (tools->empty()) return Json();
  if (parallel && !parallel->get<bool>()) {
    return Status::unsupported(
        "parallel_tool_calls is false, but a model cannot be held to one call without constrained "
        "output; leave it out.",
        "parallel_tool_calls");
  }
  if (tools->size() > kMaxTools) {
    return Status::invalid_argument(
        fmt::format("tools has {} items, but at most {} are allowed.", tools->size(), kMaxTools),
        "tools");
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    const Json& tool = (*tools)[i];
    const std::string field = fmt::format("tools[{}]", i);
    if (!tool.is_object() || !tool.contains("function") || !tool["function"].is_object()) {
      return wrong_type(field, "an object with a function", tool);
    }
  }
  if (chat_template.source().find("tools") == std::string::npos) {
    return Status::unsupported(
        "tools are given, but the model's chat template has no place for them; describe them in a "
        "system message, or serve with --chat-template FILE.",
        "tools");
  }
  return *tools;
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

Result<ChatInput> read_chat_input(const Api& api, FieldReader* reader, bool* continue_final) {
  const ChatTemplate* chat_template = api.context().chat_template;
  if (!chat_template) {
    return Status::unsupported(
        "This model has no chat template; use /v1/completions, or serve with --chat-template "
        "FILE.",
        "messages");
  }
  ChatInput input;
  WW_ASSIGN_OR_RETURN(input.messages, read_messages(*reader));
  WW_ASSIGN_OR_RETURN(input.tools, read_tools(*chat_template, *reader));
  input.extra = Json::object();
  if (const Json* extra = reader->find("chat_template_kwargs")) {
    if (!extra->is_object()) return wrong_type("chat_template_kwargs", "an object", *extra);
    if (extra->size() > kMaxTemplateKwargs) {
      return Status::invalid_argument(
          fmt::format("chat_template_kwargs has {} members, but at most {} are allowed.",
                      extra->size(), kMaxTemplateKwargs),
          "chat_template_kwargs");
    }
    input.extra = *extra;
  }
  if (std::string effort; reader->get("reasoning_effort", TextLimit{kMaxRidBytes}, &effort)) {
    if (!input.extra.contains("reasoning_effort")) input.extra["reasoning_effort"] = effort;
  }
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

// The text of the prompt, and where it stays text.
Result<LiteralText::Unmarked> render_prompt(const Api& api, std::string_view body,
                                            FieldReader* reader) {
  bool continue_final_message = false;
  WW_ASSIGN_OR_RETURN(ChatInput input, read_chat_input(api, reader, &continue_final_message));
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
  std::string prefix;
  if (continue_final_message) {
    WW_ASSIGN_OR_RETURN(prefix, take_final_message(&input.messages));
  }
  input.bos_token = token_text(tokenizer, tokenizer.bos_id());
  input.eos_token = token_text(tokenizer, tokenizer.eos_id());
  WW_ASSIGN_OR_RETURN(std::string text,
                      api.context().chat_template->render_chat(std::move(input)));
  text += prefix;
  if (literal) return literal->unmark(text);
  return LiteralText::Unmarked{std::move(text), {}};
}

Status read_options(const Api& api, FieldReader* reader, ChatOptions* out) {
  WW_RETURN_IF_ERROR(read_openai_options(api, reader, "chatcmpl-", out));
  out->sampling.default_new_tokens = std::numeric_limits<int>::max();
  bool echo = false;
  if (reader->get("echo", &echo) && echo) {
    reader->fail(Status::unsupported(
        "echo is not supported for chats: the answer holds the assistant's message only; leave it "
        "out.",
        "echo"));
  }
  reader->get("logprobs", &out->logprobs);
  if (reader->get("top_logprobs", IntRange{0, kMaxChatTopLogprobs}, &out->top_logprobs) &&
      out->top_logprobs > 0 && !out->logprobs) {
    reader->fail(Status::invalid_argument("top_logprobs needs logprobs to be true.",
                                          "top_logprobs"));
  }
  return reader->status();
}

}  // namespace

Result<GenerationJob> parse_chat(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  const Json& json = owned.value;
  WW_RETURN_IF_ERROR(api.require_tokenizer("/v1/chat/completions"));
  FieldReader reader(json);
  ChatOptions options;
  options.add_special_tokens = false;  // the template writes its own
  WW_RETURN_IF_ERROR(read_options(api, &reader, &options));
  WW_RETURN_IF_ERROR(check_sequences(api, 1, options.sampling.n, "n"));
  WW_ASSIGN_OR_RETURN(const LiteralText::Unmarked prompt, render_prompt(api, body, &reader));
  PromptEncoder encoder(api, options.sampling.n, options.truncate_prompt_tokens);
  WW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                      encoder.encode(prompt.text, "messages",
                                     {.add_special_tokens = options.add_special_tokens,
                                      .literal_at = prompt.literal_at}));
  WW_ASSIGN_OR_RETURN(const SamplingParams params,
                      fit_to_context(options.sampling, ids.size(), api.info().context_len,
                                     Dialect::openai));
  GenerationJob job;
  const int n = options.sampling.n;
  for (int choice = 0; choice < n; ++choice) {
    GenerateRequest request = make_request(options, params, choice);
    request.rid = sequence_rid(options.rid, job.requests.size(), static_cast<size_t>(n));
    request.input_ids = ids;
    request.return_logprob = options.logprobs;
    request.top_logprobs_num = options.top_logprobs;
    job.requests.push_back(std::move(request));
  }
  job.stream = options.stream;
  job.group_rid = options.rid;
  WW_RETURN_IF_ERROR(fit_to_logprob_limit(api, !options.sampling.max_new_tokens, &job.requests));
  std::vector<std::string> prompt_ids;
  if (options.return_token_ids) append_json_items(ids, &prompt_ids.emplace_back());
  job.builder = std::make_unique<ChatBuilder>(api, options, std::move(prompt_ids));
  return job;
}

}  // namespace warpweave::server
