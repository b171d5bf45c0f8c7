// The counters and latency histograms behind /metrics, in Prometheus text format.
//
// The API handlers report each request here; the engine's own counters are read from EngineStats
// when /metrics is scraped. All methods are thread-safe and do not allocate once a label value is
// known. Label values come from closed sets (route table, status codes), so that a client cannot
// grow the number of series. Names carry the prefix `warpweave:` and
// come again under `sglang:` or vLLM's names when asked, so that existing dashboards work.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/http_server.h"
#include "warpweave/adapters.h"
#include "warpweave/engine.h"

namespace warpweave::server {

struct MetricsOptions {
  std::string model_name;          // the label `model_name`
  std::string compat =
      "none";  // --metrics-compat: "sglang" (its dashboards fill), "vllm" (those it has an equal of), "none"
};

// One generation that has ended. Times are in seconds since it arrived; where nothing was generated first_token_s is 0.
struct RequestEnd {
  double e2e_s = 0;
  double queue_s = 0;
  double first_token_s = 0;
  int prompt_tokens = 0;
  int completion_tokens = 0;
  FinishReason::Type finish = FinishReason::Type::stop;
};

class ServerMetrics {
 public:
  explicit ServerMetrics(MetricsOptions options);
  ~ServerMetrics();
  ServerMetrics(const ServerMetrics&) = delete;
  ServerMetrics& operator=(const ServerMetrics&) = delete;

  // Latencies of one generation, in seconds.
  void observe_first_token(double seconds);          // time_to_first_token_seconds
  void observe_inter_token(double seconds, int tokens);  // `tokens` tokens arrived after `seconds`
  // The request's latencies, the times of its prefill and decoding, its tokens and how it finished; call once, when it
  // ends.
  void observe_request_end(const RequestEnd& end);

  // http_requests_total, http_responses_total and http_request_duration_seconds; for every answer of the server.
  // Methods without a meaning in HTTP share one label value.
  void observe_http(const AnsweredRequest& answered);

  // num_grammar_queue_reqs: requests whose grammar is being compiled, or waits to be.
  void grammar_begins();
  void grammar_ends();

  // The whole page. `engine` may be null while the model loads, `adapters` where none are served; of those that are
  // loaded each is a label value.
  std::string render(const Engine* engine, const AdapterStore* adapters = nullptr) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The content type of render()'s text.
inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

}  // namespace warpweave::server
