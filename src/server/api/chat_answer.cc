#include "server/api/chat_answer.h"

#include <fmt/format.h>

#include "base/log.h"
#include "server/api/json_write.h"

namespace warpweave::server {

using output::AnswerEvent;

ChoiceReader::ChoiceReader(const AnswerPlan& plan)
    : stream_reasoning_(plan.stream_reasoning), short_ids_(plan.format.calls == "mistral") {
  if (plan.parses) parser_.emplace(plan.format);
}

std::vector<AnswerEvent> ChoiceReader::read(const OutputDelta& delta) {
  std::vector<AnswerEvent> events;
  if (!parser_) {
    if (!delta.text.empty()) events.push_back({AnswerEvent::Kind::content, delta.text, {}, 0});
    return events;
  }
  events = parser_->feed(delta.text);
  if (delta.finish) {
    for (AnswerEvent& event : parser_->finish()) events.push_back(std::move(event));
    for (const std::string& name : parser_->unknown_calls()) {
      LOG_WARN("an answer calls the tool {}, which the request did not offer; the call is left out",
               log_safe(name, 80));
    }
  }
  for (AnswerEvent& event : events) {
    if (event.kind != AnswerEvent::Kind::call || !event.id.empty()) continue;
    event.id = short_ids_ ? random_id("").substr(0, 9) : random_id("call_");
  }
  if (!stream_reasoning_) hold_reasoning(delta.finish.has_value(), &events);
  return events;
}

void ChoiceReader::hold_reasoning(bool finished, std::vector<AnswerEvent>* events) {
  std::vector<AnswerEvent> out;
  const auto release = [&] {
    if (!held_reasoning_.empty()) {
      out.push_back({AnswerEvent::Kind::reasoning, std::exchange(held_reasoning_, {}), {}, 0});
    }
  };
  for (AnswerEvent& event : *events) {
    if (event.kind == AnswerEvent::Kind::reasoning) {
      held_reasoning_ += event.text;
    } else {
      release();
      out.push_back(std::move(event));
    }
  }
  if (finished) release();
  *events = std::move(out);
}

void CollectedAnswer::add(const std::vector<AnswerEvent>& events) {
  for (const AnswerEvent& event : events) {
    switch (event.kind) {
      case AnswerEvent::Kind::reasoning: reasoning += event.text; break;
      case AnswerEvent::Kind::content: content += event.text; break;
      case AnswerEvent::Kind::call: calls.push_back({event.id, event.text, {}}); break;
      case AnswerEvent::Kind::arguments: calls.back().arguments += event.text; break;
    }
  }
}

void append_tool_calls(const std::vector<CollectedAnswer::Call>& calls, std::string* out) {
  *out += '[';
  for (const CollectedAnswer::Call& call : calls) {
    if (&call != calls.data()) *out += ',';
    *out += "{\"id\":";
    append_json_string(call.id, out);
    *out += ",\"type\":\"function\",\"function\":{\"name\":";
    append_json_string(call.name, out);
    *out += ",\"arguments\":";
    append_json_string(call.arguments, out);
    *out += "}}";
  }
  *out += ']';
}

}  // namespace warpweave::server
