// What a chat in the terminal can be told: sampling values, the length of answers, instructions. Set by the flags of
// `warpweave run` and by /set, both through one table of names and bounds.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "flags/server_args.h"
#include "model/config.h"
#include "warpweave/engine.h"
#include "warpweave/status.h"

namespace warpweave {

struct ChatSettings {
  SamplingParams sampling;
  std::optional<int> max_tokens;  // of one answer; unset: the room in the context
  std::string system_prompt;
};

// The flags' values, else the model's (unless --sampling-defaults is openai), else temperature 0.7 and top_p 0.9: small
// chat models answer nonsense at 1.
ChatSettings chat_settings(const ServerArgs& args, const GenerationDefaults& generation);

// "temperature", "0.2" and its like; "default" of max_tokens and seed means unset. `invalid_argument` says the names or
// the bounds.
Status set_chat_setting(std::string_view name, std::string_view value, ChatSettings* settings);

// One line a setting.
std::string chat_settings_text(const ChatSettings& settings);

}  // namespace warpweave
