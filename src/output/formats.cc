#include "output/formats.h"

#include <algorithm>
#include <array>
#include <span>

namespace warpweave::output {
namespace {

constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

constexpr ReasoningFormat kReasoningFormats[] = {
    {"deepseek-r1", kThink, kThinkEnd, true},
    {"deepseek-v3", kThink, kThinkEnd, false, "<｜tool▁calls▁begin｜>"},
    {"glm45", kThink, kThinkEnd, false, "<tool_call>", true},
    {"gpt-oss", "", ""},
    {"interns1", kThink, kThinkEnd, false, "<tool_call>"},
    {"kimi", "◁think▷", "◁/think▷"},
    {"kimi_k2", kThink, kThinkEnd, false, "<|tool_calls_section_begin|>", true},
    {"minimax", kThink, kThinkEnd, true},
    {"nemotron_3", kThink, kThinkEnd, false, "<tool_call>"},
    {"qwen3", kThink, kThinkEnd, false, "<tool_call>"},
    {"qwen3-thinking", kThink, kThinkEnd, true, "<tool_call>"},
    {"step3", kThink, kThinkEnd, true},
};

const std::vector<CallFormat>& call_formats() {
  static const std::vector<CallFormat> formats = {
      {"deepseekv3", read_deepseek, true, {"<｜tool▁call▁begin｜>"}},
      {"deepseekv31", read_deepseek, true, {"<｜tool▁call▁begin｜>"}},
      {"glm", read_glm45, true, {"<tool_call>"}},
      {"glm45", read_glm45, true, {"<tool_call>"}},
      {"glm47", read_glm47, true, {"<tool_call>"}},
      {"gpt-oss", read_harmony, true, {"<|channel|>", "<|message|>"}},
      {"hermes", read_hermes, true, {"<tool_call>"}},
      {"json", read_json_list, true, {}},
      {"kimi_k2", read_kimi, true, {"<|tool_call_begin|>"}},
      {"llama3", read_llama3, false, {"<|python_tag|>"}},
      {"llama4", read_pythonic, false, {"<|python_start|>"}},
      {"mistral", read_mistral, true, {"[TOOL_CALLS]", "[ARGS]"}},
      {"pythonic", read_pythonic, false, {}},
      {"qwen", read_hermes, true, {"<tool_call>"}},
      {"qwen25", read_hermes, true, {"<tool_call>"}},
      {"qwen3_coder", read_qwen3_coder, true, {"<tool_call>"}},
      {"step3p5", read_qwen3_coder, true, {"<tool_call>"}},
  };
  return formats;
}

template <typename Formats>
auto find_by_name(const Formats& formats, std::string_view name) -> decltype(&*std::begin(formats)) {
  const auto at =
      std::find_if(std::begin(formats), std::end(formats), [&](const auto& one) { return one.name == name; });
  return at == std::end(formats) ? nullptr : &*at;
}

struct Sign {
  std::string_view text;
  std::string_view format;
};

// In this order: what stands in several formats comes last.
constexpr Sign kCallSigns[] = {
    {"<|channel|>", "gpt-oss"},
    {"<｜tool▁calls▁begin｜>", "deepseekv3"},
    {"<|tool_calls_section_begin|>", "kimi_k2"},
    {"[TOOL_CALLS]", "mistral"},
    {"<arg_key>", "glm47"},
    {"<function=", "qwen3_coder"},
    {"<tool_call>", "qwen"},
    {"<|python_start|>", "pythonic"},
    {"<|python_tag|>", "llama3"},
    {"\"parameters\": dictionary of argument name", "llama3"},
};
constexpr Sign kReasoningSigns[] = {{"<|channel|>", "gpt-oss"},
                                    {"◁think▷", "kimi"},
                                    {"<|tool_calls_section_begin|>", "kimi_k2"},
                                    {"</think>", "qwen3"}};

std::string_view first_sign(std::span<const Sign> signs, std::string_view text) {
  for (const Sign& sign : signs) {
    if (text.find(sign.text) != std::string_view::npos) return sign.format;
  }
  return {};
}

template <typename Formats>
std::vector<std::string_view> names_of(const Formats& formats) {
  std::vector<std::string_view> names;
  for (const auto& format : formats) names.push_back(format.name);
  return names;
}

std::string_view without_space_behind(std::string_view text) {
  while (!text.empty() && is_space(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

}  // namespace

const ReasoningFormat* find_reasoning_format(std::string_view name) { return find_by_name(kReasoningFormats, name); }
const CallFormat* find_call_format(std::string_view name) { return find_by_name(call_formats(), name); }
std::vector<std::string_view> reasoning_format_names() { return names_of(kReasoningFormats); }
std::vector<std::string_view> call_format_names() { return names_of(call_formats()); }

std::string_view guess_reasoning_format(std::string_view chat_template) {
  return first_sign(kReasoningSigns, chat_template);
}
std::string_view guess_call_format(std::string_view chat_template) { return first_sign(kCallSigns, chat_template); }

bool begins_in_reasoning(const ReasoningFormat& format, std::string_view prompt) {
  if (format.begin.empty() || ends_behind_reasoning(format, prompt)) return false;
  return format.always || without_space_behind(prompt).ends_with(format.begin);
}

bool ends_behind_reasoning(const ReasoningFormat& format, std::string_view prompt) {
  return !format.end.empty() && without_space_behind(prompt).ends_with(format.end);
}

}  // namespace warpweave::output
