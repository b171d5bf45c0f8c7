// What a request brings for its prompt's rows (input_embeds) and gets of them beside new tokens: log-probabilities,
// states.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>

#include "engine/engine_core.h"

namespace warpweave {

// The first position whose state the request wants, or -1.
int EngineCore::states_from(const GenerateRequest& request) const {
  if (request.states == StateWish::none) return -1;
  const bool pools_last = request.states == StateWish::pooled && options_.pooler.method() == PoolingMethod::last;
  return pools_last || request.states == StateWish::last ? static_cast<int>(request.input_ids.size()) - 1 : 0;
}

void EngineCore::want_input_logprobs(const StepRow& row, int first_logits_row,
                                     DeviceStep& device_step) {
  auto& request = *static_cast<LiveRequest*>(row.user);
  const GenerateRequest& asked = request.request;
  if (!row.prefill || !asked.return_logprob || asked.logprob_start_len < 0) return;
  const int prompt_tokens = static_cast<int>(asked.input_ids.size());
  const int first_position = row.start + row.num_tokens - row.num_logits + 1;
  for (int i = 0; i < row.num_logits; ++i) {
    const int position = first_position + i;
    if (position < asked.logprob_start_len || position >= prompt_tokens) continue;
    device_step.input_logprobs.push_back(
        {&request, first_logits_row + i, position, asked.input_ids[position], {}});
  }
}

void EngineCore::want_states(const StepRow& row, int first_logits_row, DeviceStep& device_step) {
  auto& request = *static_cast<LiveRequest*>(row.user);
  const StateWish wish = request.request.states;
  if (wish == StateWish::none || row.num_logits == 0) return;
  const int first = row.start + row.num_tokens - row.num_logits;
  const int begin = std::max(first, states_from(request.request));
  int end = row.start + row.num_tokens;
  const bool pooled = wish == StateWish::pooled;
  if (pooled && options_.pooler.method() == PoolingMethod::first) end = std::min(end, 1);
  if (begin >= end) return;
  device_step.states.push_back({.request = &request, .logits_row = first_logits_row + begin - first,
                                .rows = end - begin, .position = begin,
                                .add_up = pooled && options_.pooler.method() == PoolingMethod::mean, .values = {}});
}

// The scheduler and the prefix cache know rows that are brought by keys in place of ids. On the caller's thread: long
// prompts take milliseconds, and the engine's has steps to launch.
void EngineCore::name_embeds(LiveRequest& request) {
  GenerateRequest& asked = request.request;
  const auto places = asked.position_ids != nullptr ? std::span(*asked.position_ids) : std::span<const int32_t>();
  EmbedKeys::Prompt prompt = embed_keys_.keys_of(*asked.input_embeds, options_.info.hidden_size, places);
  request.embed_keys = std::move(prompt.keys);
  if (prompt.epoch > 0) asked.cache_salt = fmt::format("embeds {}:{}", prompt.epoch, asked.cache_salt);
}

// The part of input_embeds that this row of the step reads; tokens behind the prompt are embedded as ever.
void EngineCore::bring_embeds(const StepRow& row, int first_token_row, DeviceStep& device_step) {
  if (!row.prefill) return;
  const GenerateRequest& asked = static_cast<LiveRequest*>(row.user)->request;
  const int prompt_tokens = static_cast<int>(asked.input_ids.size());
  if (asked.input_embeds == nullptr || row.start >= prompt_tokens) return;
  const std::span<const float> embeds(*asked.input_embeds);
  const size_t hidden = embeds.size() / asked.input_ids.size();
  const int end = std::min(row.start + row.num_tokens, prompt_tokens);
  device_step.inputs.push_back({first_token_row, embeds.subspan(row.start * hidden, (end - row.start) * hidden)});
}

// Where the rows of requests with position_ids stand, if there are any.
void EngineCore::place_rows(const Step& step, DeviceStep& device_step) {
  bool any = false;
  places_.clear();
  for (const StepRow& row : step.rows) {
    const auto& request = *static_cast<const LiveRequest*>(row.user);
    RowPlaces& places = places_.emplace_back();
    if (request.request.position_ids == nullptr) continue;
    places = {*request.request.position_ids, request.after_prompt};
    any = true;
  }
  if (any) device_step.builder.place_rows(places_);
}

// Each position counts once: those behind the last one known. After a retraction some come again.
void EngineCore::keep_prompt_rows(DeviceStep& device_step) {
  for (InputLogprob& task : device_step.input_logprobs) {
    LiveRequest& request = *task.request;
    if (request.input_logprobs_sent) continue;  // computed again after a retraction
    const int first = std::max(request.request.logprob_start_len, 1);
    const auto expected = static_cast<size_t>(task.position - first);
    if (expected == request.input_logprobs.size()) {
      request.input_logprobs.push_back(std::move(task.result));
    }
  }
  for (StateRows& rows : device_step.states) {
    LiveRequest& request = *rows.request;
    if (request.answered || rows.position != states_from(request.request) + request.num_states) continue;
    if (request.request.states == StateWish::last) {
      request.states = std::move(rows.values);
    } else if (rows.add_up && request.num_states > 0) {
      std::transform(rows.values.begin(), rows.values.end(), request.states.begin(), request.states.begin(),
                     std::plus<float>());
    } else {
      request.states.insert(request.states.end(), rows.values.begin(), rows.values.end());
    }
    request.num_states += rows.rows;
  }
}

bool EngineCore::states_are_finite(const LiveRequest& request) const {
  return std::all_of(request.states.begin(), request.states.end(), [](float x) { return std::isfinite(x); });
}

void EngineCore::hand_over_states(LiveRequest& request) {
  if (request.states.empty()) return;
  if (request.request.states == StateWish::pooled) {
    request.pending.pooled = options_.pooler.finish(std::move(request.states), request.num_states);
  } else {
    request.pending.states = std::move(request.states);
  }
  request.states.clear();
}

}  // namespace warpweave
