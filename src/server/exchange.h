// One request's answer on its way from any thread to the I/O thread: the ResponseWriter given to a
// handler, and the buffer behind it. Knows HTTP framing, not sockets.
//
// Flow control: a stream has room while at most half of max_buffer_bytes is unsent. Who asks first may write a chunk of
// any size. A stream whose handler does not ask and whose reader falls behind ends: what was not taken yet is dropped
// and a last event says why. A stream whose handler gives up ends the same way.
//
// Where memory ends, send(), begin_stream() and write() throw and have changed nothing, so that a shorter answer may be
// tried; what cannot be said at all closes the connection.
//
// Writer methods: any thread, never block. take(), written() and disconnect(): the I/O thread only.
// Hooks are called from any thread; they must not block, throw or call back into the exchange.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"
#include "server/http_wire.h"
#include "server/output_memory.h"

namespace warpweave::server {

struct ExchangeOptions {
  bool head_only = false;         // HEAD: the body is dropped
  bool chunked = true;            // HTTP/1.0 clients get a stream that ends by closing
  bool keep_alive = true;
  std::string allow_origin{};     // web pages that may read the answer; empty: none
  size_t max_buffer_bytes = 0;    // see above
  std::shared_ptr<OutputMemory> memory{};  // counts what is held; null: nobody does
};

struct ExchangeHooks {
  std::function<void()> wake;                            // take() may have something new
  std::function<void(std::function<void()>)> run{};      // on a worker
};

class Exchange {
 public:
  Exchange(ExchangeOptions options, ExchangeHooks hooks);
  ~Exchange();

  // A handler's end; the exchange outlives it. Dropping the writer unanswered answers 500, or cuts
  // a stream.
  static std::shared_ptr<ResponseWriter> make_writer(std::shared_ptr<Exchange> exchange);

  void send(int status, std::string_view content_type, std::string body, const HeaderList& headers);
  void begin_stream(int status, std::string_view content_type);
  void write(std::string_view chunk);
  bool has_room() const;
  bool call_when_room(std::function<void()> callback);
  void end();
  void abandon() noexcept;
  // As ResponseWriter::on_disconnect; callbacks of disconnect() and of Output::disconnected run on the I/O thread.
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
  // While the bytes of the last take() wait for the reader: what of the next one cannot wait, without its bytes.
  Output take_early_end();
  // The bytes of the last take() have all been sent.
  void written();
  // The client went away: callbacks run here, later output is dropped.
  void disconnect() noexcept;
  size_t held_bytes() const;

 private:
  void end_early(std::string_view code, std::string_view why) noexcept;
  size_t unsent_bytes() const { return out_.size() + taken_bytes_; }
  bool has_room_now() const { return unsent_bytes() <= options_.max_buffer_bytes / 2; }
  void count_memory();

  const ExchangeOptions options_;
  const ExchangeHooks hooks_;
  mutable std::mutex mutex_;
  std::string out_;
  size_t head_bytes_ = 0;      // of out_: a stream's head that was not taken yet
  size_t taken_bytes_ = 0;     // and not written
  size_t counted_bytes_ = 0;   // told to options_.memory
  size_t largest_chunk_bytes_ = 0;
  bool is_event_stream_ = false;
  std::string early_end_;
  int status_ = 0;             // 0: nothing begun
  bool keep_alive_;
  bool ended_ = false;
  bool cut_ = false;
  bool disconnected_ = false;
  bool wake_pending_ = false;  // one wake per take(), however many writes; one more for an early end
  std::vector<std::function<void()>> callbacks_;
  std::function<void()> when_room_;  // keeps its handler's writer, and so this exchange, until it has run or is dropped
};

}  // namespace warpweave::server
