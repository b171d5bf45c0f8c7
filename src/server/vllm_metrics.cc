#include "server/vllm_metrics.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <utility>

#include "base/resident_memory.h"

namespace warpweave::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

ClientMetric value_of(double value, MetricLabels labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = metric.counter.value = value;
  return metric;
}

MetricLabels with(MetricLabels labels, std::string name, std::string value) {
  labels.push_back({std::move(name), std::move(value)});
  return labels;
}

std::string value_of_label(const ClientMetric& metric, std::string_view name) {
  for (const ClientMetric::Label& label : metric.label) {
    if (label.name == name) return label.value;
  }
  return {};
}

struct Split {
  const char* value;  // of the label
  double count;
};

// `family` with a series for each value of `label`.
MetricFamily split_family(MetricFamily family, const char* label, const std::vector<Split>& parts,
                          const MetricLabels& labels) {
  MetricFamily out = std::move(family);
  for (const Split& part : parts) out.metric.push_back(value_of(part.count, with(labels, label, part.value)));
  return out;
}

// One series for each place in a proposal down to the deepest at which one was kept; the first one always.
MetricFamily accepted_by_position(const EngineStats& stats, const MetricLabels& labels) {
  MetricFamily out = {"vllm:spec_decode_num_accepted_tokens_per_pos_total",
                      "Drafted tokens that were accepted, by their place in the draft",
                      MetricType::Counter,
                      {}};
  for (size_t position = 0; position < stats.accepted_by_position.size(); ++position) {
    const auto kept = static_cast<double>(stats.accepted_by_position[position]);
    if (kept == 0 && position > 0) break;
    out.metric.push_back(value_of(kept, with(labels, "position", std::to_string(position))));
  }
  return out;
}

bool is_probe(std::string_view path) {
  constexpr std::string_view kProbes[] = {"/health", "/health_generate", "/live",    "/ready",
                                          "/ping",   "/metrics",         "/version", "/get_load"};
  return std::find(std::begin(kProbes), std::end(kProbes), path) != std::end(kProbes);
}

}  // namespace

std::vector<MetricFamily> vllm_engine_families(const VllmSources& from, const MetricLabels& labels) {
  const auto prompts = static_cast<double>(from.stats.prompt_tokens_total);
  const auto cached = static_cast<double>(from.stats.cached_tokens_total);
  const auto counter = MetricType::Counter;
  const auto gauge = MetricType::Gauge;
  MetricFamily computed = {"vllm:request_prefill_kv_computed_tokens",
                           "Prompt tokens that were not found in the prefix cache",
                           MetricType::Summary,
                           {ClientMetric{}}};
  computed.metric[0].label = labels;
  computed.metric[0].summary.sample_sum = prompts - cached;
  computed.metric[0].summary.sample_count = from.ended_requests;
  MetricLabels cache = with(labels, "block_size", std::to_string(from.info.page_size));
  cache.push_back({"num_gpu_blocks", std::to_string(from.info.num_pages)});
  std::vector<MetricFamily> out = {
      split_family(
          {"vllm:prompt_tokens_by_source_total", "Prompt tokens by where their K and V come from", counter, {}},
          "source",
          {{"local_compute", prompts - cached}, {"local_cache_hit", cached}, {"external_kv_transfer", 0}}, labels),
      split_family({"vllm:prompt_tokens_cached_by_source_total", "Prompt tokens found in a cache", counter, {}},
                   "source", {{"device", cached}}, labels),
      {"vllm:prompt_tokens_cached_total", "Prompt tokens found in a cache", counter, {value_of(cached, labels)}},
      split_family({"vllm:num_requests_waiting_by_reason", "Requests waiting: for room, or for their grammar", gauge,
                    {}},
                   "reason",
                   {{"capacity", static_cast<double>(from.stats.queued_reqs)},
                    {"deferred", static_cast<double>(from.compiling_grammars)}},
                   labels),
      split_family({"vllm:engine_sleep_state", "Engines here never sleep", gauge, {}}, "sleep_state",
                   {{"awake", 1}, {"weights_offloaded", 0}, {"discard_all", 0}}, labels),
      {"vllm:cache_config_info", "The KV pool", gauge, {value_of(1, std::move(cache))}},
      std::move(computed)};
  if (from.stats.speculation) out.push_back(accepted_by_position(from.stats, labels));
  return out;
}

MetricFamily vllm_http_requests(const MetricFamily& responses) {
  std::map<std::array<std::string, 3>, double> counts;  // by handler, method and class of status
  for (const ClientMetric& one : responses.metric) {
    const std::string handler = value_of_label(one, "endpoint"), status = value_of_label(one, "status_code");
    if (!is_probe(handler))
      counts[{handler, value_of_label(one, "method"), status.substr(0, 1) + "xx"}] += one.counter.value;
  }
  MetricFamily out = {
      "http_requests_total", "HTTP requests by handler, method and class of status", MetricType::Counter, {}};
  for (const auto& [key, count] : counts) {
    out.metric.push_back(value_of(count, {{"handler", key[0]}, {"method", key[1]}, {"status", key[2]}}));
  }
  return out;
}

MetricFamily vllm_http_durations(MetricFamily durations) {
  durations.name = "http_request_duration_seconds";
  std::erase_if(durations.metric, [](const ClientMetric& one) { return is_probe(value_of_label(one, "endpoint")); });
  for (ClientMetric& one : durations.metric) {
    one.label = {{"handler", value_of_label(one, "endpoint")}, {"method", value_of_label(one, "method")}};
  }
  return durations;
}

std::vector<MetricFamily> process_families(double start_time_s) {
  std::vector<MetricFamily> out;
  const auto add = [&](const char* name, const char* help, MetricType type, double value) {
    out.push_back({name, help, type, {value_of(value, {})}});
  };
  add("process_start_time_seconds", "When the server started, in seconds since 1970", MetricType::Gauge, start_time_s);
  rusage used{};
  if (getrusage(RUSAGE_SELF, &used) == 0) {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
    };
    add("process_cpu_seconds_total", "Processor time of this process", MetricType::Counter,
        seconds(used.ru_utime) + seconds(used.ru_stime));
  }
  if (const int64_t bytes = resident_memory().bytes; bytes > 0) {
    add("process_resident_memory_bytes", "Resident memory", MetricType::Gauge, static_cast<double>(bytes));
  }
  std::error_code error;
  const std::filesystem::directory_iterator open_files("/proc/self/fd", error);
  if (!error) {
    add("process_open_fds", "Open files and connections", MetricType::Gauge,
        static_cast<double>(std::distance(begin(open_files), end(open_files))));
  }
  rlimit most{};
  if (getrlimit(RLIMIT_NOFILE, &most) == 0) {
    add("process_max_fds", "Open files and connections, at most", MetricType::Gauge,
        static_cast<double>(most.rlim_cur));
  }
  return out;
}

}  // namespace warpweave::server
