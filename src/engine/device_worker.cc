#include "engine/device_worker.h"

#include <algorithm>
#include <exception>
#include <new>

#include "base/resident_memory.h"
#include "base/thread_deadline.h"

namespace warpweave {
namespace {

constexpr int kStatesBlockRows = 64;  // of hidden states that are added up

// Whether anything is made of the logits of these rows.
bool wants_logits(const DeviceStep& step, int first, int count) {
  const auto inside = [&](const auto& task) { return task.logits_row >= first && task.logits_row < first + count; };
  return std::any_of(step.sample_rows.begin(), step.sample_rows.end(), inside) ||
         std::any_of(step.input_logprobs.begin(), step.input_logprobs.end(), inside);
}

template <typename Duration>
double in_us(Duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

// Adds the time of its life, and the thread's CPU time.
class TimeSpent {
 public:
  TimeSpent(double& total_us, double& total_cpu_us) : total_us_(total_us), total_cpu_us_(total_cpu_us) {}
  ~TimeSpent() {
    total_us_ += in_us(SteadyClock::now() - begun_);
    total_cpu_us_ += in_us(thread_time() - cpu_begun_);
  }
  TimeSpent(const TimeSpent&) = delete;
  TimeSpent& operator=(const TimeSpent&) = delete;

 private:
  double &total_us_, &total_cpu_us_;
  const SteadyClock::time_point begun_ = SteadyClock::now();
  const std::chrono::nanoseconds cpu_begun_ = thread_time();
};

}  // namespace

DeviceWorker::DeviceWorker(DeviceParts parts)
    : parts_(std::move(parts)),
      logits_block_rows_(WidestStep::logits_block_rows(logits_head())),
      sampler_(*parts_.team),
      thread_([this] { loop(); }) {}

DeviceWorker::~DeviceWorker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  launched_.notify_one();
  thread_.join();
}

LogitsHead DeviceWorker::logits_head() const {
  const PackedLinear& head = parts_.model->head();
  const auto weights = static_cast<double>(std::max<int64_t>(1, head.in_features() * head.out_features()));
  return {.vocab_size = parts_.model->config().vocab_size,
          .weight_bytes = static_cast<double>(head.size_bytes()) / weights,
          .threads = parts_.team->size()};
}

void DeviceWorker::launch(DeviceStep* step) {
  {
    std::lock_guard lock(mutex_);
    step->done = false;
    if (left_ != nullptr) queue_.push_back(std::exchange(left_, nullptr));  // it comes first
    if (step->waited_for_next && queue_.empty() && !running_) {
      left_ = step;
      return;
    }
    queue_.push_back(step);
  }
  launched_.notify_one();
}

void DeviceWorker::wait(DeviceStep* step) {
  std::unique_lock lock(mutex_);
  if (left_ == step) {
    left_ = nullptr;
    lock.unlock();
    forward_end_ = {};  // as behind any pause of the device
    run_or_fail(*step);
    forward_end_ = {};
    step->done = true;
  } else {
    finished_.wait(lock, [&] { return step->done; });
  }
  step->ended_at = SteadyClock::now();
}

Result<int64_t> DeviceWorker::rehearse(const WidestStep& widest) {
  const int64_t before_bytes = resident_memory().anonymous_bytes;
  Rehearsal rehearsal{.widest = widest, .status = {}};
  std::unique_lock lock(mutex_);
  rehearsal_ = &rehearsal;
  launched_.notify_one();
  finished_.wait(lock, [&] { return rehearsal.done; });
  WW_RETURN_IF_ERROR(rehearsal.status);
  return std::max<int64_t>(0, resident_memory().anonymous_bytes - before_bytes);
}

void DeviceWorker::run(Rehearsal& rehearsal) {
  try {
    rehearsal.status = [&]() -> Status {
      const WidestBatch made_up(rehearsal.widest);
      const ForwardBatch& batch = made_up.batch();
      WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata(batch));
      WW_RETURN_IF_ERROR(
          parts_.model->rehearse(batch, *parts_.cache, *parts_.attention, *parts_.team, parts_.recurrent.get()));
      if (!parts_.model->has_head()) return {};
      const int rows = rehearsal.widest.logits_rows;
      logits_.resize(static_cast<size_t>(rows) * parts_.model->config().vocab_size);
      best_.resize(rows);
      parts_.model->logits(0, rows, {.values = logits_.data(), .best = best_.data()}, *parts_.team);
      return {};
    }();
  } catch (const std::bad_alloc&) {
    rehearsal.status = Status(StatusCode::unavailable, "out of memory");  // a text that takes none
  } catch (const std::exception& error) {
    rehearsal.status = Status::internal(error.what());
  }
}

