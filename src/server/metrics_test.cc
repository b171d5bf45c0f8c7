#include "server/metrics.h"

#include <gtest/gtest.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include "server/testing/fake_engine.h"

namespace warpweave::server {
namespace {

bool has_line(const std::string& page, const std::string& line) {
  return ("\n" + page).find("\n" + line + "\n") != std::string::npos;
}

constexpr RequestEnd kEnd = {.e2e_s = 0.5,
                             .queue_s = 0.001,
                             .first_token_s = 0.101,
                             .prompt_tokens = 7,
                             .completion_tokens = 4,
                             .finish = FinishReason::Type::length};

TEST(ServerMetrics, RendersRequestHistograms) {
  ServerMetrics metrics({.model_name = "tale"});
  metrics.observe_first_token(0.02);
  metrics.observe_inter_token(0.03, 3);
  metrics.observe_request_end(kEnd);
  const std::string page = metrics.render(nullptr);
  EXPECT_TRUE(has_line(page, "warpweave:time_to_first_token_seconds_count{model_name=\"tale\"} 1"));
  EXPECT_TRUE(has_line(page, "warpweave:inter_token_latency_seconds_count{model_name=\"tale\"} 3"));
  EXPECT_TRUE(
      has_line(page, "warpweave:e2e_request_latency_seconds_sum{model_name=\"tale\"} 0.5"));
  EXPECT_TRUE(has_line(
      page, "warpweave:request_time_per_output_token_seconds_sum{model_name=\"tale\"} 0.125"));
  EXPECT_EQ(page.find("sglang:"), std::string::npos);
}

// Routes come from the table; should that ever change, the page stays small all the same.
TEST(ServerMetrics, TheNumberOfSeriesIsBounded) {
  ServerMetrics metrics({.model_name = "tale"});
  for (int i = 0; i < 100000; ++i) {
    metrics.observe_http(
        {.route = "/made/up/" + std::to_string(i), .method = "M" + std::to_string(i % 1000), .status = 100 + i % 500});
  }
  EXPECT_LT(metrics.render(nullptr).size(), size_t{1} << 20);
  metrics.observe_http({.route = "/generate", .method = "POST", .status = 200, .duration_s = 0.25});
  EXPECT_NE(metrics.render(nullptr).find("endpoint=\"other\""), std::string::npos);
}

TEST(ServerMetrics, CountsHttpByRouteAndStatus) {
  ServerMetrics metrics({.model_name = "tale"});
  metrics.observe_http({.route = "/generate", .method = "POST", .status = 200, .duration_s = 0.25});
  metrics.observe_http({.route = "/generate", .method = "POST", .status = 200, .duration_s = 0.25});
  metrics.observe_http({.route = "/generate", .method = "POST", .status = 400, .duration_s = 0.25});
  const std::string page = metrics.render(nullptr);
  EXPECT_TRUE(has_line(page, "warpweave:http_requests_total{endpoint=\"/generate\",method=\"POST\"} 3"));
  EXPECT_TRUE(has_line(
      page, "warpweave:http_responses_total{endpoint=\"/generate\",method=\"POST\",status_code=\"400\"} 1"));
}

TEST(ServerMetrics, ReadsTheEngineAndSpeaksBothPrefixes) {
  testing::FakeEngineOptions options;
  options.info.page_size = 16;
  options.info.max_total_tokens = 1000;
  testing::FakeEngine engine(options);
  ServerMetrics metrics({.model_name = "m\"x", .compat = "sglang"});
  metrics.observe_http({.route = "/health", .method = "GET", .status = 200, .duration_s = 0.25});
  const std::string page = metrics.render(&engine);
  for (const std::string prefix : {"warpweave:", "sglang:"}) {
    EXPECT_TRUE(has_line(page, prefix + "page_size{model_name=\"m\\\"x\"} 16")) << page;
    EXPECT_TRUE(has_line(page, prefix + "max_total_num_tokens{model_name=\"m\\\"x\"} 1000"));
    EXPECT_TRUE(has_line(page, "# TYPE " + prefix + "num_requests_total counter"));
    EXPECT_TRUE(has_line(page, prefix + "http_requests_total{endpoint=\"/health\",method=\"GET\"} 1"));
  }
}

// What SGLang's own dashboard draws, of an engine without speculation.
TEST(ServerMetrics, SglangsDashboardFindsItsNames) {
  testing::FakeEngine engine;
  ServerMetrics metrics({.model_name = "tale", .compat = "sglang"});
  metrics.observe_first_token(0.02);
  metrics.observe_inter_token(0.03, 3);
  metrics.observe_request_end(kEnd);
  const std::string page = metrics.render(&engine);
  for (const char* name :
       {"num_running_reqs", "num_used_tokens", "token_usage", "gen_throughput", "num_queue_reqs",
        "num_grammar_queue_reqs", "cache_hit_rate", "spec_accept_length", "prompt_tokens_total",
        "generation_tokens_total", "cached_tokens_total", "num_requests_total", "time_to_first_token_seconds_bucket",
        "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count", "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_sum", "e2e_request_latency_seconds_count"}) {
    EXPECT_NE(page.find("\nsglang:" + std::string(name) + "{model_name=\"tale\""), std::string::npos) << name;
  }
}

TEST(ServerMetrics, CountsRequestsWhoseGrammarIsCompiled) {
  testing::FakeEngine engine;
  ServerMetrics metrics({.model_name = "tale"});
  metrics.grammar_begins();
  EXPECT_TRUE(has_line(metrics.render(&engine), "warpweave:num_grammar_queue_reqs{model_name=\"tale\"} 1"));
  metrics.grammar_ends();
  EXPECT_TRUE(has_line(metrics.render(&engine), "warpweave:num_grammar_queue_reqs{model_name=\"tale\"} 0"));
}

// Cardinality is that of the layers, not of the experts.
TEST(ServerMetrics, ExpertsAreOneSeriesALayer) {
  testing::FakeEngineOptions options;
  options.expert_load = {{.layer = 3, .experts = 128, .choices = 640, .busiest = 20, .never_chosen = 7},
                         {.layer = 4, .experts = 128, .choices = 640, .busiest = 5, .never_chosen = 0}};
  testing::FakeEngine engine(options);
  ServerMetrics metrics({.model_name = "moe", .compat = "sglang"});
  const std::string page = metrics.render(&engine);
  EXPECT_TRUE(has_line(page, "warpweave:expert_choices_total{model_name=\"moe\",layer=\"3\"} 640")) << page;
  EXPECT_TRUE(has_line(page, "warpweave:expert_load_imbalance{model_name=\"moe\",layer=\"3\"} 4"));
  EXPECT_TRUE(has_line(page, "warpweave:expert_load_imbalance{model_name=\"moe\",layer=\"4\"} 1"));
  EXPECT_TRUE(has_line(page, "warpweave:experts_never_chosen{model_name=\"moe\",layer=\"3\"} 7"));
  EXPECT_TRUE(has_line(page, "sglang:expert_load_imbalance{model_name=\"moe\",layer=\"3\"} 4"));
  testing::FakeEngine dense;
  EXPECT_EQ(metrics.render(&dense).find("expert"), std::string::npos);
}

// Models with recurrent layers: what each kind of layer found in the prefix cache.
TEST(ServerMetrics, HitsOfAHybridByKindOfLayer) {
  testing::FakeEngineOptions options;
  options.stats.prompt_tokens_total = 200;
  options.stats.cached_tokens_total = 50;
  options.stats.cached_kv_tokens_total = 80;
  testing::FakeEngine engine(options), dense;
  ServerMetrics metrics({.model_name = "tale", .compat = "none"});
  const std::string page = metrics.render(&engine);
  for (const char* line :
       {"cached_attention_tokens_total{model_name=\"tale\"} 80",
        "cached_recurrent_tokens_total{model_name=\"tale\"} 50", "cache_hit_rate_attention{model_name=\"tale\"} 0.4",
        "cache_hit_rate_recurrent{model_name=\"tale\"} 0.25"}) {
    EXPECT_TRUE(has_line(page, "warpweave:" + std::string(line))) << line << page;
  }
  EXPECT_EQ(metrics.render(&dense).find("recurrent"), std::string::npos);
}

// Every name that the queries of vLLM's dashboards hold (examples/observability of its repository: grafana.json,
// performance_statistics.json, query_statistics.json).
TEST(ServerMetrics, VllmsDashboardsFindTheirNames) {
  testing::FakeEngine engine;
  ServerMetrics metrics({.model_name = "tale", .compat = "vllm"});
  metrics.observe_first_token(0.02);
  metrics.observe_inter_token(0.03, 3);
  metrics.observe_request_end(kEnd);
  const std::string page = metrics.render(&engine);
  for (const char* name : {"e2e_request_latency_seconds_bucket",
                           "e2e_request_latency_seconds_sum",
                           "e2e_request_latency_seconds_count",
                           "prompt_tokens_total",
                           "generation_tokens_total",
                           "inter_token_latency_seconds_bucket",
                           "inter_token_latency_seconds_sum",
                           "inter_token_latency_seconds_count",
                           "num_requests_running",
                           "num_requests_waiting",
                           "time_to_first_token_seconds_bucket",
                           "time_to_first_token_seconds_sum",
                           "time_to_first_token_seconds_count",
                           "kv_cache_usage_perc",
                           "request_prompt_tokens_bucket",
                           "request_generation_tokens_bucket",
                           "request_queue_time_seconds_sum",
                           "request_prefill_time_seconds_sum",
                           "request_decode_time_seconds_sum",
                           "request_max_num_generation_tokens_sum",
                           "time_per_output_token_seconds_bucket",
                           "time_per_output_token_seconds_sum",
                           "time_per_output_token_seconds_count"}) {
    EXPECT_NE(page.find("\nvllm:" + std::string(name) + "{model_name=\"tale\""), std::string::npos) << name;
  }
  for (const char* reason : {"stop", "length", "abort"}) {
    const std::string series =
        std::string("vllm:request_success_total{finished_reason=\"") + reason + "\",model_name=\"tale\",engine=\"0\"}";
    EXPECT_TRUE(has_line(page, series + (reason == std::string("length") ? " 1" : " 0"))) << series << page;
  }
  EXPECT_TRUE(has_line(page, "vllm:request_prefill_time_seconds_sum{model_name=\"tale\",engine=\"0\"} 0.1"));
  EXPECT_TRUE(has_line(page, "vllm:request_decode_time_seconds_sum{model_name=\"tale\",engine=\"0\"} 0.399"));
  EXPECT_TRUE(has_line(page, "vllm:request_prompt_tokens_sum{model_name=\"tale\",engine=\"0\"} 7"));
}

// Those that the test of the whole program looks for, too.
TEST(ServerMetrics, VllmsDashboardsFindAllListedNames) {
  testing::FakeEngineOptions options;
  options.stats.speculation = SpeculationCounts{};
  testing::FakeEngine engine(options);
  ServerMetrics metrics({.model_name = "tale", .compat = "vllm"});
  metrics.observe_request_end(kEnd);
  metrics.observe_http({.route = "/v1/completions", .method = "POST", .status = 200, .duration_s = 0.25});
  metrics.observe_http({.route = "/metrics", .method = "GET", .status = 200, .duration_s = 0.25});
  const std::string page = metrics.render(&engine);
  std::ifstream file("tests/server/dashboard_metrics.json");
  const nlohmann::json names = nlohmann::json::parse(file);
  size_t looked_for = 0;
  for (const auto& [dashboard, listed] : names["vllm"].items()) {
    for (const std::string name : listed) {
      ++looked_for;
      const bool own = name.starts_with("vllm:");
      EXPECT_TRUE(page.find("\n" + name + "{") != std::string::npos ||
                  (!own && page.find("\n" + name + " ") != std::string::npos))
          << dashboard << " " << name;
      if (name.ends_with("_total")) {
        EXPECT_NE(page.find("# TYPE " + name + " counter"), std::string::npos) << name;
      }
    }
  }
  EXPECT_GT(looked_for, 100u);
  for (const auto& [name, why] : names["not_given"].items())
    EXPECT_EQ(page.find("\n" + name), std::string::npos) << name;
  EXPECT_TRUE(has_line(page, "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"} 1"));
  EXPECT_EQ(page.find("handler=\"/metrics\""), std::string::npos);
  EXPECT_NE(page.find("vllm:time_to_first_token_seconds_bucket{model_name=\"tale\",engine=\"0\",le=\"2.5\"}"),
            std::string::npos);
}

// Sums, counts and buckets of the same steps, proposals and requests.
TEST(ServerMetrics, VllmsDashboardsFindStepsBySizeAndTimesByHandler) {
  testing::FakeEngineOptions options;
  options.stats.decode_steps = {.steps = 5, .requests = 12, .tokens = 12};
  options.stats.prefill_steps = {.steps = 1, .requests = 1, .tokens = 20000};
  options.stats.step_sizes.counts = {3, 2};
  options.stats.step_sizes.counts.back() = 1;
  options.stats.speculation = SpeculationCounts{.verify_steps = 4, .draft_tokens = 8, .accepted_tokens = 5};
  options.stats.accepted_by_position = {3, 2};
  testing::FakeEngine engine(options);
  ServerMetrics metrics({.model_name = "t", .compat = "vllm"});
  for (const double seconds : {0.25, 0.5, 40.0}) {
    metrics.observe_http({.route = "/generate", .method = "POST", .status = 200, .duration_s = seconds});
  }
  metrics.observe_http({.route = "/health", .method = "GET", .status = 200, .duration_s = 1});
  metrics.observe_http({.route = "unmatched", .method = "BREW", .status = 405, .duration_s = 1});
  const std::string page = metrics.render(&engine);
  for (const std::string name : {"warpweave:iteration_tokens_", "vllm:iteration_tokens_total_"}) {
    const std::string labels = std::string("{model_name=\"t\"") + (name[0] == 'v' ? ",engine=\"0\"" : "");
    EXPECT_TRUE(has_line(page, name + "count" + labels + "} 6")) << page;
    EXPECT_TRUE(has_line(page, name + "sum" + labels + "} 20012"));
    EXPECT_TRUE(has_line(page, name + "bucket" + labels + ",le=\"1\"} 3"));
    EXPECT_TRUE(has_line(page, name + "bucket" + labels + ",le=\"8\"} 5"));
    EXPECT_TRUE(has_line(page, name + "bucket" + labels + ",le=\"16384\"} 5"));
    EXPECT_TRUE(has_line(page, name + "bucket" + labels + ",le=\"+Inf\"} 6"));
  }
  const std::string kept = "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"t\",engine=\"0\",position=";
  EXPECT_TRUE(has_line(page, kept + "\"0\"} 3") && has_line(page, kept + "\"1\"} 2"));
  EXPECT_EQ(page.find(kept + "\"2\"}"), std::string::npos);
  const std::string times = "http_request_duration_seconds_", post = "{handler=\"/generate\",method=\"POST\"";
  EXPECT_TRUE(has_line(page, times + "count" + post + "} 3"));
  EXPECT_TRUE(has_line(page, times + "sum" + post + "} 40.75"));
  EXPECT_TRUE(has_line(page, times + "bucket" + post + ",le=\"0.5\"} 2"));
  EXPECT_TRUE(has_line(page, times + "bucket" + post + ",le=\"60\"} 3"));
  EXPECT_TRUE(has_line(page, times + "count{handler=\"unmatched\",method=\"other\"} 1"));
  EXPECT_EQ(page.find("handler=\"/health\""), std::string::npos);
  EXPECT_TRUE(has_line(page, "warpweave:http_request_duration_seconds_count{endpoint=\"/health\",method=\"GET\"} 1"));
}

TEST(ServerMetrics, SpeaksVllmsNames) {
  testing::FakeEngineOptions options;
  testing::FakeEngine engine(options);
  ServerMetrics metrics({.model_name = "tale", .compat = "vllm"});
  metrics.observe_first_token(0.02);
  const std::string page = metrics.render(&engine);
  EXPECT_TRUE(has_line(page, "vllm:num_requests_running{model_name=\"tale\",engine=\"0\"} 0")) << page;
  EXPECT_TRUE(has_line(page, "vllm:time_to_first_token_seconds_count{model_name=\"tale\",engine=\"0\"} 1"));
  EXPECT_EQ(page.find("sglang:"), std::string::npos);
}

}  // namespace
}  // namespace warpweave::server
