#include "cli/chat_settings.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <vector>

#include "base/log.h"
#include "flags/nearest_name.h"

namespace warpweave {
namespace {

constexpr float kTemperature = 0.7f;
constexpr float kTopP = 0.9f;
constexpr double kMaxInt = std::numeric_limits<int>::max();

struct NumberSetting {
  std::string_view name;
  double min;
  double max;
  bool whole;
  void (*set)(double, ChatSettings*);
  std::string (*shown)(const ChatSettings&);
};

template <auto kMember>
void set_member(double value, ChatSettings* settings) {
  auto& member = settings->sampling.*kMember;
  member = static_cast<std::remove_reference_t<decltype(member)>>(value);
}

template <auto kMember>
std::string show_member(const ChatSettings& settings) {
  return fmt::format("{:g}", static_cast<double>(settings.sampling.*kMember));
}

const NumberSetting kNumbers[] = {
    {"temperature", 0, 100, false, set_member<&SamplingParams::temperature>, show_member<&SamplingParams::temperature>},
    {"top_p", 0.001, 1, false, set_member<&SamplingParams::top_p>, show_member<&SamplingParams::top_p>},
    {"top_k", -1, kMaxInt, true,
     [](double value, ChatSettings* settings) { settings->sampling.top_k = value == 0 ? -1 : static_cast<int>(value); },
     [](const ChatSettings& settings) { return fmt::format("{}", settings.sampling.top_k); }},
    {"min_p", 0, 1, false, set_member<&SamplingParams::min_p>, show_member<&SamplingParams::min_p>},
    {"repetition_penalty", 0.01, 2, false, set_member<&SamplingParams::repetition_penalty>,
     show_member<&SamplingParams::repetition_penalty>},
    {"max_tokens", 1, kMaxInt, true,
     [](double value, ChatSettings* settings) { settings->max_tokens = static_cast<int>(value); },
     [](const ChatSettings& settings) {
       return settings.max_tokens ? fmt::format("{}", *settings.max_tokens) : std::string("default");
     }},
    {"seed", 0, 9007199254740992.0, true,
     [](double value, ChatSettings* settings) { settings->sampling.seed = static_cast<uint64_t>(value); },
     [](const ChatSettings& settings) {
       return settings.sampling.seed ? fmt::format("{}", *settings.sampling.seed) : std::string("default");
     }},
};

Status set_number(const NumberSetting& setting, std::string_view value, ChatSettings* settings) {
  double number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool is_number = error == std::errc() && end == value.data() + value.size();
  if (!is_number || !(number >= setting.min && number <= setting.max) ||
      (setting.whole && number != std::floor(number))) {
    const std::string upper = setting.max >= kMaxInt ? " or more" : fmt::format(" to {:g}", setting.max);
    return Status::invalid_argument(fmt::format("{} must be a {}number, {:g}{}, not '{}'", setting.name,
                                                setting.whole ? "whole " : "", setting.min, upper, log_safe(value)),
                                    std::string(setting.name));
  }
  setting.set(number, settings);
  return {};
}

}  // namespace

ChatSettings chat_settings(const ServerArgs& args, const GenerationDefaults& generation) {
  ChatSettings settings;
  SamplingParams& sampling = settings.sampling;
  if (args.sampling_defaults == "model") {
    sampling.temperature = static_cast<float>(generation.temperature.value_or(kTemperature));
    sampling.top_p = static_cast<float>(generation.top_p.value_or(kTopP));
    sampling.top_k = generation.top_k.value_or(sampling.top_k);
    sampling.min_p = static_cast<float>(generation.min_p.value_or(sampling.min_p));
    sampling.repetition_penalty =
        static_cast<float>(generation.repetition_penalty.value_or(sampling.repetition_penalty));
  }
  if (args.temperature) sampling.temperature = static_cast<float>(*args.temperature);
  if (args.top_p) sampling.top_p = static_cast<float>(*args.top_p);
  if (args.top_k) sampling.top_k = *args.top_k == 0 ? -1 : *args.top_k;
  if (args.min_p) sampling.min_p = static_cast<float>(*args.min_p);
  if (args.repetition_penalty) sampling.repetition_penalty = static_cast<float>(*args.repetition_penalty);
  settings.max_tokens = args.max_tokens;
  settings.system_prompt = args.system_prompt;
  return settings;
}

Status set_chat_setting(std::string_view name, std::string_view value, ChatSettings* settings) {
  if (name == "system_prompt") {
    settings->system_prompt = value;
    return {};
  }
  if (value == "default" && name == "max_tokens") {
    settings->max_tokens.reset();
    return {};
  }
  if (value == "default" && name == "seed") {
    settings->sampling.seed.reset();
    return {};
  }
  std::vector<std::string_view> names = {"system_prompt"};
  for (const NumberSetting& setting : kNumbers) {
    if (setting.name == name) return set_number(setting, value, settings);
    names.push_back(setting.name);
  }
  const std::string_view near = nearest_name(name, names);
  return Status::invalid_argument(fmt::format("there is no setting '{}'; {}", log_safe(name),
                                              near.empty() ? fmt::format("there are {}", fmt::join(names, ", "))
                                                           : fmt::format("did you mean {}?", near)));
}

std::string chat_settings_text(const ChatSettings& settings) {
  std::string out;
  for (const NumberSetting& setting : kNumbers) out += fmt::format("{:<20}{}\n", setting.name, setting.shown(settings));
  return out + fmt::format("{:<20}{}\n", "system_prompt",
                           settings.system_prompt.empty() ? "none" : log_safe(settings.system_prompt));
}

}  // namespace warpweave
