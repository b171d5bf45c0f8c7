#include "server/exchange.h"

#include <algorithm>
#include <utility>

namespace warpweave::server {
namespace {

constexpr size_t kEventsUnsent = 4;

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
  bool has_room(size_t bytes) const override { return exchange_->has_room(bytes); }
  void on_disconnect(std::function<void()> callback) override {
    exchange_->on_disconnect(std::move(callback));
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

}  // namespace

Exchange::Exchange(ExchangeOptions options, std::function<void()> wake)
    : options_(options), wake_(std::move(wake)), keep_alive_(options.keep_alive) {}

std::shared_ptr<ResponseWriter> Exchange::make_writer(std::shared_ptr<Exchange> exchange) {
  return std::make_shared<Writer>(std::move(exchange));
}

void Exchange::send(int status, std::string_view content_type, std::string body,
                    const HeaderList& headers) {
  std::vector<std::function<void()>> finished;  // destroyed outside the lock
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (status_ != 0 || disconnected_) return;
    status_ = status;
    ResponseHead head{.status = status, .content_type = content_type,
                      .content_length = body.size(), .keep_alive = keep_alive_,
                      .allow_origin = options_.allow_origin};
    out_ = format_head(head, headers);
    if (!options_.head_only) out_ += body;
    ended_ = true;
    finished.swap(callbacks_);
    wake = !std::exchange(wake_pending_, true);
  }
  if (wake) wake_();
}

void Exchange::begin_stream(int status, std::string_view content_type) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (status_ != 0 || disconnected_) return;
    status_ = status;
    if (!options_.chunked) keep_alive_ = false;
    ResponseHead head{.status = status, .content_type = content_type, .chunked = options_.chunked,
                      .keep_alive = keep_alive_, .allow_origin = options_.allow_origin};
    out_ = format_head(head);
    head_bytes_ = out_.size();
    is_event_stream_ = content_type.starts_with("text/event-stream");
    wake = !std::exchange(wake_pending_, true);
  }
  if (wake) wake_();
}

void Exchange::write(std::string_view chunk) {
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (status_ == 0 || ended_ || disconnected_ || cut_ || options_.head_only) return;
    const size_t unsent_bytes = out_.size() + in_flight_bytes_;
    if (unsent_bytes + chunk.size() > most_unsent_bytes(chunk.size())) {
      end_early("reader_too_slow", "the reader is slower than the stream: " +
                                       std::to_string(unsent_bytes + chunk.size()) + " bytes were not taken");
    } else if (options_.chunked) {
      append_chunk(out_, chunk);
    } else {
      out_ += chunk;
    }
    wake = !std::exchange(wake_pending_, true);
  }
  if (wake) wake_();
}

size_t Exchange::most_unsent_bytes(size_t chunk_bytes) const {
  return std::max(options_.max_buffer_bytes, kEventsUnsent * chunk_bytes);
}

bool Exchange::has_room(size_t bytes) const {
  std::lock_guard lock(mutex_);
  return out_.size() + in_flight_bytes_ + bytes <= most_unsent_bytes(bytes) / 2;
}

// With the lock held. What was taken is whole, so that an event may follow it.
void Exchange::end_early(std::string_view code, std::string message) {
  out_.resize(head_bytes_);
  if (is_event_stream_ && !options_.head_only) {
    const std::string event = "data: " + error_body(500, message, code) + "\n\ndata: [DONE]\n\n";
    options_.chunked ? append_chunk(out_, event) : void(out_ += event);
    if (options_.chunked) out_ += kLastChunk;
    ended_ = true;
  } else {
    cut_ = true;  // the missing last chunk tells the client that the stream is not whole
  }
  early_end_ = std::move(message);
}

void Exchange::end() {
  std::vector<std::function<void()>> finished;
  bool wake = false;
  {
    std::lock_guard lock(mutex_);
    if (status_ == 0 || ended_ || disconnected_ || cut_) return;
    if (options_.chunked && !options_.head_only) out_ += kLastChunk;
    ended_ = true;
    finished.swap(callbacks_);
    wake = !std::exchange(wake_pending_, true);
  }
  if (wake) wake_();
}

void Exchange::abandon() {
  std::unique_lock lock(mutex_);
  if (ended_ || disconnected_ || cut_) return;
  if (status_ == 0) {
    lock.unlock();
    send(500, "application/json", error_body(500, "the server dropped this request"), {});
    return;
  }
  end_early("stream_dropped", "the server dropped this request");
  const bool wake = !std::exchange(wake_pending_, true);
  lock.unlock();
  if (wake) wake_();
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
  in_flight_bytes_ += out_.size();
  head_bytes_ = 0;
  Output output{std::exchange(out_, {}), ended_, cut_, std::exchange(early_end_, {}), {}, keep_alive_, status_};
  if (!output.early_end.empty()) output.disconnected.swap(callbacks_);
  return output;
}

void Exchange::written(size_t bytes) {
  std::lock_guard lock(mutex_);
  in_flight_bytes_ -= bytes;
}

void Exchange::disconnect() {
  std::vector<std::function<void()>> callbacks;
  {
    std::lock_guard lock(mutex_);
    if (disconnected_ || (ended_ && early_end_.empty())) return;
    disconnected_ = true;
    callbacks.swap(callbacks_);
  }
  for (auto& callback : callbacks) callback();
}

}  // namespace warpweave::server
