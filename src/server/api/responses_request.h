// /v1/responses: a request as a chat request, and what its answer repeats of it.
// Source: https://platform.openai.com/docs/api-reference/responses
#pragma once

#include <string>
#include <string_view>

#include "server/api/api_state.h"

namespace warpweave::server {

struct ResponseRequest {
  OwnedJson chat;            // the chat request; its messages begin with those of previous_response_id
  OwnedJson input;           // its items, as they are listed
  OwnedJson echoed;          // members of the answer: instructions, tools, temperature, ...
  bool store = true;
  std::string previous_id;
};

Result<ResponseRequest> read_response_request(Api& api, const Json& body, const std::string& owner);

}  // namespace warpweave::server
