// HTTP as the API handlers see it: a request whose body has arrived, and a writer for the answer.
//
// Threads: a handler runs on a thread of the API worker pool, never on the I/O thread, so it may tokenize a long
// prompt; those of routes that run at once are the exception. A ResponseWriter may be used from any thread, also after
// the handler returned (streams are fed from the engine's threads); its calls never block.
//
// Errors: where memory ends, send(), begin_stream() and write() throw and have changed nothing, so that a shorter
// answer may be tried. After the client has gone, and after the end, calls do nothing. A writer that is dropped without
// an answer answers 500, or cuts its stream.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace warpweave::server {

struct HttpRequest {
  std::string method;   // "POST"
  std::string path;     // "/v1/completions", without the query
  std::string query;    // "a=b", may be empty
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case

  std::string_view header(std::string_view lower_case_name) const {
    for (const auto& [name, value] : headers) {
      if (name == lower_case_name) return value;
    }
    return {};
  }
};

class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // A whole answer. One of send() and begin_stream() is called, once; later calls of either do nothing.
  virtual void send(int status, std::string_view content_type, std::string body,
                    std::vector<std::pair<std::string, std::string>> headers = {}) = 0;

  // A chunked answer: begin_stream, any number of write, then end.
  virtual void begin_stream(int status, std::string_view content_type) = 0;
  virtual void write(std::string chunk) = 0;
  virtual void end() = 0;
  // For streams that outrun their reader: false while much of what was written is not sent yet. Who waits for room
  // before each write is never cut for a slow reader; one write that did not ask passes, too.
  virtual bool has_room() const { return true; }
  // Without room: `callback` runs when there is some, once, on a worker and never within this call; an earlier one that
  // still waits is dropped, and so is it when the stream ends. With room: false, and `callback` is dropped.
  virtual bool call_when_room(std::function<void()> callback) { return false; }

  // `callback` runs once when the client goes away before end() or send(), or a stream ends because its reader is too
  // slow: on the I/O thread, or, where the client has gone already, on the calling thread and within this call. Else it
  // never runs. Used to abort the request in the engine.
  virtual void on_disconnect(std::function<void()> callback) = 0;
};

// Every route declares who may call it; there is no default, so none can be forgotten.
enum class AuthLevel {
  open,     // anyone: health checks and the chat page
  api_key,  // needs --api-key when one is set
  admin,    // changes the server: needs --admin-api-key when one is set, else --api-key; see web_guard.h
};

using Handler =
    std::function<void(std::shared_ptr<const HttpRequest>, std::shared_ptr<ResponseWriter>)>;

struct Route {
  std::string method;  // "GET" or "POST"
  std::string path;    // exact, or ending in "/*" for a prefix match
  AuthLevel auth;
  Handler handler;
  // On the I/O thread, so that no other handler can keep it waiting. Only for handlers that neither block
  // nor compute: health checks.
  bool runs_at_once = false;

  bool takes_body() const { return method != "GET"; }  // what else is sent is read and dropped
};

class Router {
 public:
  void add(Route route) { routes_.push_back(std::move(route)); }
  const std::vector<Route>& routes() const { return routes_; }

 private:
  std::vector<Route> routes_;
};

}  // namespace warpweave::server
