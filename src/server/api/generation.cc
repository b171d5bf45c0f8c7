#include "server/api/generation.h"

#include <deque>
#include <exception>
#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "server/api/errors.h"

namespace warpweave::server {
namespace {

template <typename T>
void move_behind(std::vector<T>& all, std::vector<T>& next) {
  all.insert(all.end(), std::make_move_iterator(next.begin()), std::make_move_iterator(next.end()));
}

// One delta that says what `into` and then `next` say.
void join(OutputDelta& into, OutputDelta next) {
  move_behind(into.token_ids, next.token_ids);
  move_behind(into.output_logprobs, next.output_logprobs);
  move_behind(into.input_logprobs, next.input_logprobs);
  into.text += next.text;
  next.text = std::move(into.text);
  next.token_ids = std::move(into.token_ids);
  next.output_logprobs = std::move(into.output_logprobs);
  next.input_logprobs = std::move(into.input_logprobs);
  into = std::move(next);
}

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  Generation(std::shared_ptr<Api> api, GenerationJob job, std::vector<std::string> rids,
             std::shared_ptr<ResponseWriter> writer)
      : api_(std::move(api)),
        writer_(std::move(writer)),
        builder_(std::move(job.builder)),
        stream_(job.stream),
        group_rid_(std::move(job.group_rid)),
        rids_(std::move(rids)),
        turn_(std::move(job.turn)),
        sequences_(rids_.size()),
        remaining_(rids_.size()) {}

  ~Generation() {
    if (in_groups_) api_->remove_group(group_rid_);
  }

  void start(std::vector<GenerateRequest> requests) {
    if (rids_.size() > 1) {
      in_groups_ = api_->add_group(group_rid_, rids_);
      if (!in_groups_) {
        return send_error(*writer_, Status::invalid_argument(
                                        fmt::format("rid \"{}\" is running already.", group_rid_),
                                        "rid"));
      }
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      Status status;
      try {
        status = api_->engine().submit(std::move(requests[i]), [self = shared_from_this(), i](
                                                                   OutputDelta delta) {
          self->on_delta(i, std::move(delta));
        });
      } catch (const std::exception& error) {  // those before it must not go on unread
        status = failure_status(error);
      }
      if (!status.ok()) return refuse(status, i);
    }
    try {
      writer_->on_disconnect([self = weak_from_this()] {
        if (const auto generation = self.lock()) generation->abort_all();
      });
    } catch (const std::exception&) {
      refuse(Status::unavailable("There is not enough memory for this request now; retry later."),
             rids_.size());
      return;
    }
    open_gate();
  }

 private:
  // The engine refused sequence `submitted`: the ones before it go, and the error is the answer.
  void refuse(const Status& status, size_t submitted) {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      turn_.reset();
      early_.clear();
    }
    for (size_t i = 0; i < submitted; ++i) api_->engine().abort(rids_[i]);
    if (writer_) send_error(*writer_, status, builder_->error_shape());
  }

  // Until all sequences are accepted nothing is written, so that a refusal is still a plain error.
  void open_gate() {
    std::unique_lock lock(mutex_);
    open_ = true;
    std::vector<std::pair<size_t, OutputDelta>> early = std::move(early_);
    bool failed = false;
    try {
      for (auto& [index, delta] : early) failed |= take(index, std::move(delta));
    } catch (const std::exception& error) {
      give_up(error);
      failed = true;
    }
    lock.unlock();
    if (failed) abort_all();
  }

  // Called by the engine's threads, which answers must not cost their lives: what fails here, for
  // want of memory most likely, fails this request.
  void on_delta(size_t index, OutputDelta delta) noexcept {
    bool failed = true;
    {
      std::lock_guard lock(mutex_);
      try {
        if (!open_) {
          if (!closed_) early_.emplace_back(index, std::move(delta));
          return;
        }
        failed = take(index, std::move(delta));
      } catch (const std::exception& error) {
        give_up(error);
      }
    }
    if (failed) abort_all();
  }

  // The answer cannot be built: says so where that is still possible.
  void give_up(const std::exception& error) noexcept {
    closed_ = true;
    try {
      LOG_ERROR("an answer could not be written: {}", error.what());
      fail(failure_status(error));
    } catch (const std::exception&) {
      writer_.reset();  // the transport answers 500, or cuts the stream
    }
  }

  void abort_all() noexcept {
    try {
      for (const std::string& rid : rids_) api_->engine().abort(rid);
    } catch (const std::exception& error) {
      LOG_ERROR("a failed request goes on unread: {}", error.what());
    }
  }

  // True when this delta made the whole request fail.
  bool take(size_t index, OutputDelta delta) {
    if (closed_) return false;
    const bool failed = delta.finish && delta.finish->type == FinishReason::Type::abort && !delta.finish->error.ok() &&
                        delta.finish->error.code() != StatusCode::cancelled;
    if (turn_) turn_->add(delta.token_ids, /*is_last=*/delta.finish && !failed);
    measure(index, delta);
    if (failed) {
      fail_sequence(index, std::move(delta));
      return remaining_ > 1;
    }
    if (stream_) {
      keep(index, std::move(delta));
      write_kept();
    } else {
      if (delta.finish) --remaining_;
      builder_->add(index, delta, nullptr);
      if (remaining_ == 0) {
        closed_ = true;
        writer_->send(200, "application/json", builder_->body());
      }
    }
    return false;
  }

