// Host cost of one decode step outside the model: schedule, batch arrays and commit.
// Arguments: batch size, page size, tokens of context per request, overlap depth.
// And of one request whose whole prompt is cached: add, match, share, one token, release.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "batch/batch_builder.h"
#include "sched/scheduler.h"

namespace warpweave {
namespace {

class Engine {
 public:
  Engine(int batch, int page_size, int context, int overlap_depth)
      : builders_{BatchBuilder({.page_size = page_size}), BatchBuilder({.page_size = page_size})} {
    SchedulerConfig config;
    config.page_size = page_size;
    config.context_len = 1 << 24;
    config.num_pages = (batch + 1) * (context + kOutputTokens + page_size) / page_size;
    config.max_running_requests = batch;
    config.max_prefill_tokens = batch * context;
    config.overlap_depth = overlap_depth;
    config.eos_token_ids = {2};
    scheduler_ = std::make_unique<Scheduler>(config);
    for (int i = 0; i < batch; ++i) {
      ScheduledRequestSpec spec;
      spec.id = i + 1;
      spec.input_ids.assign(context, i + 10);
      spec.max_new_tokens = kOutputTokens;
      if (!scheduler_->add(std::move(spec)).ok()) std::abort();
    }
    sampled_.assign(batch, 7);
    pending_ = &scheduler_->schedule();
    if (overlap_depth == 0) commit();
  }

  void step_alone() {
    pending_ = &scheduler_->schedule();
    builders_[0].build(*pending_);
    commit();
  }

  void step_overlapped() {
    const Step& next = scheduler_->schedule();
    builders_[parity_ ^= 1].build(next);
    commit();
    builders_[parity_].patch_futures(sampled_);
    pending_ = &next;
  }

  static constexpr int kOutputTokens = 4096;

 private:
  void commit() {
    scheduler_->commit(*pending_, std::span(sampled_).first(pending_->num_samples));
  }

  std::unique_ptr<Scheduler> scheduler_;
  BatchBuilder builders_[2];
  int parity_ = 0;
  std::vector<int32_t> sampled_;
  const Step* pending_ = nullptr;
};

void BM_DecodeStep(benchmark::State& state) {
  const int batch = state.range(0), overlap_depth = state.range(3);
  std::unique_ptr<Engine> engine;
  int steps_left = 0;
  for (auto _ : state) {
    if (steps_left == 0) {
      state.PauseTiming();
      engine = std::make_unique<Engine>(batch, state.range(1), state.range(2), overlap_depth);
      steps_left = Engine::kOutputTokens - 2;
      state.ResumeTiming();
    }
    --steps_left;
    overlap_depth == 0 ? engine->step_alone() : engine->step_overlapped();
  }
}
BENCHMARK(BM_DecodeStep)
    ->ArgNames({"batch", "page", "context", "overlap"})
    ->ArgsProduct({{1, 64, 256}, {1, 64}, {512}, {0, 1}})
    ->Args({64, 1, 8192, 1})
    ->Unit(benchmark::kMicrosecond);

void BM_PrefixHit(benchmark::State& state) {
  const int prompt = state.range(0);
  SchedulerConfig config;
  config.page_size = state.range(1);
  config.context_len = prompt + 1;
  config.num_pages = 2 * prompt / config.page_size + 2;
  config.max_prefill_tokens = prompt;
  Scheduler scheduler(config);
  RequestId id = 0;
  for (auto _ : state) {
    ScheduledRequestSpec spec;
    spec.id = ++id;
    spec.input_ids.assign(prompt, 5);
    spec.max_new_tokens = 1;
    if (!scheduler.add(std::move(spec)).ok()) std::abort();
    const Step& step = scheduler.schedule();
    scheduler.commit(step, std::vector<int32_t>(step.num_samples, 7));
    benchmark::DoNotOptimize(scheduler.take_released());
  }
}
BENCHMARK(BM_PrefixHit)
    ->ArgNames({"prompt", "page"})
    ->ArgsProduct({{1024, 131072}, {1, 64}})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace warpweave

BENCHMARK_MAIN();
