#include "server/http_parser.h"

#include <algorithm>

#include "server/http_syntax.h"

namespace warpweave::server {
namespace {

constexpr std::string_view kBadLine = "bad_request_line";
constexpr std::string_view kBadHeader = "bad_header";
constexpr std::string_view kBadHost = "bad_host";
constexpr std::string_view kBadFraming = "bad_framing";
constexpr std::string_view kBadChunk = "bad_chunk";

bool is_target_char(char c) { return c > 0x20 && c < 0x7f; }

// At most 16 significant digits, so that the value fits; nullopt: no number, or a larger one.
std::optional<uint64_t> parse_hex(std::string_view digits) {
  if (digits.empty()) return std::nullopt;
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.size() > 16) return std::nullopt;
  uint64_t value = 0;
  for (char c : digits) {
    const int digit = hex_digit(c);
    if (digit < 0) return std::nullopt;
    value = value << 4 | static_cast<uint64_t>(digit);
  }
  return value;
}

std::optional<uint64_t> parse_decimal(std::string_view digits) {
  if (digits.empty()) return std::nullopt;
  uint64_t value = 0;
  for (char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
        __builtin_add_overflow(value, static_cast<uint64_t>(c - '0'), &value)) {
      return std::nullopt;
    }
  }
  return value;
}

// The value of a field that may stand only once; the count of its lines.
struct Field {
  std::string_view value;
  int lines = 0;
};

Field find_field(const HeaderList& fields, std::string_view name) {
  Field found;
  for (const auto& [field, value] : fields) {
    if (field == name && found.lines++ == 0) found.value = value;
  }
  return found;
}

}  // namespace

void RequestParser::fail(int status, std::string_view code, std::string message) {
  state_ = State::failed;
  line_ = {};
  error_ = {status, code, std::move(message)};
}

void RequestParser::fail_line(std::string_view problem) {
  const std::string text(problem);
  switch (state_) {
    case State::request_line: return fail(400, kBadLine, "the request line " + text);
    case State::fields: return fail(400, kBadHeader, "a header line " + text);
    default: return fail(400, kBadChunk, "a line of the chunked body " + text);
  }
}

void RequestParser::fail_length() {
  fail(413, "request_too_large", "the body is larger than " + std::to_string(limits_.max_body_bytes) +
                                     " bytes; raise --max-body-bytes or send less");
}

RequestParser::Step RequestParser::next(std::string_view bytes) {
  size_t used = 0;
  while (true) {
    switch (state_) {
      case State::failed: return {Event::failed, used};
      case State::done: return {Event::done, used};
      case State::content:
      case State::chunk_data: {
        if (state_ == State::content && left_bytes_ == 0) {
          state_ = State::done;
          break;
        }
        if (used == bytes.size()) return {Event::need_more, used};
        const size_t piece = static_cast<size_t>(std::min<uint64_t>(left_bytes_, bytes.size() - used));
        left_bytes_ -= piece;
        if (left_bytes_ == 0 && state_ == State::chunk_data) state_ = State::chunk_end;
        return {Event::body, used + piece, bytes.substr(used, piece)};
      }
      default: {
        const bool in_head = state_ == State::fields;
        if (take_line(bytes, &used)) {
          end_line();
          line_.clear();
          if (in_head && head_done()) return {Event::head, used};
        } else if (state_ != State::failed) {
          return {Event::need_more, used};
        }
      }
    }
  }
}

size_t RequestParser::line_limit() const {
  switch (state_) {
    case State::chunk_size: return limits_.max_chunk_line_bytes;
    case State::chunk_end: return 2;
    default: return limits_.max_header_bytes;
  }
}

void RequestParser::fail_long_line(size_t limit) {
  const std::string bytes = std::to_string(limit) + " bytes";
  switch (state_) {
    case State::chunk_end: return fail(400, kBadChunk, "a chunk is longer than its size says");
    case State::chunk_size: return fail_line("is longer than " + bytes);
    default: return fail(431, "headers_too_large", "the headers are larger than " + bytes);
  }
}

// True when line_ holds a whole line; false when more bytes are needed or the request failed.
bool RequestParser::take_line(std::string_view bytes, size_t* used) {
  const size_t limit = line_limit();
  while (*used < bytes.size()) {
    const char c = bytes[(*used)++];
    if (++section_bytes_ > limit) {
      fail_long_line(limit);
      return false;
    }
    if (after_cr_) {
      after_cr_ = false;
      if (c == '\n') return true;
      fail_line("has a CR without LF");
      return false;
    }
    if (c == '\r') {
      after_cr_ = true;
    } else if (is_value_char(c)) {
      line_ += c;
    } else {
      fail_line(c == '\n' ? "ends with LF instead of CR LF" : "holds a control character");
      return false;
    }
  }
  return false;
}

void RequestParser::end_line() {
  switch (state_) {
    case State::request_line:
      if (line_.empty()) {
        section_bytes_ = 0;
      } else {
        end_request_line();
      }
      return;
    case State::fields: return line_.empty() ? end_head() : end_field();
    case State::chunk_size: return end_chunk_size();
    case State::chunk_end:
      if (!line_.empty()) return fail(400, kBadChunk, "a chunk is longer than its size says");
      section_bytes_ = 0;
      state_ = State::chunk_size;
      return;
    case State::trailers:
      if (line_.empty()) {
        state_ = State::done;
      } else if (!is_token(std::string_view(line_).substr(0, line_.find(':'))) ||
                 line_.find(':') == std::string::npos) {
        fail_line("is no trailer: NAME: VALUE is wanted");
      }
      return;
    default: return;
  }
}

