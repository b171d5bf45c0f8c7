#include "engine/device_worker.h"

#include <algorithm>

namespace warpweave {

DeviceWorker::DeviceWorker(DeviceParts parts)
    : parts_(std::move(parts)), sampler_(*parts_.team), thread_([this] { loop(); }) {}

DeviceWorker::~DeviceWorker() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  launched_.notify_one();
  thread_.join();
}

void DeviceWorker::launch(DeviceStep* step) {
  {
    std::lock_guard lock(mutex_);
    step->done = false;
    queue_.push_back(step);
  }
  launched_.notify_one();
}

void DeviceWorker::wait(DeviceStep* step) {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return step->done; });
}

void DeviceWorker::loop() {
  for (;;) {
    DeviceStep* step = nullptr;
    {
      std::unique_lock lock(mutex_);
      if (queue_.empty() && !stopping_) {
        launched_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
        forward_end_ = {};  // the device had nothing to do: that gap is nobody's overhead
      }
      if (queue_.empty()) return;
      step = queue_.front();
      queue_.pop_front();
    }
    run(*step);
    {
      std::lock_guard lock(mutex_);
      step->done = true;
    }
    finished_.notify_one();
  }
}

void DeviceWorker::run(DeviceStep& step) {
  for (auto& [state, output_ids] : step.resumed) state->reset_output(output_ids);
  for (const PageCopy& copy : step.copies) {
    const int64_t page_size = parts_.cache->shape().page_size;
    parts_.cache->copy_tokens(copy.src_page * page_size, copy.dst_page * page_size, copy.num_tokens);
  }
  step.builder.patch_futures(last_sampled_);
  const ForwardBatch& batch = step.builder.batch();
  const int vocab_size = parts_.model->config().vocab_size;
  if (const size_t needed = batch.logits_rows.size() * vocab_size; logits_.size() < needed) {
    logits_.resize(needed);
  }
  best_.resize(batch.logits_rows.size());

  const auto forward_start = SteadyClock::now();
  if (forward_end_ != SteadyClock::time_point{}) {
    step.overhead_us = std::chrono::duration<double, std::micro>(forward_start - forward_end_).count();
  }
  step.status = parts_.attention->init_forward_metadata(batch);
  if (step.status.ok()) {
    step.status = parts_.model->forward(batch, *parts_.cache, *parts_.attention, *parts_.team,
                                        {.values = logits_.data(), .best = best_.data()});
  }
  forward_end_ = SteadyClock::now();

  step.sampled.assign(step.sample_rows.size(), {});
  if (step.status.ok()) {
    sampler_.sample(step.sample_rows, {logits_, best_, vocab_size}, step.sampled);
    compute_input_logprobs(step);
  }
  step.sampled_ids.resize(step.sampled.size());
  std::transform(step.sampled.begin(), step.sampled.end(), step.sampled_ids.begin(),
                 [](const SampledRow& row) { return row.token_id; });
  last_sampled_ = step.sampled_ids;
}

void DeviceWorker::compute_input_logprobs(DeviceStep& step) {
  const size_t vocab_size = parts_.model->config().vocab_size;
  parts_.team->parallel_for(step.input_logprobs.size(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      InputLogprob& task = step.input_logprobs[i];
      const GenerateRequest& request = task.request->request;
      const std::span<const float> row(logits_.data() + task.logits_row * vocab_size, vocab_size);
      task.result = row_logprobs(row, task.token_id, request.top_logprobs_num, request.token_ids_logprob);
    }
  });
}

}  // namespace warpweave
