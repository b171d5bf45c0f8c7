// What the API costs: one streamed token in each dialect, and reading a request of 8,192 token ids.
#include <benchmark/benchmark.h>

#include <string>

#include "server/api/requests.h"
#include "server/api/testing.h"

namespace warpweave::server {
namespace {

using Parser = Result<GenerationJob> (*)(const Api&, std::string_view);

Result<GenerationJob> parse_generate(const Api& api, std::string_view body) { return parse_native_generate(api, body, /*owner=*/""); }

// Parses `body`, then feeds deltas of one token; a stream is begun anew every 512.
void stream_tokens(benchmark::State& state, Parser parse, const char* body) {
  static testing::TestApi test_api;
  const Api api({.engine = test_api.engine(), .args = test_api.args(),
                 .tokenizer = &test_api.tokenizer(), .chat_template = test_api.chat_template()});
  constexpr int kTokens = 512;
  std::string events;
  size_t bytes = 0;
  while (state.KeepRunningBatch(kTokens)) {
    state.PauseTiming();
    Result<GenerationJob> job = parse(api, body);
    if (!job.ok()) return state.SkipWithError(job.status().message().c_str());
    state.ResumeTiming();
    OutputDelta delta;
    delta.rid = job->requests[0].rid;
    delta.token_ids = {1234};
    delta.text = " word";
    delta.output_logprobs.resize(1);
    delta.output_logprobs[0].chosen = {-0.25f, 1234};
    delta.output_logprobs[0].top.assign(job->requests[0].top_logprobs_num, {-0.25f, 1234});
    for (int i = 0; i < kTokens; ++i) {
      delta.completion_tokens = i + 1;
      events.clear();
      job->builder->add(0, delta, &events);
      bytes += events.size();
    }
  }
  state.counters["bytes_per_token"] =
      static_cast<double>(bytes) / static_cast<double>(state.iterations());
}

BENCHMARK_CAPTURE(stream_tokens, chat, parse_chat,
                  R"({"messages": [{"role": "user", "content": "Hi"}], "stream": true})");
BENCHMARK_CAPTURE(stream_tokens, chat_usage_logprobs5, parse_chat,
                  R"({"messages": [{"role": "user", "content": "Hi"}], "stream": true,
                      "stream_options": {"continuous_usage_stats": true},
                      "logprobs": true, "top_logprobs": 5})");
BENCHMARK_CAPTURE(stream_tokens, completion, parse_completion,
                  R"({"prompt": "Hi", "stream": true})");
BENCHMARK_CAPTURE(stream_tokens, generate_of_512, parse_generate,
                  R"({"text": "Hi", "stream": true})");

void read_8192_ids(benchmark::State& state) {
  testing::TestApiOptions options;
  options.engine.info.context_len = 1 << 20;
  testing::TestApi test_api(std::move(options));
  const Api api({.engine = test_api.engine(), .args = test_api.args(),
                 .tokenizer = &test_api.tokenizer()});
  std::string body = "{\"input_ids\": [4000";
  for (int i = 1; i < 8192; ++i) body += ", 4000";
  body += "]}";
  for (auto _ : state) benchmark::DoNotOptimize(parse_generate(api, body).ok());
}
BENCHMARK(read_8192_ids);

}  // namespace
}  // namespace warpweave::server

BENCHMARK_MAIN();
