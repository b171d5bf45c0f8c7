#include "server/api/errors.h"

#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "server/api/json_write.h"

namespace warpweave::server {
namespace {

constexpr size_t kMaxMessageBytes = 4096;

struct ErrorKind {
  int http_status;
  std::string_view type;
  std::string_view code;  // empty: null
};

ErrorKind error_kind(StatusCode code) {
  switch (code) {
    case StatusCode::invalid_argument: return {400, "invalid_request_error", ""};
    case StatusCode::unsupported: return {400, "invalid_request_error", "unsupported"};
    case StatusCode::not_found: return {404, "invalid_request_error", "not_found"};
    case StatusCode::resource_exhausted: return {429, "rate_limit_error", "queue_full"};
    case StatusCode::unavailable: return {503, "service_unavailable", "not_ready"};
    case StatusCode::cancelled: return {499, "request_cancelled", "aborted"};
    case StatusCode::ok:
    case StatusCode::data_loss:
    case StatusCode::internal: break;
  }
  return {500, "server_error", "internal"};
}

// What SGLang calls the errors of an HTTP status.
std::string_view sglang_type(int http_status) {
  switch (http_status) {
    case 400: return "BadRequestError";
    case 404: return "NotFoundError";
    case 429: return "RateLimitError";
    case 503: return "ServiceUnavailableError";
    default: return "InternalServerError";
  }
}

void append_or_null(std::string_view text, std::string* out) {
  if (text.empty()) {
    *out += "null";
  } else {
    append_json_string(text, out);
  }
}

std::string_view anthropic_type(int http_status) {
  switch (http_status) {
    case 400: return "invalid_request_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return "api_error";
  }
}

}  // namespace

int http_status(StatusCode code) { return error_kind(code).http_status; }

std::string_view error_code(const Status& status) {
  if (status.code() == StatusCode::not_found && status.field() == "model") return "model_not_found";
  const bool about_context = status.message().find(kContextPhrase) != std::string::npos;
  if (status.code() == StatusCode::invalid_argument && about_context) return "context_length_exceeded";
  return error_kind(status.code()).code;
}

std::string error_json(const Status& status, ErrorShape shape) {
  const ErrorKind kind = error_kind(status.code());
  const bool anthropic = shape == ErrorShape::anthropic;
  const std::string message = log_safe(status.message(), kMaxMessageBytes);  // it may quote the client
  std::string out = anthropic ? "{\"type\":\"error\",\"error\":{\"message\":" : "{\"error\":{\"message\":";
  append_json_string(message, &out);
  out += ",\"type\":";
  append_json_string(anthropic ? anthropic_type(kind.http_status) : kind.type, &out);
  if (anthropic) return out + "}}";
  out += ",\"param\":";
  append_or_null(status.field(), &out);
  out += ",\"code\":";
  append_or_null(error_code(status), &out);
  out += "},\"object\":\"error\",\"message\":";
  append_json_string(message, &out);
  out += ",\"type\":";
  append_json_string(sglang_type(kind.http_status), &out);
  out += ",\"param\":";
  append_or_null(status.field(), &out);
  return out + ",\"code\":" + std::to_string(kind.http_status) + "}";
}

Status failure_status(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return Status::unavailable(
        "There is not enough memory for this request now; retry later, or send less.");
  }
  return Status::internal("The request failed inside the server.");
}

Handler guarded(Handler handler) {
  return [handler = std::move(handler)](std::shared_ptr<const HttpRequest> request,
                                        std::shared_ptr<ResponseWriter> writer) {
    try {
      handler(request, writer);
    } catch (const std::exception& error) {
      LOG_ERROR("handler of {} failed: {}", log_safe(request->path), log_safe(error.what()));
      send_error(*writer, failure_status(error));
      refill_memory_reserve();
    }
  };
}

void send_error(ResponseWriter& writer, const Status& status, ErrorShape shape) {
  const int code = http_status(status.code());
  std::vector<std::pair<std::string, std::string>> headers;
  if (code == 429 || code == 503) headers.emplace_back("Retry-After", "1");
  writer.send(code, "application/json", error_json(status, shape), std::move(headers));
}

}  // namespace warpweave::server
