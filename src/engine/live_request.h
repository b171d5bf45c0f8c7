// A request between submit() and its last delta: what the engine thread keeps about it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

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
        sink(std::move(sink_in)),
        sampler(std::move(sampler_in)),
        text(tokenizer, request.sampling, request.input_ids) {}

  RequestId id = kNoRequest;
  GenerateRequest request;
  OutputSink sink;
  SamplerState sampler;            // touched by the device thread only, once scheduled
  TextStream text;
  std::vector<int32_t> embed_keys; // of input_embeds, until the scheduler has them
  int after_prompt = 0;            // of position_ids: what rows behind the prompt add to their count
  std::vector<int32_t> output_ids; // committed
  int num_published = 0;           // of them, gathered in `pending` or sent
  std::vector<PositionLogprobs> input_logprobs;
  bool input_logprobs_sent = false;
  std::vector<float> states;       // [num_states, hidden], or their sum
  int num_states = 0;              // positions that are in it
  OutputDelta pending;             // gathered since the last delta
  int cached_tokens = 0, cached_kv_tokens = 0;
  int retractions = 0;
  SpeculationCounts speculated;
  LengthState draft_length;        // with --speculative-adaptive
  DraftState draft;                // touched by the device thread only, once scheduled
  bool answered = false;           // the final delta is out
  SteadyClock::time_point arrival = SteadyClock::now();
  SteadyClock::time_point first_scheduled{};
};

}  // namespace warpweave
