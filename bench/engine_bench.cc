// The engine without HTTP: prefill, decode at several batch sizes, and the host's share of a step.
//
//   engine_bench --model-path DIR --skip-tokenizer-init [any flag of `warpweave serve`]
//
// Prints medians of five runs: prompt 512, 128 new tokens, as docs/benchmarks.md quotes them.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <vector>

#include "base/log.h"
#include "engine/engine_impl.h"

using namespace warpweave;
using Clock = std::chrono::steady_clock;

namespace {

constexpr int kPromptTokens = 512, kNewTokens = 128, kRuns = 5;
constexpr auto kSampleInterval = std::chrono::milliseconds(20);

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct RunTimes {
  double first_token_s = 0;  // until every request has its first token
  double total_s = 0;
  double median_overhead_us = 0;
};

// `batch` requests of distinct prompts, all at once.
RunTimes run(Engine& engine, int batch, int new_tokens, int salt) {
  std::mutex mutex;
  std::condition_variable changed;
  int started = 0, finished = 0;
  RunTimes times;
  std::vector<double> overheads;
  const auto start = Clock::now();
  for (int b = 0; b < batch; ++b) {
    GenerateRequest request;
    request.rid = std::to_string(salt) + "-" + std::to_string(b);
    for (int i = 0; i < kPromptTokens; ++i) {
      request.input_ids.push_back((salt * 7919 + b * 104729 + i * 31 + i * i) % (engine.info().vocab_size - 4) + 3);
    }
    request.sampling.temperature = 0;
    request.sampling.max_new_tokens = new_tokens;
    request.sampling.ignore_eos = true;
    // Only a request's first and last token wake this thread: a consumer that ran on every token
    // would take the cores that are being measured.
    const Status status = engine.submit(request, [&, first = true](const OutputDelta& delta) mutable {
      if (!first && !delta.finish) return;
      std::lock_guard lock(mutex);
      if (first && ++started == batch) times.first_token_s = seconds_since(start);
      first = false;
      if (delta.finish && ++finished == batch) changed.notify_one();
    });
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      std::exit(1);
    }
  }
  std::unique_lock lock(mutex);
  while (finished < batch) {
    changed.wait_for(lock, kSampleInterval);
    lock.unlock();
    overheads.push_back(engine.stats().step_overhead_us);
    lock.lock();
  }
  times.total_s = seconds_since(start);
  times.median_overhead_us = median(overheads);
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  auto flags = parse_flags(Command::serve, words);
  if (!flags.ok() || !init_log("warning").ok()) {
    std::fprintf(stderr, "%s\n", flags.status().message().c_str());
    return 2;
  }
  auto served = create_engine({.args = flags->args, .model_path = flags->args.model_path, .on_weights_progress = {}});
  if (!served.ok()) {
    std::fprintf(stderr, "%s\n", served.status().message().c_str());
    return 1;
  }
  Engine& engine = *served->engine;
  std::printf("%s; weights %.0f MB; loaded in %.2f s\n", engine.info().device.c_str(),
              engine.info().weight_bytes / 1e6, engine.info().load_seconds);
  int salt = 1;
  run(engine, 1, 8, salt++);
  std::vector<double> prefill;
  for (int i = 0; i < kRuns; ++i) prefill.push_back(kPromptTokens / run(engine, 1, 1, salt++).total_s);
  std::printf("prefill b1: %.0f tok/s\n", median(prefill));
  for (int batch : {1, 8, 64}) {
    std::vector<double> rate, overhead;
    for (int i = 0; i < (batch == 64 ? 1 : kRuns); ++i) {
      const RunTimes times = run(engine, batch, kNewTokens, salt++);
      rate.push_back(batch * (kNewTokens - 1) / (times.total_s - times.first_token_s));
      overhead.push_back(times.median_overhead_us);
    }
    std::printf("decode b%d: %.1f tok/s, overhead %.0f us a step\n", batch, median(rate), median(overhead));
  }
  return 0;
}
