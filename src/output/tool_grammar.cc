#include "output/tool_grammar.h"

#include "output/values.h"

namespace warpweave::output {
namespace {

// A call's beginning and end around its arguments.
struct CallText {
  std::string_view before_name;
  std::string_view behind_name;
  std::string_view end;
};
constexpr CallText kHermes = {"<tool_call>\n{\"name\": ", ", \"arguments\": ", "}\n</tool_call>"};
constexpr CallText kJson = {"{\"name\": ", ", \"parameters\": ", "}"};

bool writes_hermes(std::string_view format) { return format == "hermes" || format == "qwen" || format == "qwen25"; }

Json schema_of(const Json& function, bool must_call) {
  const auto strict = function.find("strict");
  const bool free = !must_call && (strict == function.end() || !strict->is_boolean() || !strict->get<bool>());
  if (free) return {{"type", "object"}};
  const auto parameters = function.find("parameters");
  const bool none = parameters == function.end() || parameters->is_null();
  return none ? Json{{"type", "object"}, {"additionalProperties", false}} : *parameters;
}

Json tags_of(const ToolDemand& demand, const CallText& text) {
  Json tags = Json::array();
  for (const Json& tool : demand.tools) {
    const Json& function = tool["function"];
    const auto& name = function["name"].get_ref<const std::string&>();
    if (!demand.only.empty() && name != demand.only) continue;
    Json tag{{"type", "tag"}};
    tag["begin"] = std::string(text.before_name) + quoted_json(name) + std::string(text.behind_name);
    tag["content"] = {{"type", "json_schema"}, {"json_schema", schema_of(function, demand.must_call)}};
    tag["end"] = text.end;
    tags.push_back(std::move(tag));
  }
  return tags;
}

Json text_format(std::string_view text) { return {{"type", "const_string"}, {"value", text}}; }

Json separated(const ToolDemand& demand, const CallText& text, std::string_view separator) {
  Json format{{"type", "tags_with_separator"}, {"separator", separator}, {"at_least_one", true}};
  format["stop_after_first"] = !demand.parallel_calls;
  format["tags"] = tags_of(demand, text);
  return format;
}

Json sequence(Json first, Json second) {
  return {{"type", "sequence"}, {"elements", Json::array({std::move(first), std::move(second)})}};
}

// Reasoning, then blanks, then the calls; where the model may leave reasoning out, without it as well.
Json behind_reasoning(const ToolDemand& demand, Json calls) {
  if (demand.reasoning_end.empty()) return calls;
  const std::string_view begin = demand.begins_in_reasoning ? std::string_view() : demand.reasoning_begin;
  Json reasoning{{"type", "tag"}, {"begin", begin}, {"content", {{"type", "any_text"}}}, {"end", demand.reasoning_end}};
  Json blanks{{"type", "regex"}, {"pattern", "\\n{0,2}"}};
  Json thought = sequence(std::move(reasoning), sequence(std::move(blanks), calls));
  if (demand.begins_in_reasoning) return thought;
  return {{"type", "or"}, {"elements", Json::array({std::move(calls), std::move(thought)})}};
}

bool any_strict(const Json& tools) {
  for (const Json& tool : tools) {
    const auto strict = tool["function"].find("strict");
    if (strict != tool["function"].end() && strict->is_boolean() && strict->get<bool>()) return true;
  }
  return false;
}

}  // namespace

std::optional<ToolGrammar> make_tool_grammar(const ToolDemand& demand) {
  const bool hermes = writes_hermes(demand.format);
  Json format;
  if (demand.must_call && hermes) {
    format = behind_reasoning(demand, separated(demand, kHermes, "\n"));
  } else if (demand.must_call) {
    Json list = sequence(text_format("["), sequence(separated(demand, kJson, ", "), text_format("]")));
    format = behind_reasoning(demand, std::move(list));
  } else if (hermes && any_strict(demand.tools)) {
    format = {
        {"type", "triggered_tags"}, {"triggers", Json::array({"<tool_call>"})}, {"tags", tags_of(demand, kHermes)}};
  } else {
    return std::nullopt;
  }
  ToolGrammar grammar;
  grammar.tag.value = {{"type", "structural_tag"}, {"format", std::move(format)}};
  grammar.format = demand.must_call && !hermes ? std::string_view("json") : demand.format;
  return grammar;
}

}  // namespace warpweave::output
