#include "server/http_wire.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <nlohmann/json.hpp>

#include "server/http_syntax.h"

namespace warpweave::server {
namespace {

std::string_view reason(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Payload Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Entity";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 505: return "HTTP Version Not Supported";
    default: return status < 400 ? "OK" : "Error";
  }
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

void append_header_value(std::string& out, std::string_view value) {
  for (char c : value) {
    if (!is_control(c)) out += c;
  }
}

// The Date header, formatted once a second per thread.
std::string_view http_date() {
  thread_local std::time_t cached = 0;
  thread_local char text[40];
  thread_local size_t length = 0;
  const std::time_t now = std::time(nullptr);
  if (now != cached) {
    std::tm utc{};
    gmtime_r(&now, &utc);
    length = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc);
    cached = now;
  }
  return {text, length};
}

struct ErrorKind {
  std::string_view type;
  std::string_view code;
};

ErrorKind error_kind(int status) {
  switch (status) {
    case 401: return {"authentication_error", "invalid_api_key"};
    case 403: return {"permission_error", "forbidden"};
    case 404: return {"not_found_error", "not_found"};
    case 405: return {"invalid_request_error", "method_not_allowed"};
    case 408: return {"invalid_request_error", "request_timeout"};
    case 413: return {"invalid_request_error", "request_too_large"};
    case 429: return {"rate_limit_error", "rate_limit_exceeded"};
    case 431: return {"invalid_request_error", "headers_too_large"};
    case 503: return {"service_unavailable_error", "service_unavailable"};
    default:
      if (status == 505) return {"invalid_request_error", "http_version_not_supported"};
      return status >= 500 ? ErrorKind{"server_error", "internal_error"}
                           : ErrorKind{"invalid_request_error", "bad_request"};
  }
}

}  // namespace

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<Target> parse_target(std::string_view target) {
  Target result;
  if (!target.starts_with('/')) {
    const size_t scheme = target.find("://");
    const std::string_view name = target.substr(0, scheme);
    if (scheme == std::string_view::npos) return std::nullopt;
    if (!equal_ignoring_case(name, "http") && !equal_ignoring_case(name, "https")) return std::nullopt;
    target.remove_prefix(scheme + 3);
    const size_t slash = std::min(target.find('/'), target.size());
    result.authority = target.substr(0, slash);
    if (!is_host(result.authority)) return std::nullopt;
    target = slash == target.size() ? "/" : target.substr(slash);
  }
  const size_t question = target.find('?');
  if (question != std::string_view::npos) result.query = target.substr(question + 1);
  const std::string_view path = target.substr(0, question);
  result.path.reserve(path.size());
  for (size_t i = 0; i < path.size(); ++i) {
    char c = path[i];
    if (c == '%') {
      if (i + 2 >= path.size()) return std::nullopt;
      const int high = hex_digit(path[i + 1]);
      const int low = hex_digit(path[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (is_control(c)) return std::nullopt;
    result.path += c;
  }
  return result;
}

std::string format_head(const ResponseHead& head, const HeaderList& headers) {
  std::string out;
  out.reserve(256);
  out += "HTTP/1.1 ";
  out += std::to_string(head.status);
  out += ' ';
  out += reason(head.status);
  out += "\r\nServer: warpweave\r\nDate: ";
  out += http_date();
  if (!head.content_type.empty()) {
    out += "\r\nContent-Type: ";
    append_header_value(out, head.content_type);
  }
  if (head.content_length) {
    out += "\r\nContent-Length: ";
    out += std::to_string(*head.content_length);
  } else if (head.chunked) {
    out += "\r\nTransfer-Encoding: chunked";
  }
  if (!head.content_length) out += "\r\nCache-Control: no-cache";  // a live stream
  out += head.keep_alive ? "\r\nConnection: keep-alive" : "\r\nConnection: close";
  if (!head.allow_origin.empty()) {
    out += "\r\nAccess-Control-Allow-Origin: ";
    append_header_value(out, head.allow_origin);
    if (head.allow_origin != "*") out += "\r\nVary: Origin";
  }
  for (const auto& [name, value] : headers) {
    out += "\r\n";
    append_header_value(out, name);
    out += ": ";
    append_header_value(out, value);
  }
  out += "\r\n\r\n";
  return out;
}

void append_chunk(std::string& out, std::string_view data) {
  if (data.empty()) return;  // an empty chunk would end the body
  char size[20];
  const auto end = std::to_chars(size, size + sizeof size, data.size(), 16).ptr;
  out.append(size, end);
  out += "\r\n";
  out += data;
  out += "\r\n";
}

// Strings alone: destroying one of the library's objects takes memory, which an error may be about.
static std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string error_body(int status, std::string_view message, std::string_view code) {
  const ErrorKind kind = error_kind(status);
  std::string body = "{\"error\":{\"message\":";
  body += json_string(message);
  body += ",\"type\":" + json_string(kind.type) + ",\"param\":null,\"code\":";
  body += json_string(code.empty() ? kind.code : code) + "}}";
  return body;
}

std::string anthropic_error_body(int status, std::string_view message) {
  std::string_view type = error_kind(status).type;
  if (status == 413) type = "request_too_large";
  if (status == 503) type = "overloaded_error";
  if (status >= 500 && status != 503) type = "api_error";
  return "{\"type\":\"error\",\"error\":{\"type\":" + json_string(type) + ",\"message\":" + json_string(message) + "}}";
}

bool constant_time_equal(std::string_view a, std::string_view b) {
  if (b.empty()) return a.empty();
  volatile unsigned difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = difference | static_cast<unsigned char>(a[i] ^ b[i % b.size()]);
  }
  return difference == 0;
}

}  // namespace warpweave::server
