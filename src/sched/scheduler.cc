#include "sched/scheduler.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

#include "base/prefetch.h"
#include "sched/request.h"

namespace warpweave {

bool Scheduler::QueueOrder::operator()(const Request* a, const Request* b) const {
  if (a->rank != b->rank) return a->rank < b->rank;
  if (a->retracted != b->retracted) return a->retracted;
  return a->sequence < b->sequence;
}

Status Scheduler::validate(const SchedulerConfig& config) {
  const auto at_least = [](int value, int minimum, const char* flag) {
    if (value >= minimum) return Status();
    return Status::invalid_argument(std::string(flag) + " is " + std::to_string(value) +
                                        "; it must be at least " + std::to_string(minimum),
                                    flag);
  };
  WW_RETURN_IF_ERROR(at_least(config.page_size, 1, "--page-size"));
  WW_RETURN_IF_ERROR(at_least(config.num_pages, 1, "--max-total-tokens"));
  WW_RETURN_IF_ERROR(at_least(config.context_len, 1, "--context-length"));
  WW_RETURN_IF_ERROR(at_least(config.max_running_requests, 1, "--max-running-requests"));
  WW_RETURN_IF_ERROR(at_least(config.max_prefill_tokens, 1, "--max-prefill-tokens"));
  WW_RETURN_IF_ERROR(at_least(config.mixed_chunk_rows, 0, "--mixed-chunk-rows"));
  WW_RETURN_IF_ERROR(at_least(config.max_adapters, 1, "--max-loras-per-batch"));
  WW_RETURN_IF_ERROR(validate_states(config));
  if (config.max_proposals < 0) return Status::internal("max_proposals must be at least 0");
  if (config.cache_groups.empty() || config.cache_groups.size() > kMaxCacheGroups) {
    return Status::internal("the KV cache must have 1 to " + std::to_string(kMaxCacheGroups) + " groups");
  }
  const auto windowed = std::count_if(config.cache_groups.begin(), config.cache_groups.end(),
                                      [](const CacheGroupRule& group) { return group.windowed(); });
  if (config.window_pages != 0 && (config.window_pages < windowed || config.window_pages >= config.num_pages ||
                                   windowed == 0 || windowed == std::ssize(config.cache_groups))) {
    return Status::internal("window_pages splits pages between groups with a window and others");
  }
  if (config.max_queued_requests != -1) {
    WW_RETURN_IF_ERROR(at_least(config.max_queued_requests, 1, "--max-queued-requests"));
  }
  if (config.chunked_prefill_size != -1) {
    WW_RETURN_IF_ERROR(at_least(config.chunked_prefill_size, 1, "--chunked-prefill-size"));
  }
  if (!(config.schedule_conservativeness > 0)) {
    return Status::invalid_argument("--schedule-conservativeness must be above 0; 1.0 is usual",
                                    "--schedule-conservativeness");
  }
  if (config.overlap_depth != 0 && config.overlap_depth != 1) {
    return Status::internal("overlap_depth must be 0 or 1");
  }
  return {};
}

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config),
      num_groups_(static_cast<int>(config.cache_groups.size())),
      pool_(config.num_pages, config.page_size, config.window_pages),
      states_(config.state_slots > 0
                  ? std::optional<StatePool>(std::in_place, config.state_slots, config.state_request_slots)
                  : std::nullopt),
      tree_(pool_, config.prefix_match, config.cache_groups, states_ ? &*states_ : nullptr),
      new_token_ratio_(config.schedule_conservativeness) {
  for (const CacheGroupRule& group : config.cache_groups) full_groups_ += !group.windowed();
  pool_.log_events(config.log_page_events);
}

Scheduler::~Scheduler() = default;

