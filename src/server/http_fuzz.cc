// Bytes in, requests out, against a strict reference: first the parser alone, fed in pieces of any sizes, then a whole
// connection with its routes, keys and guards, on a socket of memory. The first byte picks the pieces and the server.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "server/connection.h"
#include "server/http_parser.h"
#include "server/testing/http_reference.h"

namespace {

using namespace warpweave::server;
using Event = RequestParser::Event;
using testing::ReferenceRequest;
using testing::ReferenceResult;

// Small, so that inputs of a few hundred bytes pass every bound.
constexpr ParserLimits kLimits{
    .max_header_bytes = 256, .max_fields = 6, .max_body_bytes = 64, .max_chunk_line_bytes = 24};

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "http_fuzz: %s\n", what);
  std::abort();
}

// Sizes of the pieces in which bytes arrive.
class Pieces {
 public:
  explicit Pieces(uint32_t seed) : seed_(seed) {}
  size_t next() {
    seed_ = seed_ * 1664525 + 1013904223;
    return 1 + (seed_ >> 24) % ((seed_ >> 8) % 64 + 1);
  }

 private:
  uint32_t seed_;
};

ReferenceResult parse(std::string_view bytes, Pieces pieces) {
  ReferenceResult result;
  RequestParser parser(kLimits);
  std::string body;
  size_t begin = 0, end = 0;
  while (true) {
    const RequestParser::Step step = parser.next(bytes.substr(begin, end - begin));
    if (step.used > end - begin) fail("more bytes used than given");
    begin += step.used;
    body += step.body;
    if (body.size() > kLimits.max_body_bytes) fail("a body past its bound");
    if (step.event == Event::failed) {
      result.error_status = parser.error().status;
      if (parser.error().message.empty() || parser.error().code.empty()) fail("an error without words");
      return result;
    }
    if (step.event == Event::done) {
      const RequestHead& head = parser.head();
      result.requests.push_back({head.method, head.target, body, head.fields, head.keep_alive});
      parser = RequestParser(kLimits);
      body.clear();
    }
    if (step.event != Event::need_more) continue;
    if (begin != end) fail("more bytes wanted while some are left");
    if (end == bytes.size()) return result;
    end = std::min(bytes.size(), end + pieces.next());
  }
}

void check_target(const std::string& target) {
  const std::optional<Target> got = parse_target(target), expected = testing::read_target(target);
  if (got.has_value() != expected.has_value()) fail("a target that one of two takes");
  if (got && (got->path != expected->path || got->query != expected->query || got->authority != expected->authority)) {
    fail("another target");
  }
}

// What handlers and answers do with text of a client: no line is added to a head, no error stops being JSON.
void check_answers(const ReferenceRequest& request) {
  HeaderList headers;
  for (const auto& [name, value] : request.fields) headers.emplace_back(name, value + "\r\nX-Injected: 1");
  const std::string head =
      format_head({.content_type = request.target, .content_length = 0, .allow_origin = request.body}, headers);
  size_t lines = 0;
  for (size_t at = 0; (at = head.find('\n', at)) != std::string::npos; ++at) ++lines;
  const size_t known = 6 + (request.target.empty() ? 0 : 1) + (request.body.empty() ? 0 : request.body == "*" ? 1 : 2);
  if (lines != known + headers.size()) fail("a client's text made a header line");
  if (!nlohmann::json::accept(error_body(400, request.target + request.body))) fail("an error body that is no JSON");
}

// One connection of a server in memory.
class Wire {
 public:
  Wire(bool with_keys, bool with_origins) {
    ServerOptions options;
    options.max_header_bytes = kLimits.max_header_bytes;
    options.max_body_bytes = kLimits.max_body_bytes;
    options.max_write_buffer_bytes = 300;
    if (with_keys) options.api_key = "k", options.admin_api_key = "a";
    if (with_origins) options.allowed_origins = {"http://a"}, options.allowed_hosts = {"a"};
    const auto keep = [this](auto request, auto writer) {
      handled.push_back(*request);
      writer->send(200, "text/plain", request->body, {{"X-Path", request->path}});
    };
    Router router;
    router.add({"GET", "/open", AuthLevel::open, keep, true});
    router.add({"GET", "/stream/*", AuthLevel::api_key, [this](auto request, auto writer) {
                  handled.push_back(*request);
                  writer->begin_stream(200, "text/event-stream");
                  for (int i = 0; i < 3; ++i) writer->write("data: " + request->path + "\n\n");
                  writer->end();
                }});
    router.add({"POST", "/admin", AuthLevel::admin, keep});
    router.add({"GET", "/*", AuthLevel::api_key, keep});
    router.add({"POST", "/*", AuthLevel::api_key, keep});
    transport_ = std::make_unique<Transport>(
        options, router,
        TransportHooks{.now = [] { return Clock::time_point(std::chrono::hours(1)); },
                       .wake = [this] { woken_ = true; },
                       .submit = [](const std::function<void()>& job) { return job(), true; }});
    transport_->admit(std::make_unique<End>(*this), true);
  }
  ~Wire() { transport_->close_all(); }

