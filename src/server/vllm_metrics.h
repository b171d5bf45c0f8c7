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

// http_requests_total by handler and class of status ("2xx"), out of our http_responses_total; probes are left out.
prometheus::MetricFamily vllm_http_family(const prometheus::MetricFamily& responses);

// process_*, as Prometheus' client libraries name them; of what the system does not tell there is none.
std::vector<prometheus::MetricFamily> process_families(double start_time_s);

}  // namespace warpweave::server
