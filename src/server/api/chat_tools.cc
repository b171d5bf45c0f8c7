#include "server/api/chat_tools.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "output/formats.h"
#include "output/tool_grammar.h"
#include "server/api/limits.h"

namespace warpweave::server {
namespace {

// Chat templates show a tool as it was sent: so what a function returns, as transformers describes it, reaches the
// model.
constexpr std::string_view kShownOfFunction[] = {"return", "returns", "response"};
constexpr std::string_view kWithoutEffectOfTool[] = {"cache_control"};
// Some clients name a function by sending all of it.
constexpr std::string_view kWithoutEffectOfChoice[] = {"description", "parameters", "strict"};

Status check_tool(const Json& tool, const std::string& field, bool allow_unknown) {
  if (!tool.is_object()) return wrong_type(field, "an object with a function", tool);
  FieldReader outer(tool, field + ".");
  if (const Json* const type = outer.find("type"); type != nullptr && !is_text(*type, "function")) {
    return Status::unsupported(
        fmt::format("{}.type is {}, but only \"function\" is supported: this server runs no tools of its own.", field,
                    describe_value(*type)),
        field + ".type");
  }
  const Json* const function = outer.find("function");
  if (!allow_unknown) outer.refuse_unknown(kWithoutEffectOfTool);
  WW_RETURN_IF_ERROR(outer.status());
  if (function == nullptr) {
    return Status::invalid_argument(
        fmt::format("{}.function is missing; send {{\"type\": \"function\", \"function\": {{\"name\": \"...\"}}}}.",
                    field),
        field + ".function");
  }
  if (!function->is_object()) return wrong_type(field + ".function", "an object with a name", *function);
  FieldReader reader(*function, field + ".function.");
  std::string name;
  reader.get("name", TextLimit{output::kMaxCallNameBytes}, &name);
  WW_RETURN_IF_ERROR(reader.status());
  if (name.empty()) {
    return Status::invalid_argument(fmt::format("{}.function.name is missing; a tool needs a name.", field),
                                    field + ".function.name");
  }
  std::string description;
  bool strict = false;
  reader.get("description", TextLimit{kMaxTextBytes}, &description);
  reader.get("strict", &strict);
  WW_RETURN_IF_ERROR(reader.status());
  const Json* parameters = reader.find("parameters");
  if (parameters && !parameters->is_object()) {
    return wrong_type(field + ".function.parameters", "a JSON schema, an object", *parameters);
  }
  if (!allow_unknown) reader.refuse_unknown(kShownOfFunction);
  return reader.status();
}

Status check_tools(const Json& tools, bool allow_unknown) {
  if (!tools.is_array()) return wrong_type("tools", "a list of tools", tools);
  if (tools.size() > kMaxTools) {
    return Status::invalid_argument(
        fmt::format("tools has {} items, but at most {} are allowed.", tools.size(), kMaxTools), "tools");
  }
  for (size_t i = 0; i < tools.size(); ++i) {
    WW_RETURN_IF_ERROR(check_tool(tools[i], fmt::format("tools[{}]", i), allow_unknown));
  }
  return {};
}

Status bad_choice(const Json& choice) {
  return Status::invalid_argument(
      fmt::format("tool_choice is {}, but must be \"auto\", \"none\", \"required\" or {{\"type\": \"function\", "
                  "\"function\": {{\"name\": \"...\"}}}}.",
                  describe_value(choice)),
      "tool_choice");
}

// A member of an object; null: there is none, or `json` is something else.
const Json* member(const Json& json, const char* name) {
  const auto at = json.is_object() ? json.find(name) : json.end();
  return at == json.end() ? nullptr : &*at;
}

// Of a function; empty: it has none.
std::string name_of(const Json& function) {
  const Json* const name = member(function, "name");
  return name != nullptr && name->is_string() ? name->get<std::string>() : std::string();
}

// {"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": [{"type": "function", "function":
// {"name"}}]}}
Status read_allowed(const FieldReader& body, ToolRequest* out, std::set<std::string>* allowed) {
  const Json* const object = member(*body.find("tool_choice"), "allowed_tools");
  const Status wrong = Status::invalid_argument(
      "tool_choice.allowed_tools needs a mode, \"auto\" or \"required\", and a list of tools.", "tool_choice");
  if (object == nullptr || !object->is_object()) return wrong;
  FieldReader reader = body.inside(*object, "tool_choice.allowed_tools.");
  std::string mode;
  reader.get("mode", TextLimit{16}, &mode);
  const Json* const tools = reader.find("tools");
  reader.refuse_unknown();
  WW_RETURN_IF_ERROR(reader.status());
  if ((mode != "auto" && mode != "required") || tools == nullptr || !tools->is_array() || tools->empty()) return wrong;
  out->must_call = mode == "required";
  for (const Json& tool : *tools) {
    const Json* const function = member(tool, "function");
    const std::string name = function != nullptr ? name_of(*function) : std::string();
    if (name.empty()) return wrong_type("tool_choice.allowed_tools.tools", "a list of functions with names", tool);
    allowed->insert(name);
  }
  return {};
}

// Those of `tools` that tool_choice allows, however often it names one.
Result<Json> allowed_of(const Json& tools, std::set<std::string> allowed) {
  Json out = Json::array();
  for (const Json& tool : tools) {
    if (allowed.erase(name_of(tool["function"])) > 0) out.push_back(tool);
  }
  if (allowed.empty()) return out;
  return Status::invalid_argument(
      fmt::format("tool_choice allows \"{}\", which is none of tools.", allowed.begin()->substr(0, 100)),
      "tool_choice");
}

// Sets `out` from tool_choice. `none`: the tools are not to be called. `allowed`: only these may be; empty: all.
Status read_choice(const FieldReader& reader, ToolRequest* out, bool* none, std::set<std::string>* allowed) {
  const Json* choice = reader.find("tool_choice");
  if (!choice || is_text(*choice, "auto")) return {};
  *none = is_text(*choice, "none");
  out->must_call = !*none;
  if (*none || is_text(*choice, "required")) return {};
  const Json* const type = member(*choice, "type");
  if (type != nullptr && is_text(*type, "allowed_tools")) return read_allowed(reader, out, allowed);
  const Json* const function = member(*choice, "function");
  if (function == nullptr || !function->is_object()) return bad_choice(*choice);
  if (type != nullptr && !is_text(*type, "function")) return bad_choice(*choice);
  out->only = name_of(*function);
  if (out->only.empty()) return bad_choice(*choice);
  FieldReader fields = reader.inside(*choice, "tool_choice.");
  FieldReader named = reader.inside(*function, "tool_choice.function.");
  for (const char* name : {"type", "function"}) fields.find(name);
  named.find("name");
  fields.refuse_unknown();
  named.refuse_unknown(kWithoutEffectOfChoice);
  return fields.status().ok() ? named.status() : fields.status();
}

bool is_special_mark(const Tokenizer& tokenizer, std::string_view mark) {
  const std::optional<int32_t> id = tokenizer.token_to_id(mark);
  return id && tokenizer.is_special(*id);
}

bool has_special_mark(const Tokenizer& tokenizer, const output::CallFormat* calls,
                      const output::ReasoningFormat* reasoning) {
  const auto special = [&](std::string_view mark) { return is_special_mark(tokenizer, mark); };
  if (calls && std::any_of(calls->marks.begin(), calls->marks.end(), special)) return true;
  if (!reasoning) return false;
  if (!reasoning->begin.empty()) return special(reasoning->begin) || special(reasoning->end);
  const auto& harmony = output::find_call_format(reasoning->name)->marks;
  return std::any_of(harmony.begin(), harmony.end(), special);
}

bool goes_on_in_reasoning(const output::ReasoningFormat& format, const PromptEnd& prompt) {
  if (prompt.continued.empty()) return output::begins_in_reasoning(format, prompt.text);
  if (format.begin.empty()) return false;
  const size_t begin = prompt.continued.rfind(format.begin);
  const size_t end = prompt.continued.rfind(format.end);
  return begin != std::string_view::npos && (end == std::string_view::npos || end < begin);
}

// A grammar of the request holds the content: reasoning comes before, where its end can be sampled under a grammar,
// else not at all.
Status hold_content(const Api& api, const output::ReasoningFormat& format, const PromptEnd& prompt, AnswerPlan* plan,
                    SamplingParams* params) {
  const bool inside = plan->format.begins_in_reasoning;
  if (format.begin.empty() || is_special_mark(*api.tokenizer(), format.end)) {
    plan->format.reasoning = {};
    return {};
  }
  if (!inside && (!prompt.continued.empty() || output::ends_behind_reasoning(format, prompt.text))) return {};
  const grammar::ReasoningMarks marks{inside ? std::string() : std::string(format.begin), std::string(format.end)};
  WW_ASSIGN_OR_RETURN(params->grammar, api.grammar_context().compiler->behind_reasoning(params->grammar, marks));
  return {};
}

Result<std::string_view> demand_calls(const Api& api, const output::ToolDemand& demand, SamplingParams* params) {
  std::optional<output::ToolGrammar> grammar = output::make_tool_grammar(demand);
  if (!grammar || (!demand.must_call && params->grammar != nullptr)) return demand.format;
  if (params->grammar != nullptr) {
    return Status::invalid_argument(
        "tool_choice demands a call, and another field (response_format, structured_outputs, json_schema, regex, ebnf, "
        "structural_tag or a guided_ one) a form of the text; an answer can follow one of them.", "tool_choice");
  }
  WW_ASSIGN_OR_RETURN(
      params->grammar,
      compile_structural_tag(api.grammar_context(), demand.must_call ? "tool_choice" : "tools", grammar->tag.value));
  return grammar->format;
}

}  // namespace

Result<std::shared_ptr<const output::ToolSet>> read_tool_set(const Api& api, const FieldReader& reader) {
  const Json* const tools = reader.find("tools");
  if (tools != nullptr) WW_RETURN_IF_ERROR(check_tools(*tools, api.context().args.allow_unknown_fields));
  if (tools == nullptr || tools->empty()) return std::shared_ptr<const output::ToolSet>();
  return std::make_shared<const output::ToolSet>(*tools);
}

Result<ToolRequest> read_tools(const Api& api, const FieldReader& reader) {
  ToolRequest out;
  const Json* tools = reader.find("tools");
  const Json* parallel = reader.find("parallel_tool_calls");
  if (parallel && !parallel->is_boolean()) return wrong_type("parallel_tool_calls", "true or false", *parallel);
  out.parallel_calls = !parallel || parallel->get<bool>();
  bool none = false;
  std::set<std::string> allowed;
  WW_RETURN_IF_ERROR(read_choice(reader, &out, &none, &allowed));
  if (!out.only.empty()) out.parallel_calls = false;  // a function that is named is called once
  if (tools) WW_RETURN_IF_ERROR(check_tools(*tools, api.context().args.allow_unknown_fields));
  const bool given = tools && !tools->empty();
  if (out.must_call && !given) {
    return Status::invalid_argument("tool_choice demands a call, but tools is empty; send tools.", "tool_choice");
  }
  if (!given || none) return out;
  OwnedJson offered(*tools);
  if (!allowed.empty()) {
    WW_ASSIGN_OR_RETURN(offered.value, allowed_of(*tools, std::move(allowed)));
  }
  out.set = std::make_shared<const output::ToolSet>(offered.value);
  if (!out.only.empty() && !out.set->has(out.only)) {
    return Status::invalid_argument(fmt::format("tool_choice names \"{}\", which is none of tools.", out.only),
                                    "tool_choice");
  }
  out.tools = std::move(offered);
  return out;
}

ReasoningRequest read_reasoning_fields(FieldReader* reader) {
  ReasoningRequest out;
  reader->get("separate_reasoning", &out.separate);
  reader->get("stream_reasoning", &out.stream);
  // vLLM's name; its router fills in the default, true.
  bool include = true;
  if (reader->get("include_reasoning", &include) && !include) {
    reader->fail(Status::unsupported("include_reasoning: false is not supported: reasoning_content is answered beside "
                                     "content; leave it out, and do not read that member.", "include_reasoning"));
  }
  return out;
}

Result<AnswerPlan> plan_answer(const Api& api, const ToolRequest& tools, const ReasoningRequest& reasoning,
                               const PromptEnd& prompt, SamplingParams* params) {
  AnswerPlan plan;
  plan.stream_reasoning = reasoning.stream;
  plan.format.tools = tools.set;
  plan.format.parallel_calls = tools.parallel_calls;
  const output::ReasoningFormat* format =
      reasoning.separate ? output::find_reasoning_format(api.reasoning_format()) : nullptr;
  if (format) {
    plan.format.reasoning = format->name;
    plan.format.begins_in_reasoning = goes_on_in_reasoning(*format, prompt);
    if (params->grammar != nullptr) WW_RETURN_IF_ERROR(hold_content(api, *format, prompt, &plan, params));
  }
  if (tools.any()) {
    output::ToolDemand demand{.tools = tools.tools.value, .only = tools.only, .must_call = tools.must_call,
                              .parallel_calls = tools.parallel_calls, .format = api.call_format()};
    // A special token cannot be sampled under a grammar; then calls come without reasoning.
    if (format && !format->begin.empty() && !is_special_mark(*api.tokenizer(), format->end)) {
      demand.reasoning_begin = format->begin;
      demand.reasoning_end = format->end;
      demand.begins_in_reasoning = plan.format.begins_in_reasoning;
    } else if (tools.must_call) {
      plan.format.reasoning = {};
    }
    WW_ASSIGN_OR_RETURN(plan.format.calls, demand_calls(api, demand, params));
  }
  plan.parses = !plan.format.reasoning.empty() || !plan.format.calls.empty();
  const output::CallFormat* calls = output::find_call_format(plan.format.calls);
  if (plan.parses && has_special_mark(*api.tokenizer(), calls, output::find_reasoning_format(plan.format.reasoning))) {
    params->skip_special_tokens = false;
  }
  return plan;
}

}  // namespace warpweave::server