Status Scheduler::check_spec(const ScheduledRequestSpec& spec) const {
  const int64_t input_len = static_cast<int64_t>(spec.input_ids.size());
  const int64_t total = input_len + spec.max_new_tokens;
  if (spec.id == kNoRequest || requests_.contains(spec.id)) {
    return Status::internal("request id " + std::to_string(spec.id) + " is not unique");
  }
  if (input_len == 0) return Status::invalid_argument("input_ids is empty", "input_ids");
  if (spec.max_new_tokens < 0) {
    return Status::invalid_argument(
        "max_new_tokens is " + std::to_string(spec.max_new_tokens) + "; it must be at least 0",
        "max_new_tokens");
  }
  const std::string asked = std::to_string(input_len) + " prompt tokens + max_new_tokens " +
                            std::to_string(spec.max_new_tokens) + " = " + std::to_string(total) +
                            " tokens";
  if (total > config_.context_len) {
    return Status::invalid_argument(asked + " are more than the context length of " +
                                        std::to_string(config_.context_len) +
                                        "; shorten the prompt or lower max_new_tokens",
                                    "max_new_tokens");
  }
  // The last sampled token is never fed back, so it takes no slot.
  const int64_t slots = std::max(input_len, total - 1);
  const PageCount peak = peak_request_pages(config_, slots, /*prefilling=*/true);
  if (!pool_.covers(pool_.size(), peak)) {
    const bool split = pool_.split(), full_is_short = peak.full > pool_.size().full;
    const int64_t pages = !split          ? pool_.num_pages() / num_groups_
                          : full_is_short ? pool_.size().full / full_groups_
                                          : pool_.size().windows / window_groups();
    const bool windows_are_short = split && !full_is_short;
    return Status::invalid_argument(
        asked + " do not fit in the KV pool of " + std::to_string(pages * pool_.page_size()) + " tokens" +
            (windows_are_short ? " of layers with a sliding window" : "") +
            "; lower max_new_tokens or start with a larger " +
            (windows_are_short ? "--swa-full-tokens-ratio" : "--max-total-tokens"),
        "max_new_tokens");
  }
  if (config_.max_queued_requests >= 0 &&
      static_cast<int>(waiting_.size()) >= config_.max_queued_requests) {
    return Status::resource_exhausted("the queue is full (--max-queued-requests " +
                                      std::to_string(config_.max_queued_requests) +
                                      "); try again later");
  }
  return {};
}

Status Scheduler::add(ScheduledRequestSpec spec) {
  WW_RETURN_IF_ERROR(check_spec(spec));
  auto request = std::make_unique<Request>();
  request->tokens = std::move(spec.input_ids);
  request->prompt_len = request->num_tokens();
  request->sequence = next_sequence_++;
  if (config_.schedule_policy == SchedulePolicy::priority) request->rank = -int64_t{spec.priority};
  if (const auto leader = requests_.find(spec.wait_for_prefix_of); leader != requests_.end()) {
    // Never in front of the one it waits for: a window full of such could not move.
    request->rank = std::max(request->rank, leader->second->rank);
  }
  if (spec.logprob_start_len >= 0) {
    // The logprob of a token comes from the logits one position before it.
    request->logits_from = std::max(spec.logprob_start_len - 1, 0);
  }
  if (spec.states_from >= 0) request->logits_from = std::min(request->logits_from, spec.states_from);
  request->spec = std::move(spec);
  waiting_.insert(request.get());
  const RequestId id = request->spec.id;
  requests_.emplace(id, std::move(request));
  return {};
}

bool Scheduler::finish(RequestId id) {
  const auto it = requests_.find(id);
  if (it == requests_.end() || it->second->state == Request::State::ended) return false;
  end(*it->second);
  return true;
}

const Step& Scheduler::schedule() {
  assert(uncommitted_steps() <= config_.overlap_depth);
  Step& step = scratch_;
  step.number = totals_.steps_total + 1;
  step.copies.clear();
  step.state_loads.clear();
  step.state_checkpoints.clear();
  step.state_saves.clear();
  step.rows.clear();
  step.num_tokens = 0;
  step.num_samples = 0;
  waits_for_tokens_ = config_.max_proposals > 0 && (proposing_ || proposals_in_flight());
  if (running_.empty()) new_token_ratio_.on_idle();
  add_prefill_rows(step);
  if (step.empty()) {
    add_decode_rows(step);
    if (!step.empty()) new_token_ratio_.on_decode_step();
  } else if (config_.enable_mixed_chunk) {
    add_decode_rows(step);
  }
  if (step.empty() && in_flight_.empty() && chunked_ != nullptr) {
    retract(*chunked_);  // it and the others hold what each of them waits for
    add_decode_rows(step);
  }
  if (step.empty()) return step;
  ++totals_.steps_total;
  step.page_events = pool_.take_events();
  in_flight_.push_back(std::move(scratch_));
  return in_flight_.back();
}

