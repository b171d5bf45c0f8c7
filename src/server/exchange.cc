#include "server/exchange.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/log.h"

namespace warpweave::server {
namespace {

constexpr size_t kChunkFrameBytes = 32;  // a chunk's size and line ends, and the last chunk

class Writer : public ResponseWriter {
 public:
  explicit Writer(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~Writer() override { exchange_->abandon(); }

  void send(int status, std::string_view content_type, std::string body,
            HeaderList headers) override {
    exchange_->send(status, content_type, std::move(body), headers);
  }
  void begin_stream(int status, std::string_view content_type) override {
    exchange_->begin_stream(status, content_type);
  }
  void write(std::string chunk) override { exchange_->write(chunk); }
  void end() override { exchange_->end(); }
  bool has_room() const override { return exchange_->has_room(); }
  bool call_when_room(std::function<void()> callback) override {
    return exchange_->call_when_room(std::move(callback));
  }
  void on_disconnect(std::function<void()> callback) override {
    exchange_->on_disconnect(std::move(callback));
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

void run_all(const std::vector<std::function<void()>>& callbacks) noexcept {
  for (const auto& callback : callbacks) {
    try {
      callback();
    } catch (const std::exception&) {
      LOG_ERROR("a handler could not be told that its client is gone");
    }
  }
}

}  // namespace

Exchange::Exchange(ExchangeOptions options, ExchangeHooks hooks)
    : options_(std::move(options)), hooks_(std::move(hooks)), keep_alive_(options_.keep_alive) {}

Exchange::~Exchange() {
  if (options_.memory) options_.memory->change(counted_bytes_, 0);
}

std::shared_ptr<ResponseWriter> Exchange::make_writer(std::shared_ptr<Exchange> exchange) {
  return std::make_shared<Writer>(std::move(exchange));
}

void Exchange::count_memory() {
  const size_t now_bytes = disconnected_ ? 0 : unsent_bytes();
  if (options_.memory) options_.memory->change(counted_bytes_, now_bytes);
  counted_bytes_ = now_bytes;
}

void Exchange::send(int status, std::string_view content_type, std::string body,
                    const HeaderList& headers) {
  const ResponseHead head{.status = status, .content_type = content_type,
                          .content_length = body.size(), .keep_alive = options_.keep_alive,
                          .allow_origin = options_.allow_origin};
  std::string bytes = format_head(head, headers);
  if (!options_.head_only) bytes += body;
  std::vector<std::function<void()>> finished;  // destroyed outside the lock
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (status_ != 0 || disconnected_ || cut_) return;
    status_ = status;
    out_ = std::move(bytes);
    ended_ = true;
    count_memory();
    finished.swap(callbacks_);
    wake = !std::exchange(wake_pending_, true);
  }
  if (wake) hooks_.wake();
}

void Exchange::begin_stream(int status, std::string_view content_type) {
  const bool keep_alive = options_.keep_alive && options_.chunked;
  const ResponseHead head{.status = status, .content_type = content_type, .chunked = options_.chunked,
                          .keep_alive = keep_alive, .allow_origin = options_.allow_origin};
  std::string bytes = format_head(head);
  bytes.reserve(bytes.size() + kChunkFrameBytes);
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (status_ != 0 || disconnected_ || cut_) return;
    status_ = status;
    keep_alive_ = keep_alive;
    out_ = std::move(bytes);
    head_bytes_ = out_.size();
    is_event_stream_ = content_type.starts_with("text/event-stream");
    count_memory();
    wake = !std::exchange(wake_pending_, true);
  }
  if (wake) hooks_.wake();
}

void Exchange::write(std::string_view chunk) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (status_ == 0 || ended_ || disconnected_ || cut_ || options_.head_only) return;
    if (unsent_bytes() > std::max(options_.max_buffer_bytes, 2 * largest_chunk_bytes_)) {
      end_early("reader_too_slow", "the reader is slower than the stream: too many bytes were not taken");
      wake_pending_ = false;
    } else {
      // Room for all that follows, so that nothing below, nor end(), fails half way.
      out_.reserve(out_.size() + chunk.size() + kChunkFrameBytes);
      options_.chunked ? append_chunk(out_, chunk) : void(out_ += chunk);
      largest_chunk_bytes_ = std::max(largest_chunk_bytes_, chunk.size());
    }
    count_memory();
    wake = !std::exchange(wake_pending_, true);
  }
  if (wake) hooks_.wake();
}

