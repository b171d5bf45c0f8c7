// What the scheduler makes of a closed loop of requests, when a step takes as long as a model of the GPU says:
// the rows `load64` and `load256` of gpu/serving_bench without a GPU, in a second of CPU time.
//
//   sched_load REQUESTS CONCURRENCY [KEY=VALUE ...]
//
// Keys: chunk (8192), mixed (1) and rows (--mixed-chunk-rows, 512) of the scheduler; delay (steps that go by between
// a request's end and the next one's arrival, 1); in_min, in_max, out_min, out_max (tokens); runs (seeds that are
// averaged, 1), seed (11, that of serving_bench); trace (1: a line a step); of the model: gemms (1, a factor),
// round (rows to which steps with prefill are padded), mixed_us and row_us (what such a step and each of its
// prompt tokens cost beside GEMMs and attention), throttle (0.14, how much slower compute-bound work gets when
// it lasts), heat, tau_us, warm_from (when).
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
  std::map<std::string, double> values = {
      {"chunk", 8192},   {"mixed", 1},        {"rows", 512},      {"delay", 1},     {"in_min", 512},
      {"in_max", 1536},  {"out_min", 128},    {"out_max", 384},   {"runs", 1},      {"seed", 11},
      {"trace", 0},      {"gemms", 1},     {"round", 128},     {"mixed_us", 1000}, {"row_us", 0.1},
      {"throttle", 0.14}, {"heat", 1.28},     {"tau_us", 33000},  {"warm_from", 0.39}};
};

// Llama-3.1-8B in bf16 on one H200, calibrated on the steps of serving_bench (2026-11-22) and on what the tuner
// measured of the GEMMs: their sum over the layers by rows; K/V at the speed of the decode kernel; quadratic
// attention of prompts; the small kernels; and the clock, which falls when compute-bound work lasts.
class StepModel {
 public:
  explicit StepModel(const std::map<std::string, double>& values) : values_(values) {}

  // The time of the step; the model remembers how warm it leaves the GPU.
  double us(const Step& step) {
    double kv_bytes = 0, quadratic = 0;
    int64_t prefill_tokens = 0;
    for (const StepRow& row : step.rows) {
      const double seen = row.start + row.num_tokens;
      kv_bytes += seen * kKvBytes;
      if (!row.prefill) continue;
      quadratic += row.num_tokens * (row.start + row.num_tokens / 2.0);
      prefill_tokens += row.num_tokens;
    }
    const double gemms = gemm_us(step.num_tokens, prefill_tokens > 0);
    double other = kv_bytes / kKvBytesPerUs + lm_head_us(step.num_samples) + 130 + 0.94 * std::min<size_t>(step.rows.size(), 256);
    if (prefill_tokens > 0) {
      other += values_.at("mixed_us") + values_.at("row_us") * static_cast<double>(prefill_tokens) + quadratic * kAttentionFlops / 530e6;
    }
    return warmed(gemms + other, std::clamp((gemms - 4300) / (gemms + other), 0.0, 1.0) * values_.at("heat"),
                  prefill_tokens > 0);
  }

 private:
  static constexpr double kKvBytes = 131072;  // of a token
  static constexpr double kKvBytesPerUs = 4.35e6;
  static constexpr double kAttentionFlops = 4.0 * 32 * 128 * 32;
  static constexpr double kSliceUs = 1000;

  // Time passes in slices, of which each takes longer the warmer the GPU is.
  double warmed(double work_us, double load, bool mixed) {
    double spent = 0;
    const double tau = values_.at("tau_us"), from = values_.at("warm_from");
    const double throttle = values_.at("throttle") * (mixed ? 1 : 0.4);
    for (double left = work_us; left > 0; left -= kSliceUs) {
      const double slice = std::min(left, kSliceUs);
      const double slower = 1 + throttle * std::clamp((warmth_ - from) / (0.95 - from), 0.0, 1.0);
      spent += slice * slower;
      warmth_ += (load - warmth_) * std::min(slice * slower / tau, 1.0);
    }
    return spent;
  }

  static double lm_head_us(int rows) { return 265 + 0.5 * std::max(rows - 64, 0); }

  // Decode steps are padded to multiples of 8 rows, steps with prefill to `round`.
  double gemm_us(int tokens, bool prefill) const {
    static const std::vector<std::pair<double, double>> points = {
        {0, 3450},    {8, 3460},    {16, 3500},   {24, 3560},    {64, 3620},    {96, 3900},     {128, 4200},
        {160, 4900},  {192, 5180},  {224, 5880},  {256, 6130},   {384, 8420},   {512, 10310},   {640, 12500},
        {768, 14820}, {896, 17100}, {1024, 19110}, {1152, 21820}, {1280, 24100}, {1536, 28520},
        {2048, 36800}, {8192, 140200}, {65536, 1121600}};
    const int round = prefill ? (tokens < 64 ? 1 : static_cast<int>(values_.at("round"))) : 8;
    const double rows = (tokens + round - 1) / round * round;
    size_t i = 1;
    while (points[i].first < rows) ++i;
    const auto [x0, y0] = points[i - 1];
    const auto [x1, y1] = points[i];
    return (y0 + (y1 - y0) * (rows - x0) / (x1 - x0)) * values_.at("gemms");
  }

