// /v1/messages: Anthropic's shape of chats. Its body is written as a chat request, its answers have their own builder.
// Source: https://docs.anthropic.com/en/api/messages
#pragma once

#include "server/api/api_state.h"

namespace warpweave::server {

// `needs_length`: max_tokens must be there.
Result<OwnedJson> chat_of_messages(const Api& api, const Json& body, bool needs_length);

}  // namespace warpweave::server
