// HTTP/1.1 requests from bytes (RFC 9112), strictly: what two servers could read differently is refused,
// so that nothing is smuggled past a proxy. Knows no sockets and no routes.
//
// next() is given what has arrived and says what it makes of it; the parser keeps no body bytes, and of
// everything else at most ParserLimits. After `failed` nothing more is read: answer error() and close.
// One thread; no allocation beyond the head.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http_wire.h"

namespace warpweave::server {

struct ParserLimits {
  size_t max_header_bytes = 16 << 10;    // request line and fields; trailers again as much
  size_t max_fields = 128;
  size_t max_body_bytes = 32 << 20;
  size_t max_chunk_line_bytes = 256;     // a chunk's size and its extensions
};

struct RequestHead {
  std::string method;
  std::string target;                    // as sent
  int minor_version = 1;                 // HTTP/1.x
  HeaderList fields;                     // names in lower case, values trimmed
  std::string host;                      // empty: none, or an empty one
  bool keep_alive = true;
  bool expects_continue = false;
  bool chunked = false;
  uint64_t content_length = 0;

  bool has_body() const { return chunked || content_length > 0; }
};

struct HttpError {
  int status = 400;
  std::string_view code;                 // "bad_framing"
  std::string message;
};

class RequestParser {
 public:
  explicit RequestParser(ParserLimits limits = {}) : limits_(limits) {}

  enum class Event {
    need_more,  // every byte was used
    head,       // head() is whole; the body follows
    body,       // a piece of the body
    done,       // the request is whole
    failed,     // error() says why
  };
  struct Step {
    Event event;
    size_t used;                // bytes of the input
    std::string_view body{};    // with Event::body: a part of the input
  };
  Step next(std::string_view bytes);

  // A byte of this request has arrived (empty lines before it do not count).
  bool begun() const { return state_ != State::request_line || !line_.empty(); }
  bool head_done() const { return state_ > State::fields && state_ != State::failed; }
  bool done() const { return state_ == State::done; }
  RequestHead& head() { return head_; }
  const RequestHead& head() const { return head_; }
  const HttpError& error() const { return error_; }

 private:
  // All but content and chunk_data are made of lines.
  enum class State { request_line, fields, content, chunk_size, chunk_data, chunk_end, trailers, done, failed };

  void fail(int status, std::string_view code, std::string message);
  void fail_line(std::string_view problem);
  void fail_long_line(size_t limit);
  void fail_length();
  size_t line_limit() const;
  bool take_line(std::string_view bytes, size_t* used);
  void end_line();
  void end_request_line();
  void end_field();
  void end_head();
  void end_chunk_size();
  bool read_host();
  bool read_transfer_encoding(std::string_view value);
  bool read_content_length(std::string_view value);
  void read_connection(std::string_view value);

  ParserLimits limits_;
  State state_ = State::request_line;
  std::string line_;             // of the line being received, without its end
  bool after_cr_ = false;
  size_t section_bytes_ = 0;     // of this head, chunk line or trailers
  uint64_t left_bytes_ = 0;      // of the body, or of this chunk
  uint64_t body_bytes_ = 0;      // announced by all chunks so far
  RequestHead head_;
  HttpError error_;
};

}  // namespace warpweave::server
