// Host cost of selecting attention backends: every rule for one configuration, and a refusal with the
// search for configurations that work. Both run once at start.
#include <benchmark/benchmark.h>

#include "attention/select.h"

namespace warpweave {
namespace {

ModelFacts llama() {
  ModelFacts model;
  model.architecture = "LlamaForCausalLM";
  model.num_q_heads = 32;
  model.num_kv_heads = 8;
  model.head_dim = 128;
  return model;
}

void BM_Select(benchmark::State& state) {
  const HardwareFacts hardware = named_hardware("h200").value();
  const std::vector<KnownBackend> all = known_backends_as_built();
  for (auto _ : state) benchmark::DoNotOptimize(select_attention(hardware, llama(), {}, all));
}
BENCHMARK(BM_Select)->Unit(benchmark::kMicrosecond);

void BM_RefuseAndSuggest(benchmark::State& state) {
  const HardwareFacts hardware = named_hardware("a100").value();
  const std::vector<KnownBackend> all = known_backends_as_built();
  AttentionFlags flags;
  flags.attention_backend = "fa3";
  flags.page_size = 16;
  flags.kv_cache_dtype = "fp4_e2m1";
  for (auto _ : state) benchmark::DoNotOptimize(select_attention(hardware, llama(), flags, all));
}
BENCHMARK(BM_RefuseAndSuggest)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace warpweave

BENCHMARK_MAIN();
