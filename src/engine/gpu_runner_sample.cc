// From a step's logits or tokens on the GPU to what its requests are told.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/prefetch.h"
#include "device/cuda/copy.h"
#include "engine/gpu_runner.h"
#include "ops/elementwise.h"

namespace warpweave {
namespace {

constexpr int kHostLogprobRows = 64;  // logits rows on the host at a time

std::vector<RowBest> best_of_rows(std::span<const float> values, int vocab_size) {
  std::vector<RowBest> best;
  for (size_t first = 0; first < values.size(); first += vocab_size) {
    const int64_t top = argmax(values.data() + first, vocab_size);
    best.push_back({values[first + top], static_cast<int32_t>(top)});
  }
  return best;
}

}  // namespace

// Takes over what a step sampled on the GPU. Steps finish in the order of their launch.
void GpuRunner::finish(Flight& flight) {
  DeviceStep* const step = std::exchange(flight.step, nullptr);
  if (step == nullptr || step->done) return;
  step->status = wait_for_event(flight.end.get(), "a step on the GPU");
  step->ended_at = SteadyClock::now();
  try {
    if (step->status.ok()) step->status = take_sampled(*step, flight);
  } catch (...) {
    step->status = caught_step_failure();
  }
  measure(*step, flight);
  step->done = true;
}

// How long the GPU was at the step, and idle before it. Events are recorded anew at the flight's next launch.
void GpuRunner::measure(DeviceStep& step, Flight& flight) {
  if (flight.drafts_ahead) step.draft_us = elapsed_ms(flight.draft_begin, flight.begin).value_or(0) * 1000.0;
  const bool behind_head = flight.drafts_ahead && last_followed_ahead_;
  if (behind_head) step.draft_us += elapsed_ms(last_end_, last_followed_).value_or(0) * 1000.0;
  const bool measured = behind_head || flight.follows;
  const float gap_ms = !measured     ? 0
                       : behind_head ? elapsed_ms(last_followed_, flight.draft_begin).value_or(0)
                                     : elapsed_ms(last_end_, flight.begin).value_or(0);
  const auto run_ms = elapsed_ms(flight.begin, flight.end);
  if (measured) step.overhead_us = gap_ms * 1000.0;
  if (run_ms) step.device_us = *run_ms * 1000.0 + step.draft_us;
  if (spdlog::should_log(spdlog::level::debug)) {
    const ForwardBatch& batch = step.builder.batch();
    LOG_DEBUG("step: {} requests, {} tokens, {:.3f} ms on the GPU, idle before {:.1f} us{}; host: staging {:.1f} us, "
              "attention metadata {:.1f}, enqueueing {:.1f}", batch.num_reqs, batch.num_tokens, run_ms.value_or(0),
              gap_ms * 1000, measured ? "" : " (not measured)", flight.staging_us, flight.metadata_us,
              flight.enqueue_us);
  }
  std::swap(last_end_, flight.end);
  std::swap(last_followed_, flight.followed);
  last_followed_ahead_ = flight.follows_ahead;
}

// What the step's requests are told, and their states.
Status GpuRunner::take_sampled(DeviceStep& step, const Flight& flight) {
  const size_t count = step.sample_rows.size();
  const std::span<const int32_t> ids(flight.sampled.as<int32_t>(), count);
  step.sampled.clear();
  for (const Proposal& proposal : step.proposals) prefetch_all(proposal.tokens);
  for (const SampleRow& row : step.sample_rows) prefetch_bytes(row.state, SamplerState::kUsualBytes);
  if (!step.proposals.empty()) {
    if (flight.drafts_ahead) take_guesses(step, flight);
    WW_RETURN_IF_ERROR(take_verified(step, flight));
    return observe(step, flight);
  }
  step.sampled_ids.assign(ids.begin(), ids.end());
  if (flight.edited) {
    step.sampled.assign(count, {});
    for (size_t i = 0; i < count; ++i) step.sampled[i].token_id = ids[i];
    edited_rows_.finish(step.sampled);
    for (size_t i = 0; i < count; ++i) step.sampled_ids[i] = step.sampled[i].token_id;
  }
  for (size_t i = 0; i < count; ++i) step.sample_rows[i].state->add_output(step.sampled_ids[i]);
  return observe(step, flight);
}

// Shows the draft model what became of the step's rows.
Status GpuRunner::observe(const DeviceStep& step, const Flight& flight) {
  if (!is_followed(step)) return {};
  observed_rows(step, walk_, observed_);
  if (flight.follows_ahead && follows_as_accepted(step, flight)) {
    Drafter::observed_ahead(step.draft_rows, observed_);
    return {};
  }
  return parts_.drafter->observe(step.builder, step.draft_rows, observed_);
}

// With proposals every row of logits has its token: each request takes its own as far as they agree.
Status GpuRunner::take_verified(DeviceStep& step, const Flight& flight) {
  for (const DraftRow& row : step.draft_rows) prefetch(row.state);
  walk_.take(step, {flight.sampled.as<int32_t>(), step.builder.batch().logits_rows.size()});
  return keep_accepted(step, flight);
}

// The K/V of accepted nodes of a tree goes to where the next tokens expect it, and recurrent states behind them.
Status GpuRunner::keep_accepted(const DeviceStep& step, const Flight& flight) {
  Status status;
  walk_.each_move(step.builder, [&](int32_t from, int32_t to) {
    if (status.ok()) status = parts_.cache->copy_tokens(from, to, 1, stream());
  });
  if (!status.ok() || parts_.states == nullptr) return status;
  int32_t* const accepted = host_accepted_.as<int32_t>();
  std::fill_n(accepted, flight.batch.num_reqs, -1);  // padding
  for (size_t row = 0; row < step.sample_slots.size(); ++row) {
    accepted[row] = walk_.nodes(step.sample_slots[row]).back();
  }
  WW_RETURN_IF_ERROR(copy_async(accepted_.as<void>(), accepted, flight.batch.num_reqs * sizeof(int32_t), stream(),
                                "accepted proposals"));
  return parts_.model->commit_states({.batch = flight.batch, .tree_parents = flight.tree_parents,
                                      .accepted = accepted_.as<int32_t>()}, *parts_.states);
}

// With proposals, what a row's edits are depends on the tokens that are accepted before it.
bool GpuRunner::samples_on_host(const DeviceStep& step) {
  return !step.proposals.empty() &&
         std::any_of(step.sample_rows.begin(), step.sample_rows.end(), gpu::EditPacker::takes);
}

void GpuRunner::collect_edited_rows(const DeviceStep& step) {
  edited_.clear();
  if (!step.proposals.empty()) return;
  for (size_t slot = 0; slot < step.sample_rows.size(); ++slot) {
    const SampleRow& row = step.sample_rows[slot];
    if (gpu::EditPacker::takes(row)) edited_.push_back({row, static_cast<int>(slot)});
  }
}

// Enqueues the copy of the tokens to the host, and does what the host does with the logits.
Status GpuRunner::read_back(DeviceStep& step, Flight& flight, const float* logits) {
  size_t tokens = step.proposals.empty() ? step.sample_rows.size() : step.builder.batch().logits_rows.size();
  if (flight.drafts_ahead) tokens += static_cast<size_t>(flight.batch.num_tokens);  // the guesses are behind all rows
  WW_RETURN_IF_ERROR(copy_async(flight.sampled.as<void>(), sampled_.as<void>(), tokens * sizeof(int32_t), stream(),
                                "reading sampled tokens"));
  WW_RETURN_IF_ERROR(record_event(flight.end.get(), stream(), "a step"));
  if (!flight.on_host && step.input_logprobs.empty()) return {};
  WW_RETURN_IF_ERROR(wait_for_stream(stream(), "a step on the GPU"));
  WW_RETURN_IF_ERROR(compute_input_logprobs(step, logits));
  if (!flight.on_host) return {};
  WW_RETURN_IF_ERROR(verify_on_host(step, flight, logits));
  step.done = true;
  last_followed_ahead_ = false;
  return observe(step, flight);
}

Result<float*> GpuRunner::logits_memory(int rows) {
  if (rows <= options_.max_requests) return logits_.as<float>();
  const size_t needed = sizeof(float) * rows * static_cast<size_t>(parts_.model->config().vocab_size);
  if (needed > large_logits_.size_bytes()) {
    WW_RETURN_IF_ERROR(wait_for_stream(stream(), "waiting for a step"));
    large_logits_ = DeviceBuffer();
    std::erase_if(graphs_, [](const auto& graph) { return graph.first.q_len > 1; });  // they write to what was there
    WW_ASSIGN_OR_RETURN(large_logits_, DeviceBuffer::allocate(needed, "logits of prompt tokens; lower "
                                                              "--chunked-prefill-size or --mem-fraction-static"));
  }
  return large_logits_.as<float>();
}

// Every request of a step with proposals, where one of them wants its logits on the host.
Status GpuRunner::verify_on_host(DeviceStep& step, const Flight& flight, const float* logits) {
  const int vocab_size = parts_.model->config().vocab_size;
  std::vector<int> rows(step.builder.batch().logits_rows.size());
  std::iota(rows.begin(), rows.end(), 0);
  WW_ASSIGN_OR_RETURN(const std::vector<float> values, read_logits(rows, logits));
  const std::vector<RowBest> best = best_of_rows(values, vocab_size);
  sample_and_verify(step, {.values = values, .best = best, .vocab_size = vocab_size}, sampler_, walk_);
  return keep_accepted(step, flight);
}

Result<std::vector<float>> GpuRunner::read_logits(std::span<const int> rows, const float* logits) const {
  const int64_t vocab_size = parts_.model->config().vocab_size;
  std::vector<float> values(rows.size() * vocab_size);
  for (size_t i = 0; i < rows.size(); ++i) {
    WW_RETURN_IF_ERROR(copy_now(values.data() + i * vocab_size, logits + rows[i] * vocab_size,
                                vocab_size * sizeof(float), "reading logits"));
  }
  return values;
}

Status GpuRunner::compute_input_logprobs(DeviceStep& step, const float* logits) {
  const size_t vocab_size = parts_.model->config().vocab_size;
  std::vector<float> values;
  for (size_t first = 0; first < step.input_logprobs.size(); first += kHostLogprobRows) {
    const size_t count = std::min<size_t>(kHostLogprobRows, step.input_logprobs.size() - first);
    values.resize(count * vocab_size);
    for (size_t i = 0; i < count; ++i) {
      const float* from = logits + step.input_logprobs[first + i].logits_row * vocab_size;
      WW_RETURN_IF_ERROR(copy_now(values.data() + i * vocab_size, from, vocab_size * sizeof(float),
                                "reading logits"));
    }
    parts_.team->parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        InputLogprob& task = step.input_logprobs[first + i];
        const GenerateRequest& request = task.request->request;
        task.result = row_logprobs({values.data() + i * vocab_size, vocab_size}, task.token_id,
                                   request.top_logprobs_num, request.token_ids_logprob);
      }
    });
  }
  return {};
}

}  // namespace warpweave
