// The messages of a chat request to the text of its prompt.
#pragma once

#include <string>
#include <string_view>

#include "server/api/api_state.h"
#include "server/api/chat_tools.h"
#include "text/literal_text.h"

namespace warpweave::server {

struct ChatPrompt {
  LiteralText::Unmarked rendered;  // and where special tokens in it are text
  std::string continued;           // the end of it that a final message began; empty: none
};

// Reads messages and what goes with them, refuses fields that nothing has asked for, and renders. `strings`: JSON text
// that holds every string of the request.
Result<ChatPrompt> read_chat_prompt(const Api& api, FieldReader* reader, std::string_view strings,
                                    const ToolRequest& tools);

}  // namespace warpweave::server
