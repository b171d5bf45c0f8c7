// Series of vLLM's that have no equal under a name of ours: what its dashboards ask for beside those of metrics.cc.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "warpweave/engine.h"

namespace warpweave::server {

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

struct VllmSources {
  const EngineStats& stats;
  const EngineInfo& info;
  int compiling_grammars = 0;
  uint64_t ended_requests = 0;
};

// `labels`: model_name, and engine.
std::vector<prometheus::MetricFamily> vllm_engine_families(const VllmSources& from, const MetricLabels& labels);

// Under the names and labels that Prometheus' instrumentation of FastAPI gives; probes are left out.
// http_requests_total by handler, method and class of status ("2xx"), out of our http_responses_total.
prometheus::MetricFamily vllm_http_requests(const prometheus::MetricFamily& responses);
// http_request_duration_seconds by handler and method, out of ours.
prometheus::MetricFamily vllm_http_durations(prometheus::MetricFamily durations);

// process_*, as Prometheus' client libraries name them; of what the system does not tell there is none.
std::vector<prometheus::MetricFamily> process_families(double start_time_s);

}  // namespace warpweave::server
