// /v1/messages: its answers and streams, and /v1/messages/count_tokens.
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "server/api/body_rewriter.h"
#include "server/api/chat_answer.h"
#include "server/api/chat_request.h"
#include "server/api/errors.h"
#include "server/api/json_write.h"
#include "server/api/messages_request.h"
#include "server/api/native.h"
#include "server/api/requests.h"

namespace warpweave::server {
namespace {

using output::AnswerEvent;
using Kind = AnswerEvent::Kind;

class MessagesBuilder final : public ResponseBuilder {
 public:
  MessagesBuilder(const Api& api, const PreparedChat& chat)
      : id_(chat.options.rid), model_(chat.options.model_name(api)), reader_(chat.plan) {}

  ErrorShape error_shape() const override { return ErrorShape::anthropic; }
  std::string_view stream_end() const override { return {}; }

  void add(size_t, const OutputDelta& delta, std::string* events) override {
    prompt_tokens_ = delta.prompt_tokens;
    cached_tokens_ = delta.cached_tokens;
    completion_tokens_ = delta.completion_tokens;
    if (delta.finish) finish_ = delta.finish;
    const std::vector<AnswerEvent> parts = reader_.read(delta);
    if (!events) return answer_.add(parts);
    if (!begun_) begin(events);
    for (const AnswerEvent& part : parts) stream_part(part, events);
    if (finish_) end(events);
  }

  std::string body() override {
    Json content = Json::array();
    if (!answer_.reasoning.empty()) {
      content.push_back({{"type", "thinking"}, {"thinking", answer_.reasoning}, {"signature", ""}});
    }
    if (!answer_.content.empty() || answer_.calls.empty()) {
      content.push_back({{"type", "text"}, {"text", answer_.content}});
    }
    for (const CollectedAnswer::Call& call : answer_.calls) {
      OwnedJson input;
      if (Result<Json> parsed = parse_json(call.arguments); parsed.ok() && parsed->is_object()) {
        input.value = std::move(*parsed);
      }
      if (input.value.is_null()) input.value = Json::object();
      content.push_back(
          {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", std::move(input.value)}});
    }
    OwnedJson message(frame(std::move(content)));
    message.value["stop_reason"] = stop_reason();
    message.value["stop_sequence"] = stop_sequence();
    message.value["usage"] = usage();
    return dump(message.value);
  }

 private:
  static std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

  Json frame(Json content) const {
    return {{"id", id_}, {"type", "message"}, {"role", "assistant"}, {"model", model_}, {"content", std::move(content)},
            {"stop_reason", nullptr}, {"stop_sequence", nullptr}};
  }

  Json usage() const {
    return {{"input_tokens", prompt_tokens_ - cached_tokens_}, {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", cached_tokens_}, {"output_tokens", completion_tokens_}};
  }

  std::string stop_reason() const {
    if (!finish_ || finish_->type == FinishReason::Type::length) return "max_tokens";
    if (reader_.calls_tools()) return "tool_use";
    return finish_->matched_string.empty() ? "end_turn" : "stop_sequence";
  }
  Json stop_sequence() const {
    return finish_ && !finish_->matched_string.empty() ? Json(finish_->matched_string) : Json();
  }

  static void append_event(std::string_view type, const Json& data, std::string* events) {
    *events += "event: ";
    *events += type;
    *events += "\ndata: ";
    *events += dump(data);
    *events += "\n\n";
  }

  void begin(std::string* events) {
    begun_ = true;
    Json message = frame(Json::array());
    message["usage"] = usage();
    message["usage"]["output_tokens"] = 0;
    append_event("message_start", {{"type", "message_start"}, {"message", std::move(message)}}, events);
  }

  void end_block(std::string* events) {
    if (!block_) return;
    append_event("content_block_stop", {{"type", "content_block_stop"}, {"index", index_++}}, events);
    block_.reset();
  }

  void begin_block(Kind kind, Json block, std::string* events) {
    end_block(events);
    block_ = kind;
    append_event("content_block_start",
                 {{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}}, events);
  }

  void stream_part(const AnswerEvent& part, std::string* events) {
    Json delta;
    switch (part.kind) {
      case Kind::call:
        return begin_block(Kind::call,
                           {{"type", "tool_use"}, {"id", part.id}, {"name", part.text}, {"input", Json::object()}},
                           events);
      case Kind::content:
        if (block_ != Kind::content) begin_block(Kind::content, {{"type", "text"}, {"text", ""}}, events);
        delta = {{"type", "text_delta"}, {"text", part.text}};
        break;
      case Kind::reasoning:
        if (block_ != Kind::reasoning) {
          begin_block(Kind::reasoning, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}, events);
        }
        delta = {{"type", "thinking_delta"}, {"thinking", part.text}};
        break;
      case Kind::arguments: delta = {{"type", "input_json_delta"}, {"partial_json", part.text}}; break;
    }
    append_event("content_block_delta",
                 {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}}, events);
  }

  void end(std::string* events) {
    end_block(events);
    const Json delta{{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}};
    append_event("message_delta", {{"type", "message_delta"}, {"delta", delta}, {"usage", usage()}}, events);
    append_event("message_stop", {{"type", "message_stop"}}, events);
  }

  const std::string id_;
  const std::string model_;
  ChoiceReader reader_;
  CollectedAnswer answer_;
  std::optional<FinishReason> finish_;
  int prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
  bool begun_ = false;
  std::optional<Kind> block_;  // stream: the block that is open
  int index_ = 0;
};

Result<PreparedChat> prepare_messages(const Api& api, std::string_view body, bool needs_length) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  WW_RETURN_IF_ERROR(api.require_tokenizer("/v1/messages"));
  WW_ASSIGN_OR_RETURN(const OwnedJson chat, chat_of_messages(api, owned.value, needs_length));
  static constexpr OtherName kOtherNames[] = {
      {".function.parameters", ".input_schema"},
      {".function.", "."},
      {"max_tokens or max_completion_tokens", "max_tokens"},
      {"response_format.json_schema", "output_config.format"},
      {"response_format", "output_config.format"},
      {"reasoning_effort", "output_config.effort"},
  };
  auto prepared = prepare_chat(api, chat.value, chat.value.dump(), "msg_");
  if (prepared.ok()) return prepared;
  const Status status = in_own_names(prepared.status(), kOtherNames);
  const bool too_long = status.message().find("is longer than the model's context length") != std::string::npos;
  // Agents shorten their history when they read these words.
  return too_long ? Status(status.code(), "prompt is too long: " + status.message(), status.field()) : status;
}

}  // namespace

Result<GenerationJob> parse_messages(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(PreparedChat chat, prepare_messages(api, body, /*needs_length=*/true));
  chat.job.builder = std::make_unique<MessagesBuilder>(api, chat);
  return std::move(chat.job);
}

Result<std::string> count_message_tokens(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const PreparedChat chat, prepare_messages(api, body, /*needs_length=*/false));
  return fmt::format("{{\"input_tokens\":{}}}", chat.job.requests[0].input_ids.size());
}

}  // namespace warpweave::server