void DeviceWorker::finish(bool& done) {
  {
    std::lock_guard lock(mutex_);
    done = true;
    running_ = false;
  }
  finished_.notify_one();
}

void DeviceWorker::loop() {
  for (;;) {
    DeviceStep* step = nullptr;
    Rehearsal* rehearsal = nullptr;
    {
      std::unique_lock lock(mutex_);
      if (queue_.empty() && !stopping_) {
        launched_.wait(lock, [&] { return stopping_ || rehearsal_ != nullptr || !queue_.empty(); });
        forward_end_ = {};  // the device had nothing to do: that gap is nobody's overhead
      }
      rehearsal = std::exchange(rehearsal_, nullptr);
      if (rehearsal == nullptr) {
        if (queue_.empty()) return;
        step = queue_.front();
        queue_.pop_front();
        running_ = true;
      }
    }
    if (rehearsal != nullptr) {
      run(*rehearsal);
      finish(rehearsal->done);
    } else {
      run_or_fail(*step);
      finish(step->done);
    }
  }
}

// A step that failed leaves no tokens for the one after it, which may have been launched already.
void DeviceWorker::run_or_fail(DeviceStep& step) noexcept {
  if (last_failed_ && !step.builder.futures().empty()) {
    step.status = step_failure(StatusCode::unavailable, "the step before failed");
    return;
  }
  last_failed_ = true;
  try {
    run(step);
    last_failed_ = !step.status.ok();
  } catch (...) {
    step.status = caught_step_failure();
  }
}

void DeviceWorker::run(DeviceStep& step) {
  step.device_us = step.draft_us = step.cpu_us = step.draft_cpu_us = 0;
  const TimeSpent spent(step.device_us, step.cpu_us);
  for (auto& [state, output_ids] : step.resumed) state->reset_output(output_ids);
  Status intact;
  if (parts_.canary != nullptr) intact = parts_.canary->apply(step.page_events);
  for (const PageCopy& copy : step.copies) {
    const int64_t page_size = parts_.cache->shape().page_size;
    parts_.cache->copy_tokens(copy.src_page * page_size, copy.dst_page * page_size, copy.num_tokens);
  }
  if (parts_.recurrent != nullptr) parts_.recurrent->states.copy(step.state_loads);
  step.builder.patch_futures(last_sampled_);
  if (intact.ok() && parts_.drafter != nullptr) intact = draft(step);
  const ForwardBatch& batch = step.builder.batch();

  const auto forward_start = SteadyClock::now();
  if (forward_end_ != SteadyClock::time_point{}) {
    step.overhead_us = in_us(forward_start - forward_end_);
  }
  step.status = intact.ok() ? parts_.attention->init_forward_metadata(batch) : intact;
  if (step.status.ok()) {
    parts_.model->bring_inputs(step.inputs);
    step.status = parts_.model->forward(batch, *parts_.cache, *parts_.attention, *parts_.team,
                                           parts_.recurrent.get());
    if (step.status.ok() && parts_.recurrent != nullptr) parts_.recurrent->states.copy(step.state_saves);
    forward_end_ = SteadyClock::now();
    step.first_nan = parts_.model->first_nan();
  }
  step.sampled.assign(step.sample_rows.size(), {});
  if (step.status.ok()) {
    take_states(step);
    take_logits(step);
  }
  step.sampled_ids.resize(step.sampled.size());
  std::transform(step.sampled.begin(), step.sampled.end(), step.sampled_ids.begin(),
                 [](const SampledRow& row) { return row.token_id; });
  if (!step.sampled_begin.empty()) step.status = keep_accepted(step);
  if (step.status.ok() && parts_.drafter != nullptr) step.status = observe(step);
  last_sampled_ = step.sampled_ids;
}

// The draft model's guesses in place of the room that was kept for them.
Status DeviceWorker::draft(DeviceStep& step) {
  const TimeSpent spent(step.draft_us, step.draft_cpu_us);
  WW_RETURN_IF_ERROR(parts_.drafter->copy_pages(step.copies));
  if (step.proposals.empty()) return {};
  WW_RETURN_IF_ERROR(parts_.drafter->draft(step.builder, step.draft_rows, step.proposals));
  step.builder.replace_proposals(step.proposals);
  return {};
}

// Shows the draft model what became of the step's rows.
Status DeviceWorker::observe(DeviceStep& step) {
  const TimeSpent spent(step.draft_us, step.draft_cpu_us);
  observed_rows(step, walk_, observed_);
  return parts_.drafter->observe(step.builder, step.draft_rows, observed_);
}