const std::vector<StepEvent>& Scheduler::commit(const Step& step,
                                                std::span<const int32_t> sampled, std::span<const int> begin) {
  assert(!in_flight_.empty() && in_flight_.front().number == step.number);
  assert(begin.empty() ? static_cast<int>(sampled.size()) == step.num_samples
                       : static_cast<int>(begin.size()) == step.num_samples + 1);
  events_.clear();
  for (const StepRow& row : step.rows) {
    const auto* const request = static_cast<const Request*>(row.request);
    prefetch_bytes(request, static_cast<size_t>(reinterpret_cast<const char*>(&request->spec + 1) -
                                                reinterpret_cast<const char*>(request)));
  }
  for (const StepRow& row : step.rows) {
    const auto& request = *static_cast<const Request*>(row.request);
    prefetch_end(request.tokens);
    prefetch_end(request.pages);
  }
  for (int i = 0; i < static_cast<int>(step.rows.size()); ++i) {
    const int slot = step.rows[i].sample_slot;
    const auto tokens = slot < 0         ? std::span<const int32_t>()
                        : begin.empty() ? sampled.subspan(slot, 1)
                                        : sampled.subspan(begin[slot], begin[slot + 1] - begin[slot]);
    apply_row(step.rows[i], i, tokens);
  }
  release_deferred(step.number);
  scratch_ = std::move(in_flight_.front());
  in_flight_.pop_front();
  return events_;
}

std::vector<RequestId> Scheduler::fail_uncommitted() {
  std::vector<RequestId> ids;
  for (const Step& step : in_flight_) {
    for (const StepRow& row : step.rows) {
      Request& request = *requests_.at(row.id);
      --request.uncommitted_steps;
      request.uncommitted_samples -= row.sample_slot >= 0;
    }
  }
  for (const Step& step : in_flight_) {
    for (const StepRow& row : step.rows) {
      const auto it = requests_.find(row.id);
      if (it == requests_.end()) continue;  // had a row in the step before, too
      if (it->second->state == Request::State::ended) {
        release(*it->second);
      } else {
        ids.push_back(row.id);
        end(*it->second);
      }
    }
  }
  in_flight_.clear();
  release_deferred(totals_.steps_total);
  return ids;
}

std::vector<void*> Scheduler::take_released() { return std::exchange(released_, {}); }

bool Scheduler::flush_cache() {
  if (!running_.empty() || !in_flight_.empty()) return false;
  tree_.clear();
  return true;
}

int64_t Scheduler::max_tokens_per_step(const SchedulerConfig& config) {
  const int64_t prefill = config.chunked_prefill_size > 0 ? config.chunked_prefill_size
                                                          : std::max(config.max_prefill_tokens, config.context_len);
  const int64_t verify = config.max_running_requests + max_step_proposals(config);  // never beside a prefill
  return std::max(prefill + (config.enable_mixed_chunk ? config.max_running_requests : 0), verify);
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = totals_;
  stats.running_reqs = static_cast<int>(running_.size());
  stats.queued_reqs = static_cast<int>(waiting_.size());
  if (pool_.split()) {  // those of layers that keep all tokens
    const int64_t used = pool_.size().full - pool_.num_free(PagePart::full) - tree_.evictable_pages();
    stats.used_tokens = used * pool_.page_size() / full_groups_;
  } else {
    const int64_t used = pool_.num_used() - tree_.evictable_pages() - pool_.num_spare();
    stats.used_tokens = used * pool_.page_size() / num_groups_;
  }
  stats.evictable_tokens = tree_.evictable_tokens();
  stats.evicted_tokens_total = tree_.evicted_tokens_total();
  stats.new_token_ratio = new_token_ratio_.value();
  return stats;
}

// Pages that make_free() can surely give: free, spare, or evictable and not the source of a pending copy.
PageCount Scheduler::available_pages() const {
  return {pool_.num_free(PagePart::full) + tree_.evictable_pages() - copy_source_pages_,
          pool_.num_spare() + (pool_.split() ? pool_.num_free(PagePart::windows) : 0)};
}

// Makes so many pages free, as far as that many are available.
void Scheduler::make_free(PageCount pages) {
  if (!pool_.split()) pages = {pages.total(), 0};
  for (const PagePart part : {PagePart::windows, PagePart::full}) {
    int missing = static_cast<int>(pages[part]) - pool_.num_free(part);
    if (missing > 0 && (part == PagePart::windows || !pool_.split())) missing -= reclaim_lingering(missing);
    if (missing > 0) tree_.evict(missing, part);
  }
}

