// /v1/responses: answers and streams, kept for previous_response_id where asked.
#include <algorithm>
#include <ctime>
#include <optional>
#include <utility>

#include "server/api/body_rewriter.h"
#include "server/api/chat_answer.h"
#include "server/api/chat_request.h"
#include "server/api/openai_logprobs.h"
#include "server/api/requests.h"
#include "server/api/responses_request.h"

namespace warpweave::server {
namespace {

using output::AnswerEvent;
using Kind = AnswerEvent::Kind;

constexpr OtherName kOtherNames[] = {
    {"response_format.json_schema", "text.format"},
    {"response_format", "text.format"},
    {R"("json_schema": {"name": "...", "schema": {...}}})", R"("name": "...", "schema": {...}})"},
    {"reasoning_effort", "reasoning.effort"},
    {"max_tokens or max_completion_tokens", "max_output_tokens"},
    {"max_completion_tokens", "max_output_tokens"},
    {"max_tokens", "max_output_tokens"},
    {R"("function": {"name": "..."}})", R"("name": "..."})"},
    {".function.", "."},
    {"messages", "input"},
    {"prompt", "input"},
};

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Lists of log-probabilities as JSON text, which takes a tenth of what values take. In values a name stands for each,
// which no text of a model can hold, until the whole is written.
class LogprobTexts {
 public:
  // The name of a list with these entries, which are kept until forget().
  Json keep(std::string entries) {
    lists_.push_back(std::move(entries));
    return mark_ + std::to_string(lists_.size() - 1);
  }
  // Adds to the list that was kept last.
  void add_to_last(std::string_view entries) {
    std::string& list = lists_.back();
    if (!list.empty() && !entries.empty()) list += ',';
    list += entries;
  }
  void forget_last() { lists_.pop_back(); }
  std::string written(const Json& json) const;

 private:
  const std::string mark_ = random_id("logprobs-") + ":";
  std::vector<std::string> lists_;
};

std::string LogprobTexts::written(const Json& json) const {
  const std::string text = dump(json), quoted = '"' + mark_;
  if (lists_.empty()) return text;
  std::string out;
  size_t done = 0;
  for (size_t at; (at = text.find(quoted, done)) != text.npos;) {
    const size_t number_at = at + quoted.size(), end = text.find('"', number_at);
    out.append(text, done, at - done);
    out += '[' + lists_[std::stoul(text.substr(number_at, end - number_at))] + ']';
    done = end + 1;
  }
  return out.append(text, done);
}

class ResponsesBuilder final : public ResponseBuilder {
 public:
  ResponsesBuilder(Api& api, const PreparedChat& chat, ResponseRequest request, std::string owner)
      : store_(api.responses()), owner_(std::move(owner)), id_(chat.options.rid), request_(std::move(request)),
        reader_(chat.plan), tokenizer_(*api.context().tokenizer), with_logprobs_(chat.options.logprobs) {
    frame_.value = {{"id", id_},
                    {"object", "response"},
                    {"created_at", std::time(nullptr)},
                    {"model", chat.options.model_name(api)}};
    frame_.value.update(request_.echoed.value);
    frame_.value["store"] = request_.store;
    frame_.value["error"] = nullptr;
  }

  std::string_view stream_end() const override { return {}; }
  void append_error_event(const Status& error, std::string* events) override {
    append_event("error", {{"code", std::string(error_code(error))}, {"message", error.message()}, {"param", nullptr}},
                 events);
  }

  void add(size_t, const OutputDelta& delta, std::string* events) override {
    prompt_tokens_ = delta.prompt_tokens;
    cached_tokens_ = delta.cached_tokens;
    completion_tokens_ = delta.completion_tokens;
    if (delta.finish) finish_ = delta.finish;
    const std::vector<AnswerEvent> parts = reader_.read(delta);
    if (with_logprobs_) unsaid_.add(delta.output_logprobs, tokenizer_);
    if (events && !begun_) begin(events);
    for (const AnswerEvent& part : parts) take(part, events);
    if (!finish_) return;
    end_item(events);
    if (events) append_event(done() ? "response.completed" : "response.incomplete", {{"response", finished()}}, events);
  }

