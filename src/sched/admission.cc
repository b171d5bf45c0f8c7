// The queue: who is admitted next, and the prefill rows of a step.
#include <algorithm>
#include <cassert>
#include <cmath>

#include "kv/common_prefix.h"
#include "sched/request.h"
#include "sched/scheduler.h"

namespace warpweave {
namespace {

// How many of the newest admissions are compared when looking for a shared prefix.
constexpr int kSharePeersCap = 64;

}  // namespace

void Scheduler::add_prefill_rows(Step& step) {
  PrefillBudget budget{config_.max_prefill_tokens, config_.chunked_prefill_size};
  if (budget.chunk < 0) {
    budget.chunk = kNoLogits;
  } else if (config_.enable_mixed_chunk) {
    const int decode_rows =
        std::count_if(running_.begin(), running_.end(), [&](auto* r) { return can_decode(*r); });
    if (decode_rows > 0) {
      budget.chunk = mixed_chunk(decode_rows);
      budget.cut_at_pages = config_.mixed_chunk_rows == 0;
    }
  }
  if (chunked_ != nullptr) add_prefill_row(*chunked_, budget, step);
  if (waiting_.empty() || !can_admit_more()) return;
  collect_candidates();
  for (Request* request : candidates_) {
    if (budget.chunk <= 0 || static_cast<int>(running_.size()) >= config_.max_running_requests) {
      break;
    }
    if (must_wait(*request)) continue;
    if (!can_take_adapter(*request)) {
      if (request == *waiting_.begin() && request->overtaken >= kLpmMaxOvertakes) break;
      continue;
    }
    if (!admit(*request, budget, step)) break;
  }
}

// Prefill tokens of a step in which `decode_rows` rows decode.
int Scheduler::mixed_chunk(int decode_rows) {
  const int most_rows = std::min(config_.chunked_prefill_size, std::max(kMixedStepTokens, 4 * decode_rows));
  const int most = std::max({most_rows - decode_rows, most_rows / 4, 1});
  if (config_.mixed_chunk_rows == 0) return most;
  const double steps = std::clamp(static_cast<double>(config_.mixed_chunk_rows) / decode_rows, 1.0, kMixedSpreadSteps);
  const auto enough = static_cast<int64_t>(steps * most);
  const auto share = static_cast<int64_t>(std::ceil(static_cast<double>(waiting_prefill_tokens(enough)) / steps));
  const int seen = chunked_ != nullptr ? chunked_->scheduled : waiting_.empty() ? 0 : (*waiting_.begin())->match_len;
  const int64_t piece = std::max<int64_t>(share, seen / kMixedSeenPerToken);
  const int64_t rows = std::max<int64_t>(decode_rows + piece, config_.mixed_chunk_rows);
  const int tile = std::min(kMixedRowTile, config_.mixed_chunk_rows);
  return static_cast<int>(std::clamp<int64_t>((rows + tile - 1) / tile * tile - decode_rows, 1, most));
}

// Prompt tokens that the next steps could compute, of the requests that may still run; counted up to `enough`.
int64_t Scheduler::waiting_prefill_tokens(int64_t enough) {
  int64_t tokens = chunked_ != nullptr ? chunked_->prefill_len - chunked_->scheduled : 0;
  int places = std::min(config_.max_running_requests - static_cast<int>(running_.size()), kScanWindow);
  for (auto it = waiting_.begin(); it != waiting_.end() && places > 0 && tokens < enough; ++it, --places) {
    refresh_match(**it);
    tokens += (*it)->num_tokens() - (*it)->match_len;
  }
  return tokens;
}

// A cheap look at what is left, so that a full pool costs nothing per queued request.
bool Scheduler::can_admit_more() const {
  if (static_cast<int>(running_.size()) >= config_.max_running_requests) return false;
  if (running_.empty()) return true;
  PageCount wanted = pool_.split() ? PageCount{1, 1} : PageCount{1, 0};
  for (const Request* request : running_) wanted += reserved_pages(*request);
  return pool_.covers(available_pages(), wanted);
}

void Scheduler::collect_candidates() {
  candidates_.clear();
  for (auto it = waiting_.begin();
       it != waiting_.end() && static_cast<int>(candidates_.size()) < kScanWindow; ++it) {
    candidates_.push_back(*it);
  }
  if (config_.schedule_policy != SchedulePolicy::lpm) return;
  for (Request* request : candidates_) refresh_match(*request);
  Request* const oldest = candidates_.front();
  const auto first = candidates_.begin() + (oldest->overtaken >= kLpmMaxOvertakes);
  std::stable_sort(first, candidates_.end(), [](const Request* a, const Request* b) {
    if (a->retracted != b->retracted) return a->retracted;
    return a->match_len > b->match_len;
  });
}

// At least one token is computed, and every position whose logits are owed.
int Scheduler::prefix_limit(const Request& request) const {
  return std::min(request.num_tokens() - 1, request.logits_from);
}

void Scheduler::refresh_match(Request& request) {
  if (config_.disable_radix_cache || request.match_version == tree_.version()) return;
  request.match_version = tree_.version();
  request.match_len = match_length(request, prefix_limit(request));
}

// How much of the request's first `limit` tokens is cached.
int Scheduler::match_length(const Request& request, int limit) const {
  if (config_.disable_radix_cache) return 0;
  return tree_.match_length(request.spec.cache_salt, std::span(request.tokens).first(limit));
}

bool Scheduler::must_wait(Request& request) {
  if (config_.disable_radix_cache) return false;
  if (request.spec.wait_for_prefix_of != kNoRequest) {
    const auto leader = requests_.find(request.spec.wait_for_prefix_of);
    if (leader != requests_.end() && !leader->second->prompt_cached) return true;
  }
  const Request* peer = prefilling_same_prefix(request);
  if (peer == nullptr) return false;
  if (peer->spec.id != request.share_waited_for) {
    if (request.share_waits >= kInBatchShareMaxWaits) return false;
    ++request.share_waits;
    request.share_waited_for = peer->spec.id;
  }
  return true;
}

// Whether the running requests' adapters and this one's are not too many.
bool Scheduler::can_take_adapter(const Request& request) {
  if (request.spec.adapter == nullptr) return true;
  adapters_.clear();
  for (const Request* other : running_) {
    if (other->spec.adapter == request.spec.adapter) return true;
    if (other->spec.adapter == nullptr) continue;
    if (std::find(adapters_.begin(), adapters_.end(), other->spec.adapter) != adapters_.end()) continue;
    adapters_.push_back(other->spec.adapter);
    if (static_cast<int>(adapters_.size()) >= config_.max_adapters) return false;
  }
  return true;
}

// A request whose prefill is not cached yet and would save this one kInBatchShareMinTokens tokens.
Scheduler::Request* Scheduler::prefilling_same_prefix(Request& request) {
  if (running_.empty() || running_.back()->kv_shared) return nullptr;
  refresh_match(request);
  const int limit = prefix_limit(request);
  const int wanted = request.match_len + kInBatchShareMinTokens;
  if (limit < wanted) return nullptr;
  const auto tokens = std::span<const int32_t>(request.tokens).first(limit);
  int compared = 0;
  // Those not cached yet are the newest.
  for (auto it = running_.rbegin(); it != running_.rend() && compared < kSharePeersCap; ++it) {
    Request& peer = **it;
    if (peer.kv_shared) break;
    ++compared;
    if (peer.prefill_len < wanted || peer.tokens[wanted - 1] != tokens[wanted - 1]) continue;
    if (peer.spec.cache_salt != request.spec.cache_salt) continue;
    int common = common_prefix(std::span(peer.tokens).first(peer.prefill_len), tokens);
    if (config_.prefix_match == PrefixMatchMode::page) common -= common % pool_.page_size();
    if (common >= wanted) return &peer;
  }
  return nullptr;
}

// Of so many tokens that may follow those that pages are kept for: all where computing them again, after a retraction,
// would give other bits.
int64_t Scheduler::reserved_tokens(int remaining) const {
  if (state_cut_tokens() > 1) return remaining;
  return static_cast<int64_t>(new_token_ratio_.value() * std::min(remaining, kReservedNewTokensCap));
}

// Pages that the request is expected to take on top of those it has.
PageCount Scheduler::reserved_pages(const Request& request) const {
  const int remaining = request.spec.max_new_tokens - request.num_output_scheduled();
  if (remaining <= 0) return {};
  const int64_t expected = request.num_tokens() + request.uncommitted_samples + reserved_tokens(remaining);
  const int held = static_cast<int>(request.pages.size()) / num_groups_;
  return {full_groups_ * std::max(0, pool_.pages_for(expected) - held), window_pages_to_come(request, expected)};
}

// Pages that a waiting request's prefill takes when its first matched_tokens tokens are shared.
PageCount Scheduler::prefill_pages(const Request& request, int matched_tokens) const {
  const int total = pool_.pages_for(request.num_tokens()), shared = matched_tokens / pool_.page_size();
  PageCount pages = {full_groups_ * (total - shared), 0};
  for (const CacheGroupRule& group : config_.cache_groups) {
    if (!group.windowed()) continue;
    const int kept = shared - std::min(shared, group.first_seen(matched_tokens) / pool_.page_size());
    pages.windows += std::max<int64_t>(0, peak_group_pages(config_, group, request.num_tokens(), true) - kept);
  }
  return pages;
}

// Whether the request may take new_pages pages now. Alone it always may: add() made sure.
bool Scheduler::fits(const Request& request, const PageCount& new_pages) const {
  PageCount wanted = new_pages;
  if (running_.empty() || !pool_.covers(available_pages(), wanted)) return pool_.covers(available_pages(), wanted);
  for (const Request* other : running_) wanted += reserved_pages(*other);
  const int64_t expected = request.num_tokens() + reserved_tokens(request.spec.max_new_tokens - request.num_output());
  wanted.full += int64_t{full_groups_} * (pool_.pages_for(expected) - pool_.pages_for(request.num_tokens()));
  return pool_.covers(available_pages(), wanted);
}

bool Scheduler::admit(Request& request, PrefillBudget& budget, Step& step) {
  if (!can_take_state()) return false;
  refresh_match(request);
  const auto exceeds_budget = [&](int matched) {
    const int remaining = request.num_tokens() - matched, to_compute = std::min(remaining, budget.chunk);
    if (budget.chunk < std::min(remaining, state_cut_tokens())) return true;
    return !step.rows.empty() && to_compute > budget.tokens;
  };
  if (exceeds_budget(request.match_len)) return false;
  if (!fits(request, prefill_pages(request, request.match_len))) return false;
  for (int limit = prefix_limit(request), matched = request.match_len; !take_pages(request, limit, step);) {
    // The source of a copied tail is held until the copy is done; without it there is a page more,
    // but the tail is computed.
    if (matched % pool_.page_size() == 0) return false;
    limit = matched / pool_.page_size() * pool_.page_size();
    matched = match_length(request, limit);
    if (exceeds_budget(matched)) return false;
  }
  Request* const oldest = *waiting_.begin();
  if (oldest != &request) ++oldest->overtaken;
  waiting_.erase(&request);
  running_.push_back(&request);
  request.state = Request::State::prefilling;
  request.prefill_len = request.num_tokens();
  if (request.cached_tokens < 0) {
    request.cached_tokens = request.scheduled;
    totals_.prompt_tokens_total += request.prompt_len;
    totals_.cached_tokens_total += request.cached_tokens;
    totals_.cached_kv_tokens_total += request.cached_kv_tokens;
  }
  add_prefill_row(request, budget, step);
  return true;
}

// Gives the request what is cached of its first match_limit tokens, and all other pages of its prefill in groups
// without a window, so that it cannot get stuck half way.
bool Scheduler::take_pages(Request& request, int match_limit, Step& step) {
  assert(request.pages.empty() && request.node == nullptr);
  RadixTree::Match match;
  if (!config_.disable_radix_cache) {
    match = tree_.match_and_lock(request.spec.cache_salt,
                                 std::span(request.tokens).first(match_limit), request.pages);
    if (match.tail_tokens > 0) hold_copy_sources(match, step);
  }
  if (!fits(request, prefill_pages(request, match.tokens()))) {
    if (match.tail_tokens > 0) drop_copy_sources(match);
    for (const int32_t page : request.pages) {
      if (page != kNoPage) pool_.unref(page);
    }
    request.pages.clear();
    if (match.state_slot != kNoStateSlot) states_->unref(match.state_slot);
    if (match.node != nullptr) tree_.unlock(match.node);
    return false;
  }
  const int shared_pages = static_cast<int>(request.pages.size()) / num_groups_;
  fill_tables(request, shared_pages, match.tokens());
  for (int g = 0; g < num_groups_ && match.tail_tokens > 0; ++g) {
    step.copies.push_back({match.tail_pages[g], request.pages[shared_pages * num_groups_ + g], match.tail_tokens});
  }
  if (states_) take_state(request, match, step);
  request.node = match.node;
  if (request.cached_tokens < 0) request.cached_kv_tokens = match.kv_tokens;
  ++request.pages_version;
  // The copied tail counts as written only when the step that copies it is committed.
  request.written = match.full_tokens;
  request.scheduled = match.tokens();
  return true;
}

// The sources of a copied tail are held until the copy is done.
void Scheduler::hold_copy_sources(const RadixTree::Match& match, const Step& step) {
  for (int g = 0; g < num_groups_; ++g) {
    deferred_.push_back({step.number, match.tail_pages[g], !config_.cache_groups[g].windowed()});
  }
  copy_source_pages_ += full_groups_;
}

void Scheduler::drop_copy_sources(RadixTree::Match& match) {
  for (int g = 0; g < num_groups_; ++g) pool_.unref(match.tail_pages[g]);
  deferred_.resize(deferred_.size() - num_groups_);
  copy_source_pages_ -= full_groups_;
  match.tail_tokens = 0;
}

// The page tables behind the shared pages: whole in groups without a window, in the others as far as the match goes.
void Scheduler::fill_tables(Request& request, int shared_pages, int matched_tokens) {
  const int total_pages = pool_.pages_for(request.num_tokens());
  make_free({int64_t{full_groups_} * (total_pages - shared_pages), 0});
  request.pages.resize(total_pages * num_groups_, kNoPage);
  for (int g = 0; g < num_groups_; ++g) {
    const CacheGroupRule& group = config_.cache_groups[g];
    for (int i = shared_pages; i < total_pages && !group.windowed(); ++i) {
      request.pages[i * num_groups_ + g] = pool_.alloc();
      assert(request.pages[i * num_groups_ + g] != kNoPage);
    }
    request.kept_from[g] = request.window_from[g] =
        std::min(shared_pages, group.first_seen(matched_tokens) / pool_.page_size());
  }
  request.window_end = shared_pages;
  grow_windows(request, matched_tokens);
}

void Scheduler::add_prefill_row(Request& request, PrefillBudget& budget, Step& step) {
  const int page_size = pool_.page_size();
  const int remaining = request.prefill_len - request.scheduled;
  int num_tokens = std::min(remaining, budget.chunk);
  if (num_tokens < remaining && budget.cut_at_pages && state_cut_tokens() == 1) {
    // End on a page boundary where the chunk reaches one.
    const int end = (request.scheduled + num_tokens) / page_size * page_size;
    if (end > request.scheduled) num_tokens = end - request.scheduled;
  }
  if (window_groups() > 0 && chunked_ == &request) {  // an admission has made sure of its first chunk's pages
    num_tokens = std::min(num_tokens, reachable_tokens(request) - request.scheduled);
  }
  if (states_) num_tokens = state_stop(request, request.scheduled + num_tokens) - request.scheduled;
  if (num_tokens <= 0) {  // it sits out until pages come free
    budget.chunk = 0;
    return;
  }
  grow_windows(request, request.scheduled + num_tokens);
  fill_row(request, num_tokens, /*prefill=*/true, step);
  budget.tokens -= num_tokens;
  if (num_tokens < remaining) {
    chunked_ = &request;
    budget.chunk = 0;
    return;
  }
  if (chunked_ == &request) chunked_ = nullptr;
  request.state = Request::State::running;
  if (config_.chunked_prefill_size > 0) budget.chunk -= num_tokens;
}

}  // namespace warpweave