// METHOD SP TARGET SP HTTP/1.x
void RequestParser::end_request_line() {
  const std::string_view line = line_;
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return fail_line("is not METHOD TARGET HTTP/1.1");
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  const auto digit = [&](size_t i) { return version[i] >= '0' && version[i] <= '9'; };
  if (!is_token(method)) return fail_line("does not begin with a method");
  if (target.empty() || !std::all_of(target.begin(), target.end(), is_target_char)) {
    return fail_line("has a target with spaces or bytes that must be percent-encoded");
  }
  if (version.size() != 8 || !version.starts_with("HTTP/") || !digit(5) || version[6] != '.' || !digit(7)) {
    return fail_line("does not end with HTTP/1.1");
  }
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    return fail(505, "http_version_not_supported", "this server speaks HTTP/1.1");
  }
  head_.method = method;
  head_.target = target;
  head_.minor_version = version[7] - '0';
  head_.keep_alive = head_.minor_version == 1;
  state_ = State::fields;
}

void RequestParser::end_field() {
  const std::string_view line = line_;
  if (line.starts_with(' ') || line.starts_with('\t')) {
    return fail_line("begins with a space: a field's value must stand on one line");
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return fail_line("is not NAME: VALUE");
  const std::string_view name = line.substr(0, colon);
  if (!is_token(name)) return fail_line("has a name that is empty or holds more than letters, digits and dashes");
  if (head_.fields.size() == limits_.max_fields) {
    return fail(431, "headers_too_large", "there are more than " + std::to_string(limits_.max_fields) + " headers");
  }
  head_.fields.emplace_back(to_lower(name), std::string(trim(line.substr(colon + 1))));
}

void RequestParser::end_head() {
  if (!read_host()) return;
  const Field length = find_field(head_.fields, "content-length");
  std::string encodings;
  bool encoded = false;
  for (const auto& [name, value] : head_.fields) {
    if (name == "transfer-encoding") {
      encodings += (encoded ? "," : "") + value;
      encoded = true;
    } else if (name == "connection") {
      read_connection(value);
    } else if (name == "expect") {
      if (!equal_ignoring_case(value, "100-continue")) {
        return fail(417, "expectation_failed", "the only expectation this server knows is 100-continue");
      }
      head_.expects_continue = head_.minor_version == 1;
    }
  }
  if (length.lines > 1 || (length.lines == 1 && encoded)) {
    return fail(400, kBadFraming, "the body's length is given twice; send one Content-Length, or Transfer-Encoding: "
                                  "chunked, and nothing more");
  }
  section_bytes_ = 0;
  state_ = State::content;
  if (encoded && read_transfer_encoding(encodings)) state_ = State::chunk_size;
  if (length.lines == 1 && read_content_length(length.value)) left_bytes_ = head_.content_length;
}

bool RequestParser::read_host() {
  const Field host = find_field(head_.fields, "host");
  if (host.lines > 1) {
    fail(400, kBadHost, "there is more than one Host header");
  } else if (host.lines == 0 && head_.minor_version == 1) {
    fail(400, kBadHost, "the Host header is missing");
  } else if (!is_host(host.value)) {
    fail(400, kBadHost, "the Host header is not NAME or NAME:PORT");
  } else {
    head_.host = host.value;
    return true;
  }
  return false;
}

bool RequestParser::read_transfer_encoding(std::string_view value) {
  std::string_view last;
  int chunked = 0, others = 0;
  for_each_element(value, [&](std::string_view coding) {
    last = coding;
    ++(equal_ignoring_case(coding, "chunked") ? chunked : others);
  });
  if (head_.minor_version == 0 || chunked != 1 || !equal_ignoring_case(last, "chunked")) {
    fail(400, kBadFraming, head_.minor_version == 0 ? "HTTP/1.0 has no Transfer-Encoding; send a Content-Length"
                                                    : "Transfer-Encoding must end in chunked, once");
  } else if (others > 0) {
    fail(501, "unsupported_encoding", "the only Transfer-Encoding this server knows is chunked");
  } else {
    head_.chunked = true;
    return true;
  }
  return false;
}

bool RequestParser::read_content_length(std::string_view value) {
  const std::optional<uint64_t> length = parse_decimal(value);
  if (!length) {
    fail(400, kBadFraming, "Content-Length must be one decimal number below 2^64");
    return false;
  }
  head_.content_length = *length;
  if (*length > limits_.max_body_bytes) {
    fail_length();
    return false;
  }
  return true;
}

void RequestParser::read_connection(std::string_view value) {
  for_each_element(value, [&](std::string_view option) {
    if (equal_ignoring_case(option, "close")) head_.keep_alive = false;
    if (equal_ignoring_case(option, "keep-alive") && head_.minor_version == 0) head_.keep_alive = true;
  });
}

void RequestParser::end_chunk_size() {
  const std::string_view line = line_;
  const size_t digits = std::min(line.find_first_not_of("0123456789abcdefABCDEF"), line.size());
  const std::optional<uint64_t> size = parse_hex(line.substr(0, digits));
  if (!size) return fail_line("is no chunk size: at most 16 hexadecimal digits are wanted");
  if (!is_chunk_extension(line.substr(digits))) return fail_line("has a malformed chunk extension");
  section_bytes_ = 0;
  if (*size == 0) {
    state_ = State::trailers;
    return;
  }
  if (*size > limits_.max_body_bytes - body_bytes_) return fail_length();
  body_bytes_ += *size;
  left_bytes_ = *size;
  state_ = State::chunk_data;
}

}  // namespace warpweave::server