  void send(std::string_view bytes) {
    to_server_ += bytes;
    while (!closed && reader_ && !to_server_.empty()) {
      std::exchange(reader_, nullptr)->on_readable();
      while (std::exchange(woken_, false)) transport_->flush_woken();
    }
  }

  std::vector<HttpRequest> handled;
  std::string to_client;
  bool closed = false;  // or no longer sending

 private:
  class End : public Socket {
   public:
    explicit End(Wire& wire) : wire_(wire) {}
    IoResult read(char* into, size_t max_bytes) override {
      const size_t bytes = wire_.to_server_.copy(into, max_bytes);
      wire_.to_server_.erase(0, bytes);
      return {bytes > 0 ? IoResult::State::ok : IoResult::State::would_block, bytes};
    }
    IoResult write(std::string_view bytes) override {
      wire_.to_client += bytes;
      return {IoResult::State::ok, bytes.size()};
    }
    void wait_readable(std::shared_ptr<SocketEvents> events) override { wire_.reader_ = std::move(events); }
    void wait_writable(std::shared_ptr<SocketEvents>) override { fail("a wait for room that is there"); }
    void shutdown_send() override { wire_.closed = true; }
    void close() override {
      wire_.closed = true;
      wire_.reader_.reset();
    }

   private:
    Wire& wire_;
  };

  std::unique_ptr<Transport> transport_;
  std::shared_ptr<SocketEvents> reader_;
  std::string to_server_;
  bool woken_ = false;
};

bool same(const HttpRequest& got, const ReferenceRequest& expected) {
  const std::optional<Target> target = testing::read_target(expected.target);
  return target && got.method == expected.method && got.path == target->path && got.query == target->query &&
         got.body == (expected.method == "POST" ? expected.body : "") && got.headers == expected.fields;
}

// A request that every server takes: no key, page, name, expectation or encoding is in question.
bool is_plain(const ReferenceRequest& request) {
  const auto question = [](const auto& field) {
    return field.first == "expect" || field.first == "origin" || field.first == "host";
  };
  const auto encoding = [](const auto& field) { return field.first == "content-encoding"; };
  const std::optional<Target> target = testing::read_target(request.target);
  // A stream to an old client ends its connection.
  return target && target->authority.empty() && !target->path.starts_with("/stream/") &&
         (request.method == "GET" || request.method == "POST") && target->path != "/admin" &&
         (target->path != "/open" || request.method == "GET") &&
         std::count_if(request.fields.begin(), request.fields.end(), question) <= 1 &&
         std::none_of(request.fields.begin(), request.fields.end(), encoding);
}

// Handlers see the reference's requests, in order, and no others; all of them where nothing else is asked for.
void check_connection(std::string_view bytes, Pieces pieces, uint8_t kind) {
  constexpr ParserLimits kOfServer{.max_header_bytes = kLimits.max_header_bytes,
                                   .max_body_bytes = kLimits.max_body_bytes};
  const ReferenceResult expected = testing::read_requests(bytes, kOfServer);
  const bool guarded = (kind & 3) != 0;
  Wire wire((kind & 1) != 0, (kind & 2) != 0);
  for (size_t at = 0; at < bytes.size() && !wire.closed;) {
    const size_t piece = pieces.next();
    wire.send(bytes.substr(at, piece));
    at += piece;
  }
  size_t next = 0;
  for (const HttpRequest& request : wire.handled) {
    while (next < expected.requests.size() && !same(request, expected.requests[next])) ++next;
    if (next++ >= expected.requests.size()) fail("a handler got a request that was not sent");
  }
  size_t plain = 0;
  bool open = true;
  for (const ReferenceRequest& request : expected.requests) {
    if (!open || !is_plain(request)) break;
    ++plain;
    open = request.keep_alive;
  }
  if (!guarded && wire.handled.size() < plain) fail("a request was not handled");
  if (!guarded && !open && wire.handled.size() != plain) fail("a request behind the last one was handled");
  const bool refused_by_head = expected.head && !is_plain(*expected.head);
  if (!guarded && open && plain == expected.requests.size() && expected.error_status != 0 && !refused_by_head) {
    const size_t last = wire.to_client.rfind("HTTP/1.1 ");
    if (last == std::string::npos || std::stoi(wire.to_client.substr(last + 9, 3)) != expected.error_status)
      fail("another status");
    if (!wire.closed) fail("open after an error");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const ReferenceResult got = parse(bytes, Pieces(data[0]));
  const ReferenceResult expected = testing::read_requests(bytes, kLimits);
  if (got.error_status != expected.error_status) {
    std::fprintf(stderr, "status %d, the reference says %d\n", got.error_status, expected.error_status);
    fail("another error");
  }
  if (got.requests != expected.requests) fail("other requests");
  for (const ReferenceRequest& request : got.requests) {
    check_target(request.target);
    check_answers(request);
  }
  check_connection(bytes, Pieces(data[0] + 1u), data[0]);
  return 0;
}
