// A chat request, whatever endpoint it came by, to engine requests. /v1/responses and /v1/messages write their bodies
// as chat requests first.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/api/chat_tools.h"
#include "server/api/generation.h"
#include "server/api/openai_common.h"

namespace warpweave::server {

struct ChatOptions : OpenAiOptions {
  bool logprobs = false;
  int top_logprobs = 0;
};

struct PreparedChat {
  ChatOptions options;
  AnswerPlan plan;
  GenerationJob job;             // without a builder
  std::vector<std::string> prompt_ids;  // as OpenAiBuilder::Frame has them
};

// `body`: the object of /v1/chat/completions. `strings`: JSON text that holds all its strings.
Result<PreparedChat> prepare_chat(const Api& api, const Json& body, std::string_view strings,
                                  std::string_view id_prefix);

}  // namespace warpweave::server
