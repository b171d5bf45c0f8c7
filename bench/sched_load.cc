// What the scheduler makes of a closed loop of requests, when a step takes as long as a model of the GPU says:
// the rows `load64` and `load256` of gpu/serving_bench without a GPU, in a second of CPU time.
//
//   sched_load REQUESTS CONCURRENCY [KEY=VALUE ...]
//
// Keys: chunk (8192), mixed (1), products (us at 64 rows, 4450), rate (prefill tokens/s of large steps, 45000),
// runs (seeds that are averaged, 1), seed (11, that of serving_bench).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "sched/scheduler.h"

using namespace warpweave;

namespace {

struct Options {
  int requests = 200, concurrency = 64;
  std::map<std::string, double> values = {{"chunk", 8192}, {"mixed", 1}, {"products", 4450}, {"rate", 45000},
                                          {"runs", 1}, {"seed", 11}};
};

// Llama-3.1-8B in bf16 on one H200: products by rows, from measurements at 16, 64, 256 and >= 1024 rows (512 is
// a guess); K/V at the speed of the decode kernel; quadratic attention of prompts; the small kernels.
class StepModel {
 public:
  StepModel(double products_64_us, double rate) {
    points_ = {{0, 3600}, {16, 3600}, {64, products_64_us}, {128, std::max(5100.0, products_64_us)},
               {256, 6700}, {512, 12000}, {1024, 1024e6 / rate}};
    rate_ = rate;
  }
  double us(const Step& step) const {
    double kv_bytes = 0, quadratic = 0;
    for (const StepRow& row : step.rows) {
      const double seen = row.start + row.num_tokens;
      kv_bytes += seen * kKvBytes;
      if (row.prefill) quadratic += row.num_tokens * (row.start + row.num_tokens / 2.0);
    }
    const double products = products_us(step.num_tokens);
    return products + kv_bytes / 4.3e6 + quadratic * kAttentionFlops / 430e6 + 500 + 1.5 * std::min(step.num_tokens, 256);
  }

 private:
  static constexpr double kKvBytes = 131072;
  static constexpr double kAttentionFlops = 4.0 * 32 * 128 * 32;
  double products_us(int tokens) const {
    if (tokens >= 1024) return tokens * 1e6 / rate_;
    size_t i = 1;
    while (points_[i].first < tokens) ++i;
    const auto [x0, y0] = points_[i - 1];
    const auto [x1, y1] = points_[i];
    return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0);
  }
  std::vector<std::pair<double, double>> points_;
  double rate_;
};

struct Totals {
  double us = 0, decode_us = 0, mixed_us = 0, prefill_us = 0;
  int64_t output_tokens = 0, decode_steps = 0, mixed_steps = 0, prefill_steps = 0, decode_rows = 0, mixed_rows = 0;
  std::vector<double> ttft_us, gap_us;  // until a first token; between tokens
};

Totals run(const Options& options, int seed) {
  const auto& value = options.values;
  SchedulerConfig config;
  config.page_size = 64;
  config.num_pages = 900000 / 64;
  config.context_len = 32768;
  config.max_running_requests = 256;
  config.chunked_prefill_size = static_cast<int>(value.at("chunk"));
  config.enable_mixed_chunk = value.at("mixed") != 0;
  config.disable_radix_cache = true;
  config.overlap_depth = 1;
  Scheduler scheduler(config);
  const StepModel model(value.at("products"), value.at("rate"));
  std::mt19937 random(seed);
  Totals out;
  std::map<RequestId, double> arrival, last;
  int submitted = 0, finished = 0;
  double now = 0;
  const auto submit = [&] {
    if (submitted == options.requests) return;
    ScheduledRequestSpec spec;
    spec.id = ++submitted;
    spec.input_ids.assign(512 + random() % 1025, 7);
    spec.max_new_tokens = 128 + static_cast<int>(random() % 257);
    spec.ignore_eos = true;
    arrival[spec.id] = now;
    if (!scheduler.add(std::move(spec)).ok()) std::abort();
  };
  for (int i = 0; i < options.concurrency; ++i) submit();
  const Step* running = nullptr;
  while (finished < options.requests) {
    const Step& step = scheduler.schedule();
    const Step* const launched = step.empty() ? nullptr : &step;
    if (running != nullptr) {
      const double us = model.us(*running);
      now += us;
      const auto prefills = std::count_if(running->rows.begin(), running->rows.end(), [](auto& row) { return row.prefill; });
      const int64_t decodes = static_cast<int64_t>(running->rows.size()) - prefills;
      (prefills == 0 ? out.decode_us : decodes == 0 ? out.prefill_us : out.mixed_us) += us;
      ++(prefills == 0 ? out.decode_steps : decodes == 0 ? out.prefill_steps : out.mixed_steps);
      (prefills == 0 ? out.decode_rows : out.mixed_rows) += decodes;
      const std::vector<int32_t> sampled(running->num_samples, 9);
      int ended = 0;
      for (const StepEvent& event : scheduler.commit(*running, sampled)) {
        out.output_tokens += event.has_token;
        if (const auto [at, first] = last.try_emplace(event.id, now); first) {
          out.ttft_us.push_back(now - arrival[event.id]);
        } else {
          out.gap_us.push_back(now - std::exchange(at->second, now));
        }
        ended += event.finish != StepEvent::Finish::none;
      }
      scheduler.take_released();
      finished += ended;
      for (; ended > 0; --ended) submit();
    }
    running = launched;
  }
  out.us = now;
  return out;
}

double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (argc > 1) options.requests = std::atoi(argv[1]);
  if (argc > 2) options.concurrency = std::atoi(argv[2]);
  for (int i = 3; i < argc; ++i) {
    const char* const equals = std::strchr(argv[i], '=');
    const auto at = equals == nullptr ? options.values.end() : options.values.find(std::string(argv[i], equals - argv[i]));
    if (at == options.values.end()) {
      std::fprintf(stderr, "unknown argument %s\n", argv[i]);
      return 2;
    }
    at->second = std::atof(equals + 1);
  }
  double rate = 0;
  Totals totals;
  const int runs = static_cast<int>(options.values["runs"]);
  for (int i = 0; i < runs; ++i) {
    totals = run(options, static_cast<int>(options.values["seed"]) + i);
    rate += static_cast<double>(totals.output_tokens) / totals.us * 1e6 / runs;
  }
  std::printf("%.0f tok/s; the last run: %.2f s; decode %lld steps, %.1f rows, %.2f s; mixed %lld, %.1f rows, %.2f s; "
              "prefill %lld, %.2f s; ttft median %.0f ms; token gap median %.1f, 99 %% %.1f ms\n",
              rate, totals.us / 1e6, static_cast<long long>(totals.decode_steps),
              static_cast<double>(totals.decode_rows) / std::max<int64_t>(totals.decode_steps, 1), totals.decode_us / 1e6,
              static_cast<long long>(totals.mixed_steps),
              static_cast<double>(totals.mixed_rows) / std::max<int64_t>(totals.mixed_steps, 1), totals.mixed_us / 1e6,
              static_cast<long long>(totals.prefill_steps), totals.prefill_us / 1e6, quantile(totals.ttft_us, 0.5) / 1e3,
              quantile(totals.gap_us, 0.5) / 1e3, quantile(totals.gap_us, 0.99) / 1e3);
  return 0;
}
