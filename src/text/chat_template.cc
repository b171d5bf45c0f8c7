#include "text/chat_template.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <new>

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
    if (!part.is_object()) return;
    const auto type = part.find("type");
    const auto own = part.find("text");
    if (type == part.end() || !is_text(*type, "text") || own == part.end() || !own->is_string()) return;
    text += own->get_ref<const std::string&>();
  }
  dismantle(*content);
  *content = std::move(text);
}

// Tool-call arguments come as JSON text over the API; templates walk over the object. What is no
// JSON object stays text: models write such, and it comes back in the history. `limits` is what the
// messages' arguments may still hold.
Status parse_tool_arguments(ordered_json& message, const std::string& field, JsonLimits* limits) {
  auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return {};
  for (size_t i = 0; i < calls->size(); ++i) {
    ordered_json& call = (*calls)[i];
    if (!call.is_object()) continue;
    const auto function = call.find("function");
    if (function == call.end() || !function->is_object()) continue;
    const auto arguments = function->find("arguments");
    if (arguments == function->end() || !arguments->is_string()) continue;
    size_t used_values = 0;
    Result<ordered_json> result =
        parse_json(arguments->get_ref<const std::string&>(), *limits, &used_values);
    limits->max_values -= std::min(limits->max_values, used_values);
    OwnedJson parsed;
    if (result.ok()) parsed.value = std::move(result).value();
    if (parsed.value.is_object()) {
      *arguments = std::move(parsed.value);
    } else if (!result.ok() && result.status().code() == StatusCode::resource_exhausted) {
      const std::string name = field + ".tool_calls[" + std::to_string(i) + "].function.arguments";
      return Status::invalid_argument(
          name + " cannot be read: " + result.status().message() + "; send smaller arguments.", name);
    }
  }
  return {};
}

// What is thrown past the template's own errors: memory, or a bug of ours.
Status failure(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return Status::unavailable("There is not enough memory for the chat template now; retry later.");
  }
  return Status::internal(std::string("chat template: ") + error.what());
}

}  // namespace

ChatInput::~ChatInput() {
  for (ordered_json* part : {&messages, &tools, &extra}) dismantle(*part);
}

Result<ChatTemplate> ChatTemplate::parse(std::string source) {
  try {
    return ChatTemplate(jinja::parse_template(std::move(source)));
  } catch (const jinja::Error& error) {
    return Status::invalid_argument(with_line(error), "chat_template");
  } catch (const std::exception& error) {
    return failure(error);
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
    return failure(error);
  }
}

Result<std::string> ChatTemplate::render_chat(ChatInput input) const {
  if (!input.messages.is_array()) {
    return Status::invalid_argument("messages must be an array of {\"role\", \"content\"} objects",
                                    "messages");
  }
  try {
    JsonLimits argument_limits;
    for (size_t i = 0; i < input.messages.size(); ++i) {
      ordered_json& message = input.messages[i];
      if (!message.is_object()) {
        return Status::invalid_argument(
            "each of messages must be an object with \"role\" and \"content\"", "messages");
      }
      if (!accepts_content_parts()) flatten_content(message);
      WW_RETURN_IF_ERROR(parse_tool_arguments(message, "messages[" + std::to_string(i) + "]",
                                              &argument_limits));
    }
    // Appended without a look: of equal names the last one counts, and looking each one up would take a
    // time that grows with the square of their number.
    OwnedJson variables(ordered_json::object());
    auto& named = variables.value.get_ref<ordered_json::object_t&>();
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
    return render(variables.value);
  } catch (const std::exception& error) {
    return failure(error);
  }
}

bool ChatTemplate::accepts_content_parts() const { return parsed_->iterates_content; }

const std::string& ChatTemplate::source() const { return parsed_->source; }

}  // namespace warpweave
