// /v1/chat/completions.
#include <utility>

#include "server/api/chat_answer.h"
#include "server/api/chat_request.h"
#include "server/api/json_write.h"
#include "server/api/openai_logprobs.h"
#include "server/api/requests.h"

namespace warpweave::server {
namespace {

using output::AnswerEvent;

class ChatBuilder final : public OpenAiBuilder {
 public:
  ChatBuilder(const Api& api, const ChatOptions& options, const AnswerPlan& plan, std::vector<std::string> prompt_ids)
      : OpenAiBuilder(options, {"chat.completion", "chat.completion.chunk",
                                options.model_name(api),
                                static_cast<size_t>(options.sampling.n), std::move(prompt_ids)}),
        tokenizer_(*api.tokenizer()),
        with_logprobs_(options.logprobs) {
    for (int choice = 0; choice < options.sampling.n; ++choice) choices_.emplace_back(plan);
  }

 private:
  struct Choice {
    explicit Choice(const AnswerPlan& plan) : reader(plan) {}
    ChoiceReader reader;
    bool opened = false;       // stream: the chunk with the role is out
    CollectedAnswer answer;    // not of a stream
    std::string token_ids;     // stream: what has yet to go out, as are the log-probabilities
    ChatLogprobs logprobs;
    bool has_logprobs = false;
    std::optional<FinishReason> finish;
  };

  std::vector<AnswerEvent> take(Choice& choice, const OutputDelta& delta) {
    if (return_token_ids()) append_json_items(delta.token_ids, &choice.token_ids);
    if (with_logprobs_) choice.logprobs.add(delta.output_logprobs, tokenizer_);
    choice.has_logprobs |= with_logprobs_ && !delta.output_logprobs.empty();
    if (delta.finish) choice.finish = delta.finish;
    return choice.reader.read(delta);
  }

  void collect(size_t index, const OutputDelta& delta) override {
    Choice& choice = choices_[index];
    choice.answer.add(take(choice, delta));
  }

  void append_choice_events(size_t index, const OutputDelta& delta, std::string* events) override {
    Choice& choice = choices_[index];
    std::vector<AnswerEvent> parts = take(choice, delta);
    if (!choice.opened) {
      choice.opened = true;
      begin_chunk(index, events);
      *events += "\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":null},\"logprobs\":null";
      if (return_token_ids()) append_ids("prompt_token_ids", prompt_ids(index), events);
      end_chunk(nullptr, events);
    }
    // What tokens bring beside their text goes out at once, also where the text is held back.
    if (parts.empty() && (choice.has_logprobs || !choice.token_ids.empty())) {
      parts.push_back({AnswerEvent::Kind::content, {}, {}, 0});
    }
    for (const AnswerEvent& part : parts) append_part(index, part, events);
    if (!choice.finish) return;
    begin_chunk(index, events);
    *events += "\"delta\":{\"reasoning_content\":null";
    append_states(index, events);
    *events += "},\"logprobs\":null";
    end_chunk(&*choice.finish, events, stop_name(choice));
  }

  void append_part(size_t index, const AnswerEvent& part, std::string* events) {
    Choice& choice = choices_[index];
    begin_chunk(index, events);
    *events += "\"delta\":{";
    append_delta(part, events);
    *events += "},\"logprobs\":";
    append_logprobs(choice, events);
    if (return_token_ids()) append_ids("token_ids", choice.token_ids, events);
    end_chunk(nullptr, events);
    choice.token_ids.clear();
    choice.logprobs.clear();
    choice.has_logprobs = false;
  }

  // SGLang's clients read reasoning_content of every delta, also where there is none.
  static void append_delta(const AnswerEvent& part, std::string* out) {
    *out += "\"reasoning_content\":";
    if (part.kind == AnswerEvent::Kind::reasoning) return append_json_string(part.text, out);
    *out += "null,";
    if (part.kind == AnswerEvent::Kind::content) {
      *out += "\"content\":";
      return append_json_string(part.text, out);
    }
    *out += "\"tool_calls\":[{\"index\":";
    append_json_int(static_cast<int64_t>(part.call), out);
    if (part.kind == AnswerEvent::Kind::call) {
      *out += ",\"id\":";
      append_json_string(part.id, out);
      *out += ",\"type\":\"function\",\"function\":{\"name\":";
      append_json_string(part.text, out);
      *out += ",\"arguments\":\"\"}}]";
    } else {
      *out += ",\"function\":{\"arguments\":";
      append_json_string(part.text, out);
      *out += "}}]";
    }
  }

  static std::string_view stop_name(const Choice& choice) {
    return choice.reader.calls_tools() ? "tool_calls" : "stop";
  }

  void append_choice(size_t index, std::string* out) override {
    const Choice& choice = choices_[index];
    const CollectedAnswer& answer = choice.answer;
    *out += "{\"index\":";
    append_json_int(static_cast<int64_t>(index), out);
    *out += ",\"message\":{\"role\":\"assistant\",\"content\":";
    append_text(answer.content, /*null=*/answer.content.empty() && !answer.calls.empty(), out);
    *out += ",\"reasoning_content\":";
    append_text(answer.reasoning, /*null=*/answer.reasoning.empty(), out);
    *out += ",\"tool_calls\":";
    if (answer.calls.empty()) {
      *out += "null";
    } else {
      append_tool_calls(answer.calls, out);
    }
    *out += "},\"logprobs\":";
    append_logprobs(choice, out);
    if (return_token_ids()) append_ids("token_ids", choice.token_ids, out);
    append_states(index, out);
    *out += ',';
    append_finish(choice.finish ? &*choice.finish : nullptr, out, stop_name(choice));
    *out += '}';
  }

  static void append_text(const std::string& text, bool null, std::string* out) {
    if (null) {
      *out += "null";
    } else {
      append_json_string(text, out);
    }
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

}  // namespace

Result<GenerationJob> parse_chat(const Api& api, std::string_view body) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  WW_RETURN_IF_ERROR(api.require_tokenizer("/v1/chat/completions"));
  WW_ASSIGN_OR_RETURN(PreparedChat chat, prepare_chat(api, owned.value, body, "chatcmpl-"));
  chat.job.builder = std::make_unique<ChatBuilder>(api, chat.options, chat.plan, std::move(chat.prompt_ids));
  return std::move(chat.job);
}

}  // namespace warpweave::server
