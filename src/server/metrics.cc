#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <algorithm>
#include <mutex>
#include <ctime>
#include <limits>
#include <set>
#include <vector>

#include "server/vllm_metrics.h"

namespace warpweave::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const prometheus::Histogram::BucketBoundaries kFirstTokenSeconds = {
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.25, 0.4, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 25, 50, 100, 200, 400};
const prometheus::Histogram::BucketBoundaries kInterTokenSeconds = {
    0.0005, 0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03,
    0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.8, 1.5, 3};
// With the borders that vLLM's dashboards ask for, as above.
const prometheus::Histogram::BucketBoundaries kPerOutputSeconds = {
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 4};
const prometheus::Histogram::BucketBoundaries kRequestSeconds = {
    0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 240, 480, 960, 1920};
const prometheus::Histogram::BucketBoundaries kQueueSeconds = {
    0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300};

const prometheus::Histogram::BucketBoundaries kTokens = {
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};

// 0.1, 0.5 and 1 are those that Prometheus' instrumentation of FastAPI has.
const prometheus::Histogram::BucketBoundaries kHttpSeconds = {0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300};

constexpr size_t kMaxRoutes = 64;  // label values of `endpoint`
constexpr std::string_view kMethods[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
constexpr std::string_view kPrefix = "warpweave:";

struct EngineMetric {
  const char* name;
  const char* help;
  MetricType type;
  double value;
};

std::vector<EngineMetric> engine_metrics(const EngineStats& stats, const EngineInfo& info, int compiling_grammars) {
  const double total = static_cast<double>(stats.max_total_tokens);
  const double used = static_cast<double>(stats.used_tokens);
  const double evictable = static_cast<double>(stats.evictable_tokens);
  const double prompts = static_cast<double>(stats.prompt_tokens_total);
  const double cached = static_cast<double>(stats.cached_tokens_total);
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  const auto gauge = MetricType::Gauge;
  const auto counter = MetricType::Counter;
  std::vector<EngineMetric> metrics = {
      {"num_running_reqs", "Requests being decoded or prefilled", gauge,
       static_cast<double>(stats.running_reqs)},
      {"num_queue_reqs", "Requests waiting", gauge, static_cast<double>(stats.queued_reqs)},
      {"num_grammar_queue_reqs", "Requests whose grammar is being compiled", gauge,
       static_cast<double>(compiling_grammars)},
      {"num_used_tokens", "KV pool tokens owned by running requests", gauge, used},
      {"kv_used_tokens", "KV pool tokens owned by running requests", gauge, used},
      {"kv_evictable_tokens", "KV pool tokens cached and owned by nobody", gauge, evictable},
      {"kv_available_tokens", "KV pool tokens free", gauge, total - used - evictable},
      {"max_total_num_tokens", "KV pool size in tokens", gauge, total},
      {"token_usage", "Share of the KV pool owned by running requests", gauge,
       total > 0 ? used / total : 0},
      {"gen_throughput", "Generated tokens per second over the last ten seconds", gauge,
       stats.gen_throughput_tokens_per_s},
      {"cache_hit_rate", "Share of all prompt tokens found in the prefix cache", gauge,
       prompts > 0 ? cached / prompts : 0},
      {"prompt_tokens_total", "Prompt tokens", counter, prompts},
      {"cached_tokens_total", "Prompt tokens found in the prefix cache", counter, cached},
      {"generation_tokens_total", "Generated tokens", counter,
       static_cast<double>(stats.generation_tokens_total)},
      {"num_requests_total", "Requests", counter, static_cast<double>(stats.requests_total)},
      {"num_aborted_requests_total", "Requests aborted", counter,
       static_cast<double>(stats.aborted_requests_total)},
      {"num_retracted_reqs", "Requests sent back to the queue for want of KV pool tokens", gauge,
       static_cast<double>(stats.retracted_reqs_total)},
      {"evicted_tokens_total", "Cached tokens dropped to make room", counter,
       static_cast<double>(stats.evicted_tokens_total)},
      {"page_size", "Tokens per KV page", gauge, static_cast<double>(info.page_size)},
      {"num_pages", "KV pages", gauge, static_cast<double>(info.num_pages)},
      {"context_len", "Longest request in tokens", gauge, static_cast<double>(info.context_len)},
      {"kv_cache_memory_usage_gb", "KV pool in GiB", gauge,
       static_cast<double>(info.kv_cache_bytes) / kGiB},
      {"weight_memory_usage_gb", "Weights in GiB", gauge,
       static_cast<double>(info.weight_bytes) / kGiB},
      {"startup_time_seconds", "Time to load the model", gauge, info.load_seconds},
  };
  if (stats.cached_kv_tokens_total) {
    const auto of_attention = static_cast<double>(*stats.cached_kv_tokens_total);
    metrics.insert(
        metrics.end(),
        {{"cached_attention_tokens_total", "Prompt tokens whose K and V attention layers had cached", counter,
          of_attention},
         {"cached_recurrent_tokens_total", "Prompt tokens up to a cached state of recurrent layers", counter, cached},
         {"cache_hit_rate_attention", "Share of all prompt tokens that attention layers had cached", gauge,
          prompts > 0 ? of_attention / prompts : 0},
         {"cache_hit_rate_recurrent", "Share of all prompt tokens up to a cached state of recurrent layers", gauge,
          prompts > 0 ? cached / prompts : 0}});
  }
  if (!stats.speculation) {  // dashboards ask for it of every server
    metrics.push_back(
        {"spec_accept_length", "Tokens that a decode step of a request brings, with speculation", gauge, 0});
    return metrics;
  }
  const SpeculationCounts& spec = *stats.speculation;
  metrics.insert(metrics.end(),
                 {{"spec_accept_length", "Tokens that a decode step of a request brings, with speculation", gauge,
                   spec.accept_length()},
                  {"spec_accept_rate", "Share of the drafted tokens that were accepted", gauge, spec.accept_rate()},
                  {"spec_verify_total", "Decode steps of requests, with speculation", counter,
                   static_cast<double>(spec.verify_steps)},
                  {"spec_draft_tokens_total", "Drafted tokens", counter, static_cast<double>(spec.draft_tokens)},
                  {"spec_accepted_tokens_total", "Drafted tokens that were accepted", counter,
                   static_cast<double>(spec.accepted_tokens)}});
  return metrics;
}

// Steps by the tokens in them.
MetricFamily step_metrics(const EngineStats& stats, const std::vector<ClientMetric::Label>& labels) {
  MetricFamily out = {"iteration_tokens", "Tokens of a step of the engine", MetricType::Histogram, {}};
  ClientMetric metric;
  metric.label = labels;
  for (const StepTotals& steps : {stats.decode_steps, stats.prefill_steps, stats.mixed_steps}) {
    metric.histogram.sample_count += steps.steps;
    metric.histogram.sample_sum += static_cast<double>(steps.tokens);
  }
  uint64_t so_far = 0;
  for (size_t i = 0; i < StepSizes::limits_tokens.size(); ++i) {
    so_far += stats.step_sizes.counts[i];
    metric.histogram.bucket.push_back({so_far, static_cast<double>(StepSizes::limits_tokens[i])});
  }
  metric.histogram.bucket.push_back({metric.histogram.sample_count, std::numeric_limits<double>::infinity()});
  out.metric.push_back(std::move(metric));
  return out;
}

// One series a layer for each, whatever the number of experts.
std::vector<MetricFamily> expert_metrics(const std::vector<ExpertLayerLoad>& layers,
                                         const std::vector<ClientMetric::Label>& labels) {
  std::vector<MetricFamily> out = {
      {"expert_choices_total", "Choices of experts by this layer's router", MetricType::Counter, {}},
      {"expert_load_imbalance", "Choices of the layer's busiest expert over the mean of all", MetricType::Gauge, {}},
      {"experts_never_chosen", "Experts of the layer that no token has chosen", MetricType::Gauge, {}}};
  for (const ExpertLayerLoad& layer : layers) {
    const double choices = static_cast<double>(layer.choices);
    const double values[] = {choices, static_cast<double>(layer.busiest) * layer.experts / choices,
                             static_cast<double>(layer.never_chosen)};
    for (size_t i = 0; i < out.size(); ++i) {
      ClientMetric metric;
      metric.label = labels;
      metric.label.push_back({"layer", std::to_string(layer.layer)});
      metric.gauge.value = metric.counter.value = values[i];
      out[i].metric.push_back(std::move(metric));
    }
  }
  return out;
}

// Series come and go with the adapters, so there are never more than may be loaded.
MetricFamily adapter_metrics(const std::vector<AdapterInfo>& adapters, const std::vector<ClientMetric::Label>& labels) {
  MetricFamily out = {
      "lora_requests_total", "Requests that asked for this adapter since it was loaded", MetricType::Counter, {}};
  for (const AdapterInfo& adapter : adapters) {
    ClientMetric metric;
    metric.label = labels;
    metric.label.push_back({"lora_name", adapter.name});
    metric.counter.value = static_cast<double>(adapter.requests);
    out.metric.push_back(std::move(metric));
  }
  return out;
}

std::string known_method(const std::string& method) {
  return std::find(std::begin(kMethods), std::end(kMethods), method) != std::end(kMethods) ? method : "other";
}

struct OtherName {
  std::string_view own;
  std::string_view other;
};
constexpr OtherName kVllmNames[] = {
    {"num_running_reqs", "vllm:num_requests_running"},
    {"num_queue_reqs", "vllm:num_requests_waiting"},
    {"token_usage", "vllm:kv_cache_usage_perc"},
    {"token_usage", "vllm:gpu_cache_usage_perc"},
    {"prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"generation_tokens_total", "vllm:generation_tokens_total"},
    {"prompt_tokens_total", "vllm:prefix_cache_queries_total"},
    {"cached_tokens_total", "vllm:prefix_cache_hits_total"},
    {"time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    {"inter_token_latency_seconds", "vllm:time_per_output_token_seconds"},
    {"request_time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"},
    {"e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
    {"queue_time_seconds", "vllm:request_queue_time_seconds"},
    {"request_prefill_time_seconds", "vllm:request_prefill_time_seconds"},
    {"request_decode_time_seconds", "vllm:request_decode_time_seconds"},
    {"request_prompt_tokens", "vllm:request_prompt_tokens"},
    {"request_generation_tokens", "vllm:request_generation_tokens"},
    {"request_generation_tokens", "vllm:request_max_num_generation_tokens"},
    {"request_success_total", "vllm:request_success_total"},
    {"request_inference_time_seconds", "vllm:request_inference_time_seconds"},
    {"iteration_tokens", "vllm:iteration_tokens_total"},
    {"num_retracted_reqs", "vllm:num_preemptions_total"},
    {"spec_verify_total", "vllm:spec_decode_num_drafts_total"},
    {"spec_draft_tokens_total", "vllm:spec_decode_num_draft_tokens_total"},
    {"spec_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"},
};

// The families once more, under the names of another server.
void add_other_names(std::string_view compat, std::vector<MetricFamily>* families) {
  const size_t own = families->size();
  const auto add = [&](size_t i, std::string name) {
    MetricFamily copy = (*families)[i];
    // What only grows is a counter there; both values of these metrics are set.
    if (copy.type == MetricType::Gauge && name.ends_with("_total")) copy.type = MetricType::Counter;
    copy.name = std::move(name);
    families->push_back(std::move(copy));
  };
  for (size_t i = 0; i < own; ++i) {
    const std::string name = (*families)[i].name.substr(kPrefix.size());
    if (compat == "sglang") add(i, "sglang:" + name);
    if (compat != "vllm") continue;
    for (const OtherName& other : kVllmNames) {
      if (other.own != name) continue;
      add(i, std::string(other.other));
      for (ClientMetric& metric : families->back().metric) metric.label.push_back({"engine", "0"});
    }
  }
}

}  // namespace

struct ServerMetrics::Impl {
  explicit Impl(MetricsOptions metrics_options)
      : options(std::move(metrics_options)),
        labels{{"model_name", options.model_name}},
        first_token(histogram("time_to_first_token_seconds", "Arrival to first token",
                              kFirstTokenSeconds)),
        inter_token(histogram("inter_token_latency_seconds", "Time between tokens",
                              kInterTokenSeconds)),
        per_output_token(histogram("request_time_per_output_token_seconds",
                                   "Request time divided by its tokens", kPerOutputSeconds)),
        e2e(histogram("e2e_request_latency_seconds", "Arrival to last token", kRequestSeconds)),
        queue(histogram("queue_time_seconds", "Arrival to first scheduling", kQueueSeconds)),
        prefill(histogram("request_prefill_time_seconds", "First scheduling to first token", kFirstTokenSeconds)),
        decode(histogram("request_decode_time_seconds", "First token to last", kRequestSeconds)),
        inference(histogram("request_inference_time_seconds", "First scheduling to last token", kRequestSeconds)),
        prompt_tokens(histogram("request_prompt_tokens", "Prompt tokens of a request", kTokens)),
        generation_tokens(histogram("request_generation_tokens", "Generated tokens of a request", kTokens)),
        finished(prometheus::BuildCounter()
                     .Name(name("request_success_total"))
                     .Help("Requests by how they finished")
                     .Register(registry)),
        stopped(finished.Add({{"model_name", options.model_name}, {"finished_reason", "stop"}})),
        at_length(finished.Add({{"model_name", options.model_name}, {"finished_reason", "length"}})),
        aborted(finished.Add({{"model_name", options.model_name}, {"finished_reason", "abort"}})),
        requests(prometheus::BuildCounter()
                     .Name(name("http_requests_total"))
                     .Help("HTTP requests by route and method")
                     .Register(registry)),
        responses(prometheus::BuildCounter()
                      .Name(name("http_responses_total"))
                      .Help("HTTP answers by route, method and status")
                      .Register(registry)),
        durations(prometheus::BuildHistogram()
                      .Name(name("http_request_duration_seconds"))
                      .Help("First byte of an HTTP request to the last one of its answer")
                      .Register(registry)) {}

  static std::string name(std::string_view metric) {
    return std::string(kPrefix).append(metric);
  }
  prometheus::Histogram& histogram(std::string_view metric, const char* help,
                                   const prometheus::Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name(metric)).Help(help).Register(registry).Add(
        labels, buckets);
  }

  // `route`, or "other" once so many are known that it can only be a mistake.
  std::string known(std::string_view route) {
    std::lock_guard lock(mutex);
    if (const auto it = routes.find(route); it != routes.end()) return *it;
    if (routes.size() >= kMaxRoutes) return "other";
    return *routes.emplace(route).first;
  }

  // What vLLM's dashboards ask for beside other names of what is there.
  void add_vllm(const Engine* engine, std::vector<MetricFamily>* families) const {
    const auto append = [&](std::vector<MetricFamily> more) {
      std::move(more.begin(), more.end(), std::back_inserter(*families));
    };
    const auto family_of = [&](std::string_view metric) {
      return std::find_if(families->begin(), families->end(),
                          [&](const auto& family) { return family.name == name(metric); });
    };
    std::vector<MetricFamily> http;
    if (const auto it = family_of("http_responses_total"); it != families->end())
      http.push_back(vllm_http_requests(*it));
    if (const auto it = family_of("http_request_duration_seconds"); it != families->end())
      http.push_back(vllm_http_durations(*it));
    append(std::move(http));
    append(process_families(start_time_s));
    if (engine == nullptr) return;
    const uint64_t ended = prompt_tokens.Collect().histogram.sample_count;
    append(vllm_engine_families({engine->stats(), engine->info(), compiling_grammars.load(), ended},
                                {{"model_name", options.model_name}, {"engine", "0"}}));
  }

  const double start_time_s = static_cast<double>(std::time(nullptr));
  std::atomic<int> compiling_grammars{0};
  std::mutex mutex;
  std::set<std::string, std::less<>> routes;
  const MetricsOptions options;
  const prometheus::Labels labels;
  prometheus::Registry registry;
  prometheus::Histogram& first_token;
  prometheus::Histogram& inter_token;
  prometheus::Histogram& per_output_token;
  prometheus::Histogram& e2e;
  prometheus::Histogram& queue;
  prometheus::Histogram& prefill;
  prometheus::Histogram& decode;
  prometheus::Histogram& inference;
  prometheus::Histogram& prompt_tokens;
  prometheus::Histogram& generation_tokens;
  prometheus::Family<prometheus::Counter>& finished;
  prometheus::Counter& stopped;
  prometheus::Counter& at_length;
  prometheus::Counter& aborted;
  prometheus::Family<prometheus::Counter>& requests;
  prometheus::Family<prometheus::Counter>& responses;
  prometheus::Family<prometheus::Histogram>& durations;
};

ServerMetrics::ServerMetrics(MetricsOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::observe_first_token(double seconds) { impl_->first_token.Observe(seconds); }

void ServerMetrics::observe_inter_token(double seconds, int tokens) {
  for (int i = 0; i < tokens; ++i) impl_->inter_token.Observe(seconds / tokens);
}

void ServerMetrics::observe_request_end(const RequestEnd& end) {
  impl_->e2e.Observe(end.e2e_s);
  impl_->queue.Observe(end.queue_s);
  impl_->inference.Observe(std::max(0.0, end.e2e_s - end.queue_s));
  impl_->prompt_tokens.Observe(end.prompt_tokens);
  impl_->generation_tokens.Observe(end.completion_tokens);
  switch (end.finish) {
    case FinishReason::Type::stop: impl_->stopped.Increment(); break;
    case FinishReason::Type::length: impl_->at_length.Increment(); break;
    case FinishReason::Type::abort: impl_->aborted.Increment(); break;
  }
  if (end.completion_tokens == 0) return;
  impl_->per_output_token.Observe(end.e2e_s / end.completion_tokens);
  impl_->prefill.Observe(std::max(0.0, end.first_token_s - end.queue_s));
  impl_->decode.Observe(std::max(0.0, end.e2e_s - end.first_token_s));
}

void ServerMetrics::observe_http(const AnsweredRequest& answered) {
  prometheus::Labels http = {{"endpoint", impl_->known(answered.route)}, {"method", known_method(answered.method)}};
  impl_->requests.Add(http).Increment();
  impl_->durations.Add(http, kHttpSeconds).Observe(answered.duration_s);
  http["status_code"] = std::to_string(answered.status);
  impl_->responses.Add(http).Increment();
}

void ServerMetrics::grammar_begins() { impl_->compiling_grammars.fetch_add(1); }

void ServerMetrics::grammar_ends() { impl_->compiling_grammars.fetch_sub(1); }

std::string ServerMetrics::render(const Engine* engine, const AdapterStore* adapters) const {
  std::vector<MetricFamily> families = impl_->registry.Collect();
  std::vector<ClientMetric::Label> labels;
  for (const auto& [key, value] : impl_->labels) labels.push_back({key, value});
  if (engine != nullptr) {
    const EngineStats stats = engine->stats();
    families.push_back(step_metrics(stats, labels));
    families.back().name = Impl::name(families.back().name);
    for (const EngineMetric& metric : engine_metrics(stats, engine->info(), impl_->compiling_grammars.load())) {
      ClientMetric value;
      value.label = labels;
      value.gauge.value = metric.value;
      value.counter.value = metric.value;
      families.push_back({Impl::name(metric.name), metric.help, metric.type, {value}});
    }
    if (const std::vector<ExpertLayerLoad> layers = engine->expert_load(); !layers.empty()) {
      for (MetricFamily& family : expert_metrics(layers, labels)) {
        family.name = Impl::name(family.name);
        families.push_back(std::move(family));
      }
    }
  }
  if (adapters != nullptr) {
    families.push_back(adapter_metrics(adapters->list(), labels));
    families.back().name = Impl::name(families.back().name);
  }
  add_other_names(impl_->options.compat, &families);
  if (impl_->options.compat == "vllm") impl_->add_vllm(engine, &families);
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace warpweave::server