void DeviceWorker::take_states(DeviceStep& step) {
  const size_t hidden = static_cast<size_t>(parts_.model->config().hidden_size);
  for (StateRows& task : step.states) {
    task.values.assign(hidden * (task.add_up ? 1 : task.rows), 0);
    if (!task.add_up) {
      parts_.model->states(task.logits_row, task.rows, task.values.data(), *parts_.team);
      continue;
    }
    for (int done = 0; done < task.rows; done += kStatesBlockRows) {
      const int count = std::min(kStatesBlockRows, task.rows - done);
      states_.resize(count * hidden);
      parts_.model->states(task.logits_row + done, count, states_.data(), *parts_.team);
      for (size_t i = 0; i < states_.size(); ++i) task.values[i % hidden] += states_[i];
    }
  }
}

// Behind the last row of the block that begins at `first`: a proposal's rows stay together.
int DeviceWorker::block_end(const DeviceStep& step, int first, int rows) const {
  const int end = std::min(rows, first + logits_block_rows_);
  if (step.proposals.empty() || end == rows) return end;
  for (size_t row = 0; row < step.sample_slots.size(); ++row) {
    const int slot = step.sample_slots[row];
    if (slot < 0) continue;
    const int begin = step.sample_rows[slot].logits_row;
    const int behind = begin + 1 + proposal_of(step.proposals, row).size();
    if (begin < end && end < behind) return begin > first ? begin : behind;
  }
  return end;
}

// Logits block by block, each used before the next takes its place.
void DeviceWorker::take_logits(DeviceStep& step) {
  const int rows = static_cast<int>(step.builder.batch().logits_rows.size());
  const bool verifies = !step.proposals.empty() && !step.sample_rows.empty();
  if (verifies) walk_.start(step);
  for (int first = 0, count; first < rows; first += count) {
    count = block_end(step, first, rows) - first;
    if (!wants_logits(step, first, count)) continue;
    const size_t values = static_cast<size_t>(count) * parts_.model->config().vocab_size;
    if (logits_.size() < values) logits_.resize(values);
    best_.resize(count);
    parts_.model->logits(first, count, {.values = logits_.data(), .best = best_.data()}, *parts_.team);
    if (first + count == rows) forward_end_ = SteadyClock::now();
    if (verifies) {
      walk_.enter(first, count);
      sample_walk(step, {logits_, best_, parts_.model->config().vocab_size}, first, sampler_, walk_);
    } else {
      sample_block(first, count, step);
    }
    compute_input_logprobs(first, count, step);
  }
  if (verifies) walk_.finish(step);
}

// The K/V of accepted nodes of a tree goes to where the next tokens expect it, and recurrent states behind them.
Status DeviceWorker::keep_accepted(const DeviceStep& step) {
  walk_.each_move(step.builder, [&](int32_t from, int32_t to) { parts_.cache->copy_tokens(from, to, 1); });
  if (parts_.recurrent == nullptr) return {};
  accepted_.clear();
  for (const int slot : step.sample_slots) accepted_.push_back(walk_.nodes(slot).back());
  return parts_.model->commit_states(accepted_, *parts_.recurrent, *parts_.team);
}

void DeviceWorker::sample_block(int first_row, int rows, DeviceStep& step) {
  block_slots_.clear();
  block_rows_.clear();
  for (size_t slot = 0; slot < step.sample_rows.size(); ++slot) {
    SampleRow row = step.sample_rows[slot];
    row.logits_row -= first_row;
    if (row.logits_row < 0 || row.logits_row >= rows) continue;
    block_slots_.push_back(static_cast<int>(slot));
    block_rows_.push_back(row);
  }
  block_sampled_.assign(block_rows_.size(), {});
  sampler_.sample(block_rows_, {logits_, best_, parts_.model->config().vocab_size}, block_sampled_);
  for (size_t i = 0; i < block_slots_.size(); ++i) {
    step.sampled[block_slots_[i]] = std::move(block_sampled_[i]);
  }
}

void DeviceWorker::compute_input_logprobs(int first_row, int rows, DeviceStep& step) {
  const size_t vocab_size = parts_.model->config().vocab_size;
  parts_.team->parallel_for(step.input_logprobs.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      InputLogprob& task = step.input_logprobs[i];
      const int row_in_block = task.logits_row - first_row;
      if (row_in_block < 0 || row_in_block >= rows) continue;
      const GenerateRequest& request = task.request->request;
      const std::span<const float> row(logits_.data() + row_in_block * vocab_size, vocab_size);
      task.result = row_logprobs(row, task.token_id, request.top_logprobs_num, request.token_ids_logprob);
    }
  });
}

}  // namespace warpweave
