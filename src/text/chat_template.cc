#include "text/chat_template.h"

#include <algorithm>
#include <ctime>
#include <exception>

#include "base/json_parse.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/json.h"
#include "text/jinja/parser.h"

namespace warpweave {

namespace {

using nlohmann::ordered_json;

std::string with_line(const jinja::Error& error) {
  return "chat template, line " + std::to_string(error.line) + ": " + error.what();
}

std::tm local_time(std::optional<std::chrono::system_clock::time_point> moment) {
  const std::time_t t =
      std::chrono::system_clock::to_time_t(moment.value_or(std::chrono::system_clock::now()));
  std::tm out{};
  localtime_r(&t, &out);
  return out;
}

// A list of text parts as one string; anything else stays.
void flatten_content(ordered_json& message) {
  auto content = message.find("content");
  if (content == message.end() || !content->is_array()) return;
  std::string text;
  for (const ordered_json& part : *content) {
    if (!part.is_object() || part.value("type", "") != "text" || !part.contains("text") ||
        !part["text"].is_string()) {
      return;
    }
    text += part["text"].get_ref<const std::string&>();
  }
  *content = std::move(text);
}

// Tool-call arguments come as JSON text over the API; templates walk over the object.
void parse_tool_arguments(ordered_json& message) {
  auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (ordered_json& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    auto arguments = call["function"].find("arguments");
    if (arguments == call["function"].end() || !arguments->is_string()) continue;
    // Text that is no object, or beyond the limits, stays the text that it is.
    auto parsed = parse_json(arguments->get_ref<const std::string&>());
    if (parsed.ok() && parsed->is_object()) *arguments = std::move(parsed).value();
  }
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string source) {
  try {
    return ChatTemplate(jinja::parse_template(std::move(source)));
  } catch (const jinja::Error& error) {
    return Status::invalid_argument(with_line(error), "chat_template");
  } catch (const std::exception& error) {
    return Status::internal(std::string("chat template: ") + error.what());
  }
}

Result<std::string> ChatTemplate::render(const ordered_json& variables) const {
  if (!variables.is_object()) {
    return Status::invalid_argument("the template variables must be an object", "messages");
  }
  try {
    const jinja::Limits limits{limits_.max_work, limits_.max_output_bytes};
    return jinja::Interpreter(*parsed_, variables, limits, local_time(now_)).run();
  } catch (const jinja::RaisedByTemplate& raised) {
    return Status::invalid_argument(
        std::string("the model's chat template refuses these messages: ") + raised.what(),
        "messages");
  } catch (const jinja::Error& error) {
    return Status::invalid_argument(
        with_line(error) + "; check the roles, content and tools of the messages", "messages");
  } catch (const std::exception& error) {
    return Status::internal(std::string("chat template: ") + error.what());
  }
}

Result<std::string> ChatTemplate::render_chat(ChatInput input) const {
  if (!input.messages.is_array()) {
    return Status::invalid_argument("messages must be an array of {\"role\", \"content\"} objects",
                                    "messages");
  }
  try {
    for (ordered_json& message : input.messages) {
      if (!message.is_object()) {
        return Status::invalid_argument(
            "each of messages must be an object with \"role\" and \"content\"", "messages");
      }
      if (!accepts_content_parts()) flatten_content(message);
      parse_tool_arguments(message);
    }
    // Appended without a look: of equal names the last one counts, and looking each one up would take a
    // time that grows with the square of their number.
    ordered_json variables = ordered_json::object();
    auto& named = variables.get_ref<ordered_json::object_t&>();
    named.emplace_back("add_generation_prompt", input.add_generation_prompt);
    if (!input.bos_token.empty()) named.emplace_back("bos_token", std::move(input.bos_token));
    if (!input.eos_token.empty()) named.emplace_back("eos_token", std::move(input.eos_token));
    named.emplace_back("documents", nullptr);
    if (input.extra.is_object()) {
      for (auto& [key, value] : input.extra.get_ref<ordered_json::object_t&>()) {
        named.emplace_back(key, std::move(value));
      }
    }
    named.emplace_back("messages", std::move(input.messages));
    named.emplace_back("tools", std::move(input.tools));
    return render(variables);
  } catch (const std::exception& error) {
    return Status::internal(std::string("chat template: ") + error.what());
  }
}

bool ChatTemplate::accepts_content_parts() const { return parsed_->iterates_content; }

const std::string& ChatTemplate::source() const { return parsed_->source; }

}  // namespace warpweave