  // Behind what this sequence has still to say.
  void keep(size_t index, OutputDelta delta) {
    std::optional<OutputDelta>& kept = sequences_[index].kept;
    if (kept) return join(*kept, std::move(delta));
    waiting_.push_back(index);
    kept = std::move(delta);
  }

  // As much as there is room for; the rest when there is more.
  void write_kept() {
    while (!waiting_.empty() && !closed_) {
      if (!writer_->has_room() && writer_->call_when_room([self = shared_from_this()] { self->on_room(); })) return;
      const size_t index = waiting_.front();
      waiting_.pop_front();
      write_events(index);
    }
  }

  void write_events(size_t index) {
    const OutputDelta delta = *std::exchange(sequences_[index].kept, std::nullopt);
    if (delta.finish) --remaining_;
    std::string events;
    builder_->add(index, delta, &events);
    if (remaining_ == 0) {
      builder_->append_last_events(&events);
      events += builder_->stream_end();
    }
    begin_stream();
    if (!events.empty()) writer_->write(std::move(events));
    if (remaining_ == 0) {
      closed_ = true;
      writer_->end();
    }
  }

  void on_room() noexcept {
    bool failed = false;
    {
      std::lock_guard lock(mutex_);
      try {
        if (!closed_) write_kept();
      } catch (const std::exception& error) {
        give_up(error);
        failed = true;
      }
    }
    if (failed) abort_all();
  }

  void begin_stream() {
    if (stream_begun_) return;
    stream_begun_ = true;
    writer_->begin_stream(200, "text/event-stream");
  }

  // A stream that has begun says what it still has to say, and this in the sequence's own last event too:
  // finish_reason abort.
  void fail_sequence(size_t index, OutputDelta delta) {
    const Status error = delta.finish->error;
    std::string events;
    if (stream_begun_) {
      keep(index, std::move(delta));
      for (const size_t i : waiting_) builder_->add(i, *sequences_[i].kept, &events);
    }
    fail(error, std::move(events));
  }

  // `events`: what goes out before the error, of a stream that has begun.
  void fail(const Status& error, std::string events = {}) {
    closed_ = true;
    turn_.reset();
    if (!stream_begun_) return send_error(*writer_, error, builder_->error_shape());
    builder_->append_error_event(error, &events);
    events += builder_->stream_end();
    writer_->write(std::move(events));
    writer_->end();
  }

  void measure(size_t index, const OutputDelta& delta) {
    ServerMetrics* metrics = api_->metrics();
    if (!metrics) return;
    const int new_tokens = static_cast<int>(delta.token_ids.size());
    double& last_s = sequences_[index].last_delta_s;
    if (new_tokens > 0 && delta.completion_tokens == new_tokens) {
      metrics->observe_first_token(delta.e2e_latency_s);
      sequences_[index].first_token_s = delta.e2e_latency_s;
    } else if (new_tokens > 0) {
      metrics->observe_inter_token(delta.e2e_latency_s - last_s, new_tokens);
    }
    last_s = delta.e2e_latency_s;
    if (delta.finish) {
      metrics->observe_request_end({.e2e_s = delta.e2e_latency_s,
                                    .queue_s = delta.queue_time_s,
                                    .first_token_s = sequences_[index].first_token_s,
                                    .prompt_tokens = delta.prompt_tokens,
                                    .completion_tokens = delta.completion_tokens,
                                    .finish = delta.finish->type});
    }
  }

  const std::shared_ptr<Api> api_;
  std::shared_ptr<ResponseWriter> writer_;  // null only when answering has failed
  const std::unique_ptr<ResponseBuilder> builder_;
  const bool stream_;
  const std::string group_rid_;
  const std::vector<std::string> rids_;
  bool in_groups_ = false;

  std::mutex mutex_;  // guards what follows
  // Null: of no session, or ended, which it is before a client reads that it failed.
  std::unique_ptr<SessionStore::Turn> turn_;
  bool open_ = false;
  bool closed_ = false;
  bool stream_begun_ = false;
  std::vector<std::pair<size_t, OutputDelta>> early_;
  struct Sequence {
    std::optional<OutputDelta> kept{};  // of a stream: what its reader was not ready for
    double first_token_s = 0;
    double last_delta_s = 0;
  };
  std::vector<Sequence> sequences_;
  std::deque<size_t> waiting_;          // sequences with something kept, in the order in which it came
  size_t remaining_;                    // sequences whose last delta was not written yet
};

}  // namespace

void ResponseBuilder::append_error_event(const Status& error, std::string* events) {
  if (error_shape() == ErrorShape::anthropic) *events += "event: error\n";
  *events += "data: " + error_json(error, error_shape()) + "\n\n";
}

void start_generation(std::shared_ptr<Api> api, GenerationJob job,
                      std::shared_ptr<ResponseWriter> writer) {
  std::vector<GenerateRequest> requests = std::move(job.requests);
  std::vector<std::string> rids;
  rids.reserve(requests.size());
  for (const GenerateRequest& request : requests) rids.push_back(request.rid);
  const auto generation = std::make_shared<Generation>(std::move(api), std::move(job),
                                                       std::move(rids), std::move(writer));
  generation->start(std::move(requests));
}

std::string sequence_rid(const std::string& group_rid, size_t index, size_t count) {
  return count == 1 ? group_rid : fmt::format("{}-{}", group_rid, index);
}

}  // namespace warpweave::server
