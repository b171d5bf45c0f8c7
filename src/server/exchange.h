// One request's answer on its way from any thread to the I/O thread: the ResponseWriter given to a
// handler, and the buffer behind it. Knows HTTP framing, not sockets.
//
// A stream whose reader falls behind by more than max_buffer_bytes ends: what was not sent yet is dropped
// and a last event says why. So that events of any size pass, four of the latest one's size may always be
// unsent. A stream whose handler gives up ends the same way.
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
  std::string allow_origin{};     // web pages that may read the answer; empty: none
  size_t max_buffer_bytes = 0;    // unsent bytes of a stream; past it the stream ends
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
  bool has_room(size_t bytes) const;
  void end();
  void abandon();
  // Runs `callback` at once when the client has already gone: on the calling thread.
  void on_disconnect(std::function<void()> callback);

  struct Output {
    std::string bytes;
    bool last = false;        // the answer ends with these bytes
    bool cut = false;         // close the connection now: a stream that cannot say that it ends early
    std::string early_end{};  // why the stream ends before its time, once
    std::vector<std::function<void()>> disconnected{};  // with `early_end`: to be called
    bool keep_alive = true;   // when `last`
    int status = 0;
  };
  Output take();
  void written(size_t bytes);
  // The client went away: callbacks run here, later output is dropped.
  void disconnect();

 private:
  void end_early(std::string_view code, std::string message);
  size_t most_unsent_bytes(size_t chunk_bytes) const;

  const ExchangeOptions options_;
  const std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::string out_;
  size_t head_bytes_ = 0;      // of out_: a stream's head that was not taken yet
  size_t in_flight_bytes_ = 0;
  bool is_event_stream_ = false;
  std::string early_end_;
  int status_ = 0;             // 0: nothing begun
  bool keep_alive_;
  bool ended_ = false;
  bool cut_ = false;
  bool disconnected_ = false;
  bool wake_pending_ = false;  // one wake per take(), however many writes
  std::vector<std::function<void()>> callbacks_;
};

}  // namespace warpweave::server
