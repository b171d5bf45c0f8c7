// HTTP/1.1 on the wire, apart from reading it: response heads, chunks, targets and error bodies.
// Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warpweave::server {

struct Target {
  std::string path;   // percent-decoded
  std::string query;  // as sent
  std::string authority;  // "host" of the absolute form; else empty
};

using HeaderList = std::vector<std::pair<std::string, std::string>>;

// Splits a request target ("/a%20b?x=1", or in absolute form "http://host/a"). nullopt: malformed,
// or the path decodes to control characters.
std::optional<Target> parse_target(std::string_view target);

struct ResponseHead {
  int status = 200;
  std::string_view content_type{};           // empty: no body
  std::optional<size_t> content_length{};    // unset: chunked, or until the connection closes
  bool chunked = false;
  bool keep_alive = true;
  std::string_view allow_origin{};           // web pages that may read the answer: one, or "*"
};

// Header values from outside are stripped of control characters, so that none can add a header.
std::string format_head(const ResponseHead& head, const HeaderList& headers = {});

// Appends one chunk of a chunked body.
void append_chunk(std::string& out, std::string_view data);
inline constexpr std::string_view kLastChunk = "0\r\n\r\n";

// An error body in OpenAI's shape: {"error": {"message", "type", "param", "code"}}. Without a code of its
// own an error has its status's.
std::string error_body(int status, std::string_view message, std::string_view code = {});
// The same for Anthropic's clients: {"type": "error", "error": {"type", "message"}}.
std::string anthropic_error_body(int status, std::string_view message);

// 0 to 15; -1: not hexadecimal.
int hex_digit(char c);

// Takes as long for any two inputs of the same lengths, so that a key cannot be guessed by timing.
bool constant_time_equal(std::string_view a, std::string_view b);

}  // namespace warpweave::server
