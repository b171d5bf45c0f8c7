// The callers' side of EngineCore: everything here may run on any thread.
#include <algorithm>

#include "base/log.h"
#include "engine/engine_core.h"
#include "ops/lora.h"

namespace warpweave {

EngineStats EngineCore::stats() const {
  std::lock_guard lock(mutex_);
  EngineStats now = stats_;
  now.gen_throughput_tokens_per_s = generation_rate_.per_second(seconds_since_start());
  return now;
}

Status EngineCore::check(const GenerateRequest& request) const {
  const EngineInfo& info = options_.info;
  const auto prompt_tokens = static_cast<int64_t>(request.input_ids.size());
  if (prompt_tokens == 0) {
    return Status::invalid_argument("the prompt is empty; give at least one token", "input_ids");
  }
  for (size_t i = 0; i < request.input_ids.size(); ++i) {
    if (request.input_ids[i] < 0 || request.input_ids[i] >= info.vocab_size) {
      return Status::invalid_argument(
          "input_ids[" + std::to_string(i) + "] is " + std::to_string(request.input_ids[i]) +
              "; ids of this model are 0 to " + std::to_string(info.vocab_size - 1), "input_ids");
    }
  }
  WW_RETURN_IF_ERROR(check_embeds(request));
  WW_RETURN_IF_ERROR(check_position_ids(request));
  const bool generates = request.states != StateWish::pooled;
  if (prompt_tokens >= info.context_len + (generates ? 0 : 1)) {
    return Status::invalid_argument(
        "the prompt has " + std::to_string(prompt_tokens) + " tokens, but the model's context holds " +
            std::to_string(info.context_len) + "; shorten the prompt to at most " +
            std::to_string(info.context_len - generates) + " tokens", "input_ids");
  }
  return {};
}

Status EngineCore::check_embeds(const GenerateRequest& request) const {
  if (request.input_embeds == nullptr) return {};
  const EngineInfo& info = options_.info;
  if (request.input_embeds->size() != request.input_ids.size() * static_cast<size_t>(info.hidden_size)) {
    return Status::invalid_argument("input_embeds must have " + std::to_string(info.hidden_size) +
                                        " numbers for each of the prompt's tokens", "input_embeds");
  }
  return {};
}

Status EngineCore::check_position_ids(const GenerateRequest& request) const {
  if (request.position_ids == nullptr) return {};
  const EngineInfo& info = options_.info;
  const auto refused = [](const std::string& why) {
    return Status::invalid_argument("position_ids " + why, "position_ids");
  };
  if (!info.takes_position_ids) {
    return Status::unsupported(
        "position_ids: rows of this server stand where they are counted; a model whose config.json has "
        "mrope_section takes them without speculation, and on CPUs with that of NGRAM",
        "position_ids");
  }
  if (request.input_embeds == nullptr) return refused("go with input_embeds; leave them out");
  const std::vector<int32_t>& places = *request.position_ids;
  if (places.size() != 3 * request.input_ids.size()) {
    return refused("must be three lists (time, height, width) of one number for each of the prompt's tokens");
  }
  for (const int32_t place : places) {
    if (place >= 0 && place < info.context_len) continue;
    return refused("has " + std::to_string(place) + "; positions are 0 to " + std::to_string(info.context_len - 1) +
                   ", the context's last");
  }
  return {};
}

Status EngineCore::check_states(const GenerateRequest& request) const {
  const EngineInfo& info = options_.info;
  if (request.states != StateWish::pooled && !info.generates) {
    return Status::unsupported(
        "this model chooses no tokens: it has " +
            std::string(info.labels.empty() ? "no head; use /v1/embeddings" : "labels; use /classify"),
        "model");
  }
  if (request.states == StateWish::none) return {};
  if (!info.gives_states) {
    return Status::unsupported("states of the model are not copied from this device yet; start with --device cpu",
                               "return_hidden_states");
  }
  if (request.states == StateWish::pooled && !info.pools) {
    return Status::unsupported("this server gives no embeddings; start it with --is-embedding", "model");
  }
  return {};
}

// What tells cached prefixes apart: the adapter that computed them, and the request's own salt. The number's length
// stands first, so that no salt can be taken for another's; without an adapter it is 0.
static std::string content_key(const GenerateRequest& request) {
  if (request.adapter == nullptr) return request.cache_salt.empty() ? std::string() : "0:" + request.cache_salt;
  const std::string id = std::to_string(request.adapter->id);
  return std::to_string(id.size()) + ":" + id + request.cache_salt;
}

Status EngineCore::submit(GenerateRequest request, OutputSink sink) {
  WW_RETURN_IF_ERROR(check_states(request));
  WW_RETURN_IF_ERROR(check(request));
  if (request.states == StateWish::pooled) request.sampling.max_new_tokens = request.sampling.min_new_tokens = 0;
  // What does not fit the context ends there with finish_reason length, as users expect.
  const int prompt_tokens = static_cast<int>(request.input_ids.size());
  const int after_prompt = request.position_ids != nullptr
                               ? std::ranges::max(*request.position_ids) + 1 - prompt_tokens : 0;
  const int room = options_.info.context_len - prompt_tokens - std::max(after_prompt, 0);
  request.sampling.max_new_tokens = std::min(request.sampling.max_new_tokens, room);
  std::vector<int32_t> end_ids = request.sampling.stop_token_ids;
  if (!request.sampling.ignore_eos) {
    end_ids.insert(end_ids.end(), options_.info.eos_token_ids.begin(), options_.info.eos_token_ids.end());
  }
  SamplerState sampler(request, std::move(end_ids), next_seed_.fetch_add(1));
  if (request.sampling.grammar != nullptr) {
    sampler.set_grammar(std::make_unique<GrammarMask>(request.sampling.grammar, &grammar_masks_));
  }
  request.cache_salt = content_key(request);
  auto live = std::make_unique<LiveRequest>(std::move(request), std::move(sink), std::move(sampler),
                                            options_.tokenizer);
  live->after_prompt = after_prompt;
  if (live->request.input_embeds != nullptr) name_embeds(*live);
  const std::string& rid = live->request.rid;
  {
    std::lock_guard lock(mutex_);
    if (draining_) return Status::unavailable("the server is shutting down; send this to another one");
    const int max_queued = options_.scheduler.max_queued_requests;
    if (max_queued >= 0 && static_cast<int64_t>(inbox_.arrived.size()) + stats_.queued_reqs >=
                               static_cast<int64_t>(max_queued) + options_.scheduler.max_running_requests) {
      return Status::resource_exhausted("the queue is full (" + std::to_string(max_queued) +
                                        " requests wait); retry later or raise --max-queued-requests");
    }
    // Room first: a failure after the rid is known would keep it for ever.
    if (inbox_.arrived.size() == inbox_.arrived.capacity()) {
      inbox_.arrived.reserve(2 * inbox_.arrived.size() + 8);
    }
    if (!live_rids_.insert(rid).second) {
      return Status::invalid_argument("rid '" + log_safe(rid, 64) + "' is in use by a running request; "
                                      "leave rid out or make it unique", "rid");
    }
    inbox_.arrived.push_back(std::move(live));
  }
  inbox_changed_.notify_one();
  return {};
}

void EngineCore::abort(const std::string& rid) {
  {
    std::lock_guard lock(mutex_);
    const auto is_it = [&](const auto& request) { return request->request.rid == rid; };
    if (rid.empty()) {
      inbox_.mark_all_aborted();
    } else if (const auto it = std::ranges::find_if(inbox_.arrived, is_it); it != inbox_.arrived.end()) {
      (*it)->aborted = true;
    } else {
      inbox_.aborted.push_back(rid);
    }
  }
  inbox_changed_.notify_one();
}

bool EngineCore::flush_cache() {
  std::future<bool> flushed;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return false;
    flushed = inbox_.flushes.emplace_back().get_future();
  }
  inbox_changed_.notify_one();
  return flushed.get();
}

Status EngineCore::audit() {
  std::future<Status> audited;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return Status::unavailable("the engine has stopped");
    audited = inbox_.audits.emplace_back().get_future();
  }
  inbox_changed_.notify_one();
  return audited.get();
}

void EngineCore::drain(double deadline_s) {
  std::unique_lock lock(mutex_);
  draining_ = true;
  const auto idle = [&] { return live_rids_.empty(); };
  if (idle_changed_.wait_for(lock, std::chrono::duration<double>(deadline_s), idle)) return;
  inbox_.out_of_time = true;
  inbox_changed_.notify_one();
  idle_changed_.wait(lock, idle);
}

}  // namespace warpweave
