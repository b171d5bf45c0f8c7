// One request's answer on its way from any thread to the I/O thread: the ResponseWriter given to a
// handler, and the buffer behind it. Knows HTTP framing, not sockets.
//
// Writer methods: any thread, never block. take(), written() and disconnect(): the I/O thread only.
// `wake` is called, from any thread, whenever take() may have something new; it must not block and
// must not call back into the exchange.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"
#include "server/http_wire.h"

namespace warpweave::server {

struct ExchangeOptions {
  bool head_only = false;         // HEAD: the body is dropped
  bool chunked = true;            // HTTP/1.0 clients get a stream that ends by closing
  bool keep_alive = true;
  bool cors = false;
  size_t max_buffer_bytes = 0;    // unsent bytes of a stream; past it the client is cut off
};

class Exchange {
 public:
  Exchange(ExchangeOptions options, std::function<void()> wake);

  // A handler's end; the exchange outlives it. Dropping the writer unanswered answers 500, or cuts
  // a stream.
  static std::shared_ptr<ResponseWriter> make_writer(std::shared_ptr<Exchange> exchange);

  void send(int status, std::string_view content_type, std::string body, const HeaderList& headers);
  void begin_stream(int status, std::string_view content_type);
  void write(std::string_view chunk);
  void end();
  void abandon();
  // Runs `callback` at once when the client has already gone: on the calling thread.
  void on_disconnect(std::function<void()> callback);

  struct Output {
    std::string bytes;
    bool last = false;        // the answer ends with these bytes
    bool cut = false;         // close the connection now: too slow a reader, or an abandoned stream
    bool keep_alive = true;   // when `last`
    int status = 0;
  };
  Output take();
  void written(size_t bytes);
  // The client went away: callbacks run here, later output is dropped.
  void disconnect();

 private:
  const ExchangeOptions options_;
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::string out_;
  size_t in_flight_bytes_ = 0;
  int status_ = 0;             // 0: nothing begun
  bool keep_alive_;
  bool ended_ = false;
  bool cut_ = false;
  bool disconnected_ = false;
  bool wake_pending_ = false;  // one wake per take(), however many writes
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace warpweave::server