  const std::map<std::string, double>& values_;
  double warmth_ = 0;  // 0..1
};

struct Totals {
  double us = 0, decode_us = 0, mixed_us = 0, prefill_us = 0;
  int64_t output_tokens = 0, decode_steps = 0, mixed_steps = 0, prefill_steps = 0, decode_rows = 0, mixed_rows = 0;
  std::vector<double> ttft_us, gap_us;  // until a first token; between tokens
};

// One line a step: requests, tokens, ms, tokens of prefill, K/V tokens read, K/V tokens times prefill rows, samples.
void trace(const Step& step, double us) {
  double kv = 0, quadratic = 0;
  int prefill_tokens = 0;
  for (const StepRow& row : step.rows) {
    kv += row.start + row.num_tokens;
    if (row.prefill) quadratic += row.num_tokens * (row.start + row.num_tokens / 2.0);
    if (row.prefill) prefill_tokens += row.num_tokens;
  }
  std::printf("%zu %d %.3f %d %.0f %.0f %d\n", step.rows.size(), step.num_tokens, us / 1e3, prefill_tokens, kv, quadratic,
              step.num_samples);
}

SchedulerConfig scheduler_config(const std::map<std::string, double>& values) {
  SchedulerConfig config;
  config.page_size = 64;
  config.num_pages = 900000 / 64;
  config.context_len = 32768;
  config.max_running_requests = 256;
  config.chunked_prefill_size = static_cast<int>(values.at("chunk"));
  config.enable_mixed_chunk = values.at("mixed") != 0;
  config.mixed_chunk_rows = static_cast<int>(values.at("rows"));
  config.disable_radix_cache = true;
  config.overlap_depth = 1;
  return config;
}

// As many clients as `concurrency`, each of which sends its next request when the last one has ended.
class ClosedLoop {
 public:
  ClosedLoop(const Options& options, int seed)
      : options_(options), values_(options.values), scheduler_(scheduler_config(values_)), model_(values_), random_(seed) {}

  Totals run() {
    for (int i = 0; i < options_.concurrency; ++i) submit(0);
    const Step* running = nullptr;
    while (finished_ < options_.requests) {
      const Step& step = scheduler_.schedule();  // while the one before runs
      const Step* const launched = step.empty() ? nullptr : &step;
      if (running != nullptr) end(*running);
      running = launched;
    }
    totals_.us = now_;
    return std::move(totals_);
  }

 private:
  int draw(const char* least, const char* most) {
    const int from = static_cast<int>(values_.at(least));
    return from + static_cast<int>(random_() % static_cast<unsigned>(static_cast<int>(values_.at(most)) - from + 1));
  }

  void submit(double arrived) {
    if (submitted_ == options_.requests) return;
    ScheduledRequestSpec spec;
    spec.id = ++submitted_;
    spec.input_ids.assign(draw("in_min", "in_max"), 7);
    spec.max_new_tokens = draw("out_min", "out_max");
    spec.ignore_eos = true;
    arrival_[spec.id] = arrived;
    if (!scheduler_.add(std::move(spec)).ok()) std::abort();
  }

  void count(const Step& step, double us) {
    const auto prefills = std::count_if(step.rows.begin(), step.rows.end(), [](auto& row) { return row.prefill; });
    const int64_t decodes = static_cast<int64_t>(step.rows.size()) - prefills;
    (prefills == 0 ? totals_.decode_us : decodes == 0 ? totals_.prefill_us : totals_.mixed_us) += us;
    ++(prefills == 0 ? totals_.decode_steps : decodes == 0 ? totals_.prefill_steps : totals_.mixed_steps);
    (prefills == 0 ? totals_.decode_rows : totals_.mixed_rows) += decodes;
  }

  // What a step gave, and the requests that arrive behind it.
  void end(const Step& step) {
    const double us = model_.us(step);
    now_ += us;
    if (values_.at("trace") != 0) trace(step, us);
    count(step, us);
    const std::vector<int32_t> sampled(step.num_samples, 9);
    int ended = 0;
    for (const StepEvent& event : scheduler_.commit(step, sampled)) {
      totals_.output_tokens += event.has_token;
      if (const auto [at, first] = last_.try_emplace(event.id, now_); first) {
        totals_.ttft_us.push_back(now_ - arrival_[event.id]);
      } else {
        totals_.gap_us.push_back(now_ - std::exchange(at->second, now_));
      }
      ended += event.finish != StepEvent::Finish::none;
    }
    scheduler_.take_released();
    finished_ += ended;
    for (; ended > 0; --ended) coming_.push_back({static_cast<int>(values_.at("delay")), now_});
    while (!coming_.empty() && coming_.front().after_steps == 0) {
      submit(coming_.front().since_us);
      coming_.pop_front();
    }
    for (Coming& request : coming_) --request.after_steps;
  }

  struct Coming {
    int after_steps;
    double since_us;  // when its time began
  };

  const Options& options_;
  const std::map<std::string, double>& values_;
  Scheduler scheduler_;
  StepModel model_;
  std::mt19937 random_;
  Totals totals_;
  std::map<RequestId, double> arrival_, last_;
  std::deque<Coming> coming_;
  int submitted_ = 0, finished_ = 0;
  double now_ = 0;
};

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
    totals = ClosedLoop(options, static_cast<int>(options.values["seed"]) + i).run();
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
