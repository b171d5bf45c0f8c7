// The HTTP/1.1 server: listens, checks limits and keys, routes to handlers, streams answers.
//
// One I/O thread runs every connection; handlers run on a small worker pool. start() returns once
// the port is bound; a bad address or a port in use is its Status. stop() may be called from any
// thread but a handler's; it closes what is open and joins the threads. on_disconnect callbacks of
// requests cut off by stop() run before it returns.
//
// Limits: each is a field of ServerOptions; passing one answers 413, 431, 408, 503 or ends the stream with
// an event that says why, never grows memory. Where memory ends, what was being done for a connection fails with it
// and the server goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/http.h"
#include "warpweave/status.h"

namespace warpweave::server {

// A request whose answer has gone out whole.
struct AnsweredRequest {
  std::string route;      // the matched route's path, or "unmatched"
  std::string method;     // as the client wrote it; empty where its first line was not understood
  int status = 0;
  double duration_s = 0;  // from the request's first byte to the answer's last one
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 30000;                           // 0: any free one, see port()
  std::string api_key{};                       // empty: no key needed
  std::string admin_api_key{};
  int worker_threads = 2;
  int max_connections = 4096;
  int spare_connections = 64;                 // past max_connections, for open routes alone
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 32 << 20;
  size_t max_total_body_bytes = 512 << 20;    // of all bodies not yet read by their handlers; one always passes
  size_t max_write_buffer_bytes = 1 << 20;    // unsent bytes of one connection's stream, see exchange.h
  size_t max_total_unsent_bytes = 256 << 20;  // of all answers, see transport.h
  size_t max_pending_handlers = 4096;         // requests waiting for a worker
  double read_timeout_s = 60;                 // from a request's first byte to its last
  double idle_timeout_s = 60;                 // keep-alive without a request
  double write_timeout_s = 60;                // for a reader to take the next MiB of its answer
  std::vector<std::string> allowed_origins{};  // see web_guard.h
  std::vector<std::string> allowed_hosts{};
  // Called for every answered request, on the I/O thread.
  std::function<void(const AnsweredRequest& answered)> on_response{};
  // How threads start; may throw std::system_error. Empty: std::thread. For tests.
  std::function<std::thread(std::function<void()>)> start_thread{};
};

class HttpServer {
 public:
  HttpServer(ServerOptions options, Router router);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  Status start();
  int port() const;
  // From now on requests find these routes; those that run keep theirs. Returns when it is so.
  void set_router(Router router);

  // From now on new work (anything but GET on a route above `open`) gets 503 with Retry-After; what
  // runs goes on. Connections close after their current answer.
  void begin_drain();
  // Requests whose answer has not ended.
  int active_requests() const;
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace warpweave::server