// One page more in every group; false, and nothing done, when they are not there.
bool Scheduler::append_pages(Request& request) {
  const PageCount wanted = in_all_groups(1);
  make_free(wanted);
  const PageCount free = {pool_.num_free(PagePart::full), pool_.split() ? pool_.num_free(PagePart::windows) : 0};
  if (!pool_.covers(free, wanted)) return false;
  for (int g = 0; g < num_groups_; ++g) request.pages.push_back(pool_.alloc(part_of(g)));
  ++request.window_end;
  return true;
}

void Scheduler::fill_row(Request& request, int num_tokens, bool prefill, Step& step) {
  StepRow& row = step.rows.emplace_back();
  row.id = request.spec.id;
  row.user = request.spec.user;
  row.request = &request;
  row.start = request.scheduled;
  row.num_tokens = num_tokens;
  row.prefill = prefill;
  row.adapter = request.spec.adapter;
  row.first_scheduled = prefill && request.last_step == 0;
  const int end = row.start + num_tokens;
  if (row.start < request.num_tokens()) {
    row.input_ids = request.tokens.data() + row.start;
  } else {
    assert(num_tokens == 1 && request.last_step + 1 == step.number);
    row.future_slot = request.sample_slot;
  }
  row.pages = request.pages.data();
  row.num_pages = pool_.pages_for(end);
  row.num_blank = request.kept_from.data();
  row.state_slot = request.state_slot;
  row.pages_version = request.pages_version;
  const bool samples =
      request.spec.max_new_tokens > 0 && (!prefill || end == request.prefill_len);
  row.num_logits = samples;
  if (request.logits_from < request.prompt_len && end > request.logits_from) {
    row.num_logits = end - std::max(row.start, request.logits_from);
  }
  if (samples) {
    row.sample_slot = step.num_samples++;
    ++request.uncommitted_samples;
  }
  request.sample_slot = row.sample_slot;
  request.scheduled = end;
  request.last_step = step.number;
  ++request.uncommitted_steps;
  step.num_tokens += num_tokens;
  if (!states_ || config_.disable_radix_cache) return;
  save_state(request, row, step);
  if (prefill && config_.state_checkpoints_within_rows) save_states_within(request, row, step);
}

void Scheduler::apply_row(const StepRow& row, int row_index, std::span<const int32_t> tokens) {
  Request& request = *static_cast<Request*>(row.request);
  --request.uncommitted_steps;
  request.uncommitted_samples -= row.sample_slot >= 0;
  request.written = row.start + row.num_tokens;
  if (row.max_proposals > 0) {  // the K/V of its own token and of each accepted one
    assert(static_cast<int>(tokens.size()) <= row.max_proposals + 1);
    request.scheduled = request.written = row.start + static_cast<int>(tokens.size());
  }
  if (request.state == Request::State::ended) {  // a wasted row
    if (request.uncommitted_steps == 0) release(request);
    return;
  }
  if (request.logits_from < request.prompt_len) {
    request.logits_from = std::max(request.logits_from, request.written);
  }
  const bool prefill_done = row.prefill && request.written == request.prefill_len;
  StepEvent event{.id = row.id, .user = row.user, .row = row_index};
  event.cached_tokens = request.cached_tokens;
  event.cached_kv_tokens = request.cached_kv_tokens;
  event.retractions = request.retractions;
  if (row.sample_slot >= 0) {
    accept_tokens(request, tokens, event);
  } else if (prefill_done) {  // no token is wanted
    event.finish = StepEvent::Finish::length;
    events_.push_back(event);
  }
  if (event.finish != StepEvent::Finish::none) {
    end(request);
    return;
  }
  if (window_groups() > 0) leave_windows(request);
  if (prefill_done) cache_prompt(request);
  if (request.retracting && request.uncommitted_steps == 0) retract(request);
}

