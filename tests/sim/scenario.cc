#include "scenario.h"

#include <algorithm>

#include "fake_model.h"

namespace warpweave::sim {
namespace {

std::vector<int32_t> random_tokens(Rng& rng, int count, int vocab_size) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = rng.between(0, vocab_size - 1);
  return tokens;
}

SchedulerConfig make_config(Rng& rng, bool roomy) {
  static constexpr int kPageSizes[] = {1, 1, 2, 3, 4, 5, 7, 8, 16, 32};
  SchedulerConfig config;
  config.page_size = kPageSizes[rng.between(0, 9)];
  const int pool_tokens = roomy ? rng.between(150, 500) : rng.between(6, 120);
  config.num_pages = std::max(1, pool_tokens / config.page_size);
  config.context_len = rng.between(pool_tokens / 2 + 2, pool_tokens * 2);
  config.max_running_requests = rng.between(1, 10);
  config.max_queued_requests = rng.chance(30) ? rng.between(1, 6) : -1;
  config.chunked_prefill_size = rng.chance(60) ? rng.between(1, 24) : -1;
  config.max_prefill_tokens = rng.between(4, 64);
  config.enable_mixed_chunk = rng.chance(40);
  config.schedule_policy = static_cast<SchedulePolicy>(rng.between(0, 2));
  config.schedule_conservativeness = rng.chance(50) ? 0.05 : rng.between(1, 30) / 20.0;
  config.disable_radix_cache = rng.chance(10);
  config.prefix_match = rng.chance(20) ? PrefixMatchMode::page : PrefixMatchMode::token;
  config.overlap_depth = rng.between(0, 1);
  config.mixed_chunk_rows = rng.chance(50) ? rng.between(1, 16) : 0;
  config.max_proposals = rng.chance(40) ? rng.between(1, 6) : 0;
  if (config.max_proposals == 0 && rng.chance(40)) {
    config.state_request_slots = config.max_running_requests + rng.between(0, 3);
    config.state_slots = config.state_request_slots + rng.between(0, 12);
    config.state_interval = rng.between(1, 30);
    config.state_checkpoints_within_rows = rng.chance(70);
  }
  if (rng.chance(50)) {  // layers with windows beside layers without, or alone
    config.cache_groups.assign(rng.between(1, 3), CacheGroupRule{});
    const int window = rng.between(0, 40);
    for (CacheGroupRule& group : config.cache_groups) {
      if (rng.chance(60)) group.window_left = rng.chance(70) ? window : rng.between(0, 40);
    }
    const int pages = config.num_pages, groups = static_cast<int>(config.cache_groups.size());
    config.num_pages *= groups;
    const auto windowed = std::count_if(config.cache_groups.begin(), config.cache_groups.end(),
                                        [](const CacheGroupRule& group) { return group.windowed(); });
    if (windowed > 0 && windowed < groups && rng.chance(40)) {
      config.window_pages = static_cast<int>(windowed) * rng.between(rng.chance(50) ? 1 : (pages + 1) / 2, pages);
      config.num_pages = (groups - static_cast<int>(windowed)) * pages + config.window_pages;
    }
  }
  const bool windows = std::any_of(config.cache_groups.begin(), config.cache_groups.end(),
                                   [](const CacheGroupRule& group) { return group.windowed(); });
  if (config.state_slots > 0 && !windows && rng.chance(40)) {
    config.state_cut_tokens = rng.between(2, 9);
    config.state_interval = config.state_cut_tokens * rng.between(1, 4);
    if (config.chunked_prefill_size > 0) config.chunked_prefill_size += config.state_cut_tokens;
    config.enable_mixed_chunk = false;
  }
  return config;
}

// The one-request run.
void run_alone(Client& client, const Scenario& scenario) {
  const ScheduledRequestSpec& spec = client.spec;
  client.sequence = spec.input_ids;
  uint64_t hash = client.salt;
  for (const int32_t token : spec.input_ids) hash = extend_hash(hash, token);
  client.output_len = spec.max_new_tokens;
  const auto is_in = [](const std::vector<int32_t>& ids, int32_t token) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  for (int n = 1; n <= spec.max_new_tokens; ++n) {
    const int32_t token = next_token(hash, scenario.vocab_size);
    hash = extend_hash(hash, token);
    client.sequence.push_back(token);
    const bool stop = (!spec.ignore_eos && is_in(scenario.config.eos_token_ids, token)) ||
                      is_in(spec.stop_token_ids, token);
    if (stop && n >= spec.min_new_tokens && !client.stops) {
      client.stops = true;
      client.output_len = n;
    }
  }
}

// Most requests are possible, many of them only just.
void fit_to_pool(ScheduledRequestSpec& spec, const SchedulerConfig& config) {
  const int groups = static_cast<int>(config.cache_groups.size());
  const int limit = std::min(config.context_len, config.num_pages / groups * config.page_size);
  const int prompt = std::min(static_cast<int>(spec.input_ids.size()), std::max(1, limit - 1));
  spec.input_ids.resize(prompt);
  spec.max_new_tokens = std::clamp(limit - prompt, 0, spec.max_new_tokens);
  spec.min_new_tokens = std::min(spec.min_new_tokens, spec.max_new_tokens);
  spec.logprob_start_len = std::min(spec.logprob_start_len, prompt);
}

Client make_client(Rng& rng, const Scenario& scenario, bool roomy,
                   const std::vector<std::vector<int32_t>>& bases) {
  Client client;
  ScheduledRequestSpec& spec = client.spec;
  spec.id = scenario.clients.size() + 1;
  client.salt = rng.chance(75) ? 0 : rng.between(1, 2);
  spec.cache_salt = client.salt == 0 ? "" : std::string(client.salt, 's');
  // A shared beginning: a base text, or an earlier conversation with its answer.
  std::vector<int32_t> tokens = bases[rng.between(0, static_cast<int>(bases.size()) - 1)];
  if (!scenario.clients.empty() && rng.chance(40)) {
    const Client& earlier =
        scenario.clients[rng.between(0, static_cast<int>(scenario.clients.size()) - 1)];
    tokens = earlier.sequence;
    if (rng.chance(80)) {
      client.salt = earlier.salt;
      spec.cache_salt = earlier.spec.cache_salt;
    }
  }
  if (rng.chance(60)) tokens.resize(rng.between(0, static_cast<int>(tokens.size())));
  const auto suffix = random_tokens(rng, rng.between(0, roomy ? 30 : 10), scenario.vocab_size);
  tokens.insert(tokens.end(), suffix.begin(), suffix.end());
  if (tokens.empty() && rng.chance(95)) tokens.push_back(0);
  spec.input_ids = std::move(tokens);
  spec.max_new_tokens = rng.chance(5) ? 0 : rng.between(1, roomy ? 60 : 30);
  spec.min_new_tokens = rng.chance(20) ? rng.between(0, spec.max_new_tokens) : 0;
  spec.ignore_eos = rng.chance(30);
  if (rng.chance(20)) spec.stop_token_ids = {rng.between(0, scenario.vocab_size - 1)};
  spec.priority = rng.between(-2, 2);
  if (rng.chance(15)) {
    spec.logprob_start_len = rng.between(0, static_cast<int>(spec.input_ids.size()));
  }
  if (!scenario.clients.empty() && rng.chance(20)) {
    // Mostly a sibling with the same prompt, as n > 1 makes them.
    const Client& leader =
        scenario.clients[rng.between(0, static_cast<int>(scenario.clients.size()) - 1)];
    spec.wait_for_prefix_of = leader.spec.id;
    if (rng.chance(80)) {
      spec.input_ids = leader.spec.input_ids;
      spec.cache_salt = leader.spec.cache_salt;
      client.salt = leader.salt;
    }
  }
  if (rng.chance(85)) fit_to_pool(client.spec, scenario.config);
  run_alone(client, scenario);
  return client;
}

}  // namespace

Scenario make_scenario(Rng& rng) {
  Scenario scenario;
  const bool roomy = rng.chance(25);
  scenario.config = make_config(rng, roomy);
  scenario.vocab_size = rng.between(2, 12);
  if (rng.chance(70)) scenario.config.eos_token_ids = {rng.between(0, scenario.vocab_size - 1)};
  scenario.arrival_percent = rng.between(5, 100);
  scenario.abort_percent = rng.chance(60) ? rng.between(1, 12) : 0;
  scenario.flush_percent = rng.chance(30) ? 5 : 0;
  scenario.right_proposal_percent = rng.between(0, 100);
  scenario.device_error_per_mille = rng.chance(10) ? 20 : 0;
  std::vector<std::vector<int32_t>> bases;
  for (int i = rng.between(1, 3); i > 0; --i) {
    bases.push_back(
        random_tokens(rng, roomy ? rng.between(20, 90) : rng.between(1, 30), scenario.vocab_size));
  }
  const int count = rng.chance(10) ? rng.between(20, 50) : rng.between(2, 14);
  for (int i = 0; i < count; ++i) {
    scenario.clients.push_back(make_client(rng, scenario, roomy, bases));
  }
  return scenario;
}

}  // namespace warpweave::sim
