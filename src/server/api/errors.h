// Failures as answers: {"error": {"message", "type", "param", "code"}} as OpenAI's clients read it, with SGLang's
// members beside "error" ("object", "message", "type", "param", the HTTP status as "code"); /v1/messages: {"type":
// "error", "error": {...}}.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "server/http.h"
#include "warpweave/status.h"

namespace warpweave::server {

// 400, 404, 429, 499, 500 or 503. `unsupported` is the caller's to change: 400.
int http_status(StatusCode code);

enum class ErrorShape { openai, anthropic };

// In every message about a request that is longer than the context; by it clients get the code
// context_length_exceeded.
inline constexpr std::string_view kContextPhrase = "the model's context holds";

// `status.field()` becomes `param`.
std::string error_json(const Status& status, ErrorShape shape = ErrorShape::openai);
// What clients switch on; empty: none.
std::string_view error_code(const Status& status);

// What was thrown in or below a handler: 503 for want of memory, else 500.
Status failure_status(const std::exception& error);

// The handler, answering what it throws. None may end the process.
Handler guarded(Handler handler);

// Sends it; 429 and 503 carry Retry-After.
void send_error(ResponseWriter& writer, const Status& status, ErrorShape shape = ErrorShape::openai);

}  // namespace warpweave::server