// Adds an event for each token up to the one that ends the request; `event` is the last.
void Scheduler::accept_tokens(Request& request, std::span<const int32_t> tokens, StepEvent& event) {
  assert(!tokens.empty());
  for (size_t i = 0; i < tokens.size() && event.finish == StepEvent::Finish::none; ++i) {
    event.index = static_cast<int>(i);
    event.token = tokens[i];
    event.has_token = event.token >= 0;
    if (event.has_token) {
      accept_token(request, event);
    } else {
      event.finish = StepEvent::Finish::failed;
      request.kv_suspect = true;
    }
    events_.push_back(event);
  }
}

void Scheduler::accept_token(Request& request, StepEvent& event) {
  request.tokens.push_back(event.token);
  const auto is_in = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), event.token) != ids.end();
  };
  const ScheduledRequestSpec& spec = request.spec;
  if (request.num_output() >= spec.min_new_tokens &&
      ((!spec.ignore_eos && is_in(config_.eos_token_ids)) || is_in(spec.stop_token_ids))) {
    event.finish = StepEvent::Finish::stop;
  } else if (request.num_output() >= spec.max_new_tokens) {
    event.finish = StepEvent::Finish::length;
  }
}

// The prefill is committed: others may share it from now on.
void Scheduler::cache_prompt(Request& request) {
  request.kv_shared = true;
  request.prompt_cached = true;
  if (config_.disable_radix_cache) return;
  const int tokens = shared_tokens(request, request.written), pages = pool_.pages_for(tokens);
  request.node = tree_.insert(request.node, std::span(request.tokens).first(tokens),
                              std::span(request.pages).first(pages * num_groups_), displaced_);
  drop_lingering(request, pool_.num_pages());  // the tree keeps them now
  if (states_) hang_up_states(request, tokens);
  if (displaced_.empty()) return;
  // An uncommitted step may read the displaced pages.
  for (const int32_t page : displaced_) {
    deferred_.push_back({in_flight_.back().number, page, /*copy_source=*/false});
  }
  displaced_.clear();
  ++request.pages_version;
}

void Scheduler::leave_running(Request& request) {
  running_.erase(std::find(running_.begin(), running_.end(), &request));
  if (chunked_ == &request) chunked_ = nullptr;
}

void Scheduler::end(Request& request) {
  if (request.state == Request::State::waiting) {
    waiting_.erase(&request);
  } else {
    leave_running(request);
  }
  request.state = Request::State::ended;
  if (request.uncommitted_steps == 0) {
    release(request);
  } else {
    draining_.push_back(&request);
  }
}

// Gives the pages up; what is computed and known stays in the tree.
void Scheduler::release_pages(Request& request) {
  if (request.node != nullptr && request.kv_suspect) {
    tree_.unlock(request.node);
    request.node = nullptr;
  } else if (request.node != nullptr) {
    // A wasted row may have written the K/V of a token that was never committed.
    const int tokens = shared_tokens(request, std::min(request.written, request.num_tokens()));
    const auto pages = std::span(request.pages).first(pool_.pages_for(tokens) * num_groups_);
    request.node =
        tree_.insert(request.node, std::span(request.tokens).first(tokens), pages, displaced_);
    for (const int32_t page : displaced_) pool_.unref(page);
    displaced_.clear();
    if (states_) hang_up_states(request, tokens);
    tree_.unlock(request.node);
    request.node = nullptr;
  }
  // From the last on: the pool hands them out the other way round, so that the next request's follow each other, too.
  for (auto page = request.pages.rbegin(); page != request.pages.rend(); ++page) {
    if (*page != kNoPage) pool_.unref(*page);
  }
  if (states_) release_state(request);
  request.pages.clear();
  request.kept_from = request.window_from = {};
  request.window_end = 0;
  ++request.pages_version;
  request.written = request.scheduled = 0;
  request.kv_shared = false;
}

void Scheduler::release(Request& request) {
  assert(request.uncommitted_steps == 0);
  std::erase(draining_, &request);
  release_pages(request);
  released_.push_back(request.spec.user);
  requests_.erase(requests_.find(request.spec.id));
}

void Scheduler::release_deferred(uint64_t committed_step) {
  std::erase_if(deferred_, [&](const DeferredPage& deferred) {
    if (deferred.step > committed_step) return false;
    copy_source_pages_ -= deferred.copy_source;
    pool_.unref(deferred.page);
    return true;
  });
  std::erase_if(deferred_states_, [&](const DeferredState& deferred) {
    if (deferred.step > committed_step) return false;
    states_->unref(deferred.slot);
    return true;
  });
}

}  // namespace warpweave
