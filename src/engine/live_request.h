// A request between submit() and its last delta: what the engine thread keeps about it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/prefetch.h"
#include "engine/text_stream.h"
#include "sample/sampler_state.h"
#include "sched/scheduler.h"
#include "spec/draft_options.h"
#include "spec/length_planner.h"
#include "warpweave/engine.h"

namespace warpweave {

using SteadyClock = std::chrono::steady_clock;

struct LiveRequest {
  LiveRequest(GenerateRequest request_in, OutputSink sink_in, SamplerState sampler_in,
              const Tokenizer* tokenizer)
      : request(std::move(request_in)),
        sampler(std::move(sampler_in)),
        sink(std::move(sink_in)),
        text(tokenizer, request.sampling, request.input_ids) {}

  // Up to the sampler's usual part, what every step of decoding reads stands together.
  RequestId id = kNoRequest;
  bool answered = false;            // the final delta is out
  bool aborted = false;             // before it was started
  std::vector<int32_t> output_ids;  // committed
  SpeculationCounts speculated;
  LengthState draft_length;  // with --speculative-adaptive
  DraftState draft;          // touched by the device thread only, once scheduled
  GenerateRequest request;
  SamplerState sampler;            // touched by the device thread only, once scheduled

  OutputSink sink;
  TextStream text;
  std::vector<int32_t> embed_keys; // of input_embeds, until the scheduler has them
  int after_prompt = 0;            // of position_ids: what rows behind the prompt add to their count
  int num_published = 0;           // of them, gathered in `pending` or sent
  std::vector<PositionLogprobs> input_logprobs;
  bool input_logprobs_sent = false;
  std::vector<float> states;       // [num_states, hidden], or their sum
  int num_states = 0;              // positions that are in it
  OutputDelta pending;             // gathered since the last delta
  int cached_tokens = 0, cached_kv_tokens = 0;
  int retractions = 0;
  SteadyClock::time_point arrival = SteadyClock::now();
  SteadyClock::time_point first_scheduled{};
};

// Of a request that decodes, before a step reads or writes it.
inline void prefetch_decoding(const LiveRequest& request) {
  const auto* const begin = reinterpret_cast<const char*>(&request);
  const auto* const end = reinterpret_cast<const char*>(&request.sampler) + SamplerState::kUsualBytes;
  prefetch_bytes(begin, static_cast<size_t>(end - begin));
}

}  // namespace warpweave