  std::string body() override { return logprobs_.written(finished()); }

 private:
  bool done() const { return finish_ && finish_->type == FinishReason::Type::stop; }

  void append_event(std::string_view type, Json data, std::string* events) {
    Json event{{"type", type}, {"sequence_number", sequence_++}};
    event.update(data);
    *events += "event: ";
    *events += type;
    *events += "\ndata: ";
    *events += logprobs_.written(event);
    *events += "\n\n";
  }

  void begin(std::string* events) {
    begun_ = true;
    Json response = frame_.value;
    response["status"] = "in_progress";
    response["output"] = Json::array();
    append_event("response.created", {{"response", response}}, events);
    append_event("response.in_progress", {{"response", response}}, events);
  }

  // The item that is being written, as it looks with the text so far.
  Json item(std::string_view status) const {
    switch (kind_) {
      case Kind::reasoning:
        return {{"id", item_id_}, {"type", "reasoning"}, {"summary", Json::array()}, {"status", status},
                {"content", Json::array({part_of("reasoning_text")})}};
      case Kind::content:
        return {{"id", item_id_}, {"type", "message"}, {"status", status}, {"role", "assistant"},
                {"content", Json::array({part_of("output_text")})}};
      default:
        return {{"id", item_id_},      {"type", "function_call"}, {"status", status},
                {"call_id", call_id_}, {"name", name_},           {"arguments", text_}};
    }
  }
  Json part_of(std::string_view type) const {
    Json part{{"type", type}, {"text", text_}};
    if (type == "output_text") part.update({{"annotations", Json::array()}, {"logprobs", list_}});
    return part;
  }
  Json place(bool in_part) const {
    Json where{{"item_id", item_id_}, {"output_index", output_.size()}};
    if (in_part) where["content_index"] = 0;
    return where;
  }
  // "response.output_text" and its relatives.
  std::string event_name() const {
    if (kind_ == Kind::reasoning) return "response.reasoning_text";
    return kind_ == Kind::content ? "response.output_text" : "response.function_call_arguments";
  }
  bool has_parts() const { return kind_ == Kind::content || kind_ == Kind::reasoning; }

  void begin_item(const AnswerEvent& part, std::string* events) {
    end_item(events);
    open_ = true;
    kind_ = part.kind;
    text_.clear();
    list_ = with_logprobs_ && kind_ == Kind::content ? logprobs_.keep({}) : Json::array();
    item_id_ = random_id(kind_ == Kind::reasoning ? "rs_" : kind_ == Kind::content ? "msg_" : "fc_");
    call_id_ = part.id;
    name_ = part.text;
    if (!events) return;
    Json shown = item("in_progress");
    if (has_parts()) shown["content"] = Json::array();
    append_event("response.output_item.added", {{"output_index", output_.size()}, {"item", std::move(shown)}}, events);
    if (kind_ != Kind::content) return;
    Json added = place(true);
    added["part"] = part_of("output_text");
    append_event("response.content_part.added", std::move(added), events);
  }

  void take(const AnswerEvent& part, std::string* events) {
    if (part.kind == Kind::call) {
      begin_item(part, events);
      return;
    }
    const bool goes_on = open_ && (part.kind == kind_ || part.kind == Kind::arguments);
    if (!goes_on) begin_item(part, events);
    text_ += part.text;
    // Of the tokens since the last text, those of marks and reasoning among them.
    const bool has_logprobs = with_logprobs_ && kind_ == Kind::content;
    if (has_logprobs) logprobs_.add_to_last(unsaid_.entries());
    if (events) append_delta(part.text, has_logprobs, events);
    if (has_logprobs) unsaid_.clear();
  }

  void append_delta(const std::string& text, bool has_logprobs, std::string* events) {
    Json delta = place(has_parts());
    delta["delta"] = text;
    if (kind_ == Kind::content) delta["logprobs"] = has_logprobs ? logprobs_.keep(unsaid_.entries()) : Json::array();
    append_event(event_name() + ".delta", std::move(delta), events);
    if (has_logprobs) logprobs_.forget_last();
  }