bool Exchange::has_room() const {
  std::lock_guard lock(mutex_);
  return has_room_now() || ended_ || disconnected_ || cut_;
}

bool Exchange::call_when_room(std::function<void()> callback) {
  std::lock_guard lock(mutex_);
  if (has_room_now() || ended_ || disconnected_ || cut_) return false;
  when_room_.swap(callback);  // an earlier one dies with `callback`, after the lock
  return true;
}

// With the lock held. What was taken is whole, so that an event may follow it.
void Exchange::end_early(std::string_view code, std::string_view why) noexcept {
  out_.resize(head_bytes_);
  try {
    std::string said(why);
    if (is_event_stream_ && !options_.head_only) {
      const std::string event = "data: " + error_body(500, why, code) + "\n\ndata: [DONE]\n\n";
      out_.reserve(out_.size() + event.size() + kChunkFrameBytes);
      options_.chunked ? append_chunk(out_, event) : void(out_ += event);
      if (options_.chunked) out_ += kLastChunk;
      ended_ = true;
    } else {
      cut_ = true;  // the missing last chunk tells the client that the stream is not whole
    }
    early_end_ = std::move(said);
  } catch (const std::exception&) {
    cut_ = true;
  }
  count_memory();
}

void Exchange::end() {
  std::vector<std::function<void()>> finished;
  std::function<void()> when_room;  // dropped outside the lock: it may hold the writer
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (status_ == 0 || ended_ || disconnected_ || cut_) return;
    if (options_.chunked && !options_.head_only) out_ += kLastChunk;  // there is room: see write()
    ended_ = true;
    count_memory();
    finished.swap(callbacks_);
    when_room.swap(when_room_);
    wake = !std::exchange(wake_pending_, true);
  }
  if (wake) hooks_.wake();
}

void Exchange::abandon() noexcept {
  constexpr std::string_view kWhy = "the server dropped this request";
  bool wake = false;
  try {
    std::unique_lock lock(mutex_);
    if (ended_ || disconnected_ || cut_) return;
    if (status_ == 0) {
      lock.unlock();
      return send(500, "application/json", error_body(500, kWhy), {});
    }
    end_early("stream_dropped", kWhy);
    wake = wake_pending_ = true;
  } catch (const std::exception&) {
    std::lock_guard lock(mutex_);
    cut_ = true;
    wake = wake_pending_ = true;
  }
  if (wake) hooks_.wake();
}

void Exchange::on_disconnect(std::function<void()> callback) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return;
    if (!disconnected_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

Exchange::Output Exchange::take() {
  std::lock_guard lock(mutex_);
  wake_pending_ = false;
  taken_bytes_ += out_.size();
  head_bytes_ = 0;
  Output output{std::exchange(out_, {}), ended_, cut_, std::exchange(early_end_, {}), {}, keep_alive_, status_};
  if (!output.early_end.empty()) output.disconnected.swap(callbacks_);
  return output;
}

Exchange::Output Exchange::take_early_end() {
  std::lock_guard lock(mutex_);
  Output output;
  output.cut = cut_;
  output.early_end = std::exchange(early_end_, {});
  if (!output.early_end.empty()) output.disconnected.swap(callbacks_);
  return output;
}

void Exchange::written() {
  std::function<void()> when_room;
  {
    std::lock_guard lock(mutex_);
    taken_bytes_ = 0;
    count_memory();
    if (has_room_now() || ended_) when_room.swap(when_room_);
  }
  if (when_room) hooks_.run(std::move(when_room));
}

void Exchange::disconnect() noexcept {
  std::vector<std::function<void()>> callbacks;
  std::function<void()> when_room;  // dropped outside the lock: it may hold the writer
  {
    std::lock_guard lock(mutex_);
    when_room.swap(when_room_);
    const bool whole = ended_ && early_end_.empty();
    if (!disconnected_ && !whole) callbacks.swap(callbacks_);
    disconnected_ = disconnected_ || !whole;
    taken_bytes_ = 0;
    out_ = {};
    count_memory();
  }
  run_all(callbacks);
}

size_t Exchange::held_bytes() const {
  std::lock_guard lock(mutex_);
  return counted_bytes_;
}

}  // namespace warpweave::server