  void end_item(std::string* events) {
    if (!open_) return;
    Json whole = item(finish_ && !done() ? "incomplete" : "completed");
    if (events) {
      Json last = place(has_parts());
      last[has_parts() ? "text" : "arguments"] = text_;
      if (kind_ == Kind::content) last["logprobs"] = list_;
      if (!has_parts()) last["name"] = name_;
      append_event(event_name() + ".done", std::move(last), events);
      if (kind_ == Kind::content) {
        Json part = place(true);
        part["part"] = part_of("output_text");
        append_event("response.content_part.done", std::move(part), events);
      }
      append_event("response.output_item.done", {{"output_index", output_.size()}, {"item", whole}}, events);
    }
    remember();
    output_.push_back(std::move(whole));
    open_ = false;
  }

  // Counted anew, for an answer's marks and texts may share tokens; at most all that the answer has.
  int64_t tokens_of(const std::string& text) const {
    const auto ids = tokenizer_.encode(text, /*add_special_tokens=*/false);
    return ids.ok()
               ? std::min<int64_t>(static_cast<int64_t>(ids.value().size()), completion_tokens_ - reasoning_tokens_)
               : 0;
  }

  // The item in the conversation that a next request may go on from.
  void remember() {
    if (kind_ == Kind::content) said_ += text_;
    if (kind_ == Kind::reasoning) reasoning_tokens_ += tokens_of(text_);
    if (kind_ != Kind::content && kind_ != Kind::reasoning) {
      calls_.push_back({{"id", call_id_}, {"type", "function"}, {"function", {{"name", name_}, {"arguments", text_}}}});
    }
  }

  Json finished() {
    Json response = frame_.value;
    response["status"] = done() ? "completed" : "incomplete";
    response["incomplete_details"] = done() ? Json() : Json{{"reason", "max_output_tokens"}};
    response["output"] = output_;
    response["usage"] = {{"input_tokens", prompt_tokens_},
                         {"input_tokens_details", {{"cached_tokens", cached_tokens_}}},
                         {"output_tokens", completion_tokens_},
                         {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens_}}},
                         {"total_tokens", prompt_tokens_ + completion_tokens_}};
    if (request_.store) keep(response);
    return response;
  }

  void keep(const Json& response) {
    Json& messages = request_.chat.value["messages"];
    Json message{{"role", "assistant"}, {"content", said_}};
    if (!calls_.empty()) message["tool_calls"] = calls_;
    messages.push_back(std::move(message));
    store_.put(owner_, id_, {logprobs_.written(response), dump(messages), dump(request_.input.value)});
  }

  ResponseStore& store_;
  const std::string owner_;
  const std::string id_;
  ResponseRequest request_;
  OwnedJson frame_;
  ChoiceReader reader_;
  const Tokenizer& tokenizer_;
  const bool with_logprobs_;
  ChatLogprobs unsaid_;            // of tokens whose text has not come
  LogprobTexts logprobs_;
  std::optional<FinishReason> finish_;
  int prompt_tokens_ = 0, cached_tokens_ = 0, completion_tokens_ = 0;
  int64_t reasoning_tokens_ = 0;
  bool begun_ = false;
  int sequence_ = 0;

  bool open_ = false;  // the item being written
  Kind kind_ = Kind::content;
  std::string item_id_, call_id_, name_, text_;
  Json list_ = Json::array();      // a message's log-probabilities
  Json output_ = Json::array();
  std::string said_;
  Json calls_ = Json::array();
};

}  // namespace

Result<GenerationJob> parse_response(Api& api, std::string_view body, std::string_view owner) {
  WW_ASSIGN_OR_RETURN(const OwnedJson owned, parse_body(body));
  WW_RETURN_IF_ERROR(api.require_tokenizer("/v1/responses"));
  WW_ASSIGN_OR_RETURN(ResponseRequest request, read_response_request(api, owned.value, std::string(owner)));
  auto chat = prepare_chat(api, request.chat.value, request.chat.value.dump(), "resp_");
  if (!chat.ok()) return in_own_names(chat.status(), kOtherNames);
  chat->job.builder = std::make_unique<ResponsesBuilder>(api, *chat, std::move(request), std::string(owner));
  return std::move(chat->job);
}

}  // namespace warpweave::server
