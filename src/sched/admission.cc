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
  int reserved = 0;
  for (const Request* request : running_) reserved += reserved_pages(*request);
  return available_pages() > reserved;
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
  request.match_len = tree_.match_length(
      request.spec.cache_salt, std::span(request.tokens).first(prefix_limit(request)));
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

// Pages that the request is expected to take on top of those it has.
int Scheduler::reserved_pages(const Request& request) const {
  const int remaining = std::min(request.spec.max_new_tokens - request.num_output_scheduled(),
                                 kReservedNewTokensCap);
  if (remaining <= 0) return 0;
  const int64_t expected = request.num_tokens() + request.uncommitted_samples +
                           static_cast<int64_t>(new_token_ratio_.value() * remaining);
  return std::max(0, pool_.pages_for(expected) - static_cast<int>(request.pages.size()));
}

// Whether the request may take new_pages pages now. Alone it always may: add() made sure.
bool Scheduler::fits(const Request& request, int new_pages) const {
  int spare = available_pages() - new_pages;
  if (spare < 0 || running_.empty()) return spare >= 0;
  for (const Request* other : running_) spare -= reserved_pages(*other);
  const int64_t remaining = std::min(request.spec.max_new_tokens - request.num_output(),
                                     kReservedNewTokensCap);
  const int64_t expected =
      request.num_tokens() + static_cast<int64_t>(new_token_ratio_.value() * remaining);
  spare -= pool_.pages_for(expected) - pool_.pages_for(request.num_tokens());
  return spare >= 0;
}

bool Scheduler::admit(Request& request, PrefillBudget& budget, Step& step) {
  refresh_match(request);
  const auto exceeds_budget = [&](int matched) {
    const int to_compute = std::min(request.num_tokens() - matched, budget.chunk);
    return !step.rows.empty() && to_compute > budget.tokens;
  };
  if (exceeds_budget(request.match_len)) return false;
  const int shared_pages = request.match_len / pool_.page_size();
  if (!fits(request, pool_.pages_for(request.num_tokens()) - shared_pages)) return false;
  if (!take_pages(request, /*allow_tail=*/true, step)) {
    // The source of a copied tail is held until the copy is done; without it there is a page more,
    // but the tail is computed.
    if (exceeds_budget(shared_pages * pool_.page_size())) return false;
    if (!take_pages(request, /*allow_tail=*/false, step)) return false;
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
  }
  add_prefill_row(request, budget, step);
  return true;
}

// Gives the request all pages of its prefill, so that it cannot get stuck half way.
bool Scheduler::take_pages(Request& request, bool allow_tail, Step& step) {
  assert(request.pages.empty() && request.node == nullptr);
  RadixTree::Match match;
  if (!config_.disable_radix_cache) {
    match = tree_.match_and_lock(request.spec.cache_salt,
                                 std::span(request.tokens).first(prefix_limit(request)),
                                 request.pages);
    if (match.tail_tokens > 0) {
      deferred_.push_back({step.number, match.tail_page, /*copy_source=*/true});
      ++copy_source_pages_;
      if (!allow_tail) {
        pool_.unref(match.tail_page);
        deferred_.pop_back();
        --copy_source_pages_;
        match.tail_tokens = 0;
      }
    }
  }
  const int shared_pages = static_cast<int>(request.pages.size());
  const int total_pages = pool_.pages_for(request.num_tokens());
  if (!fits(request, total_pages - shared_pages)) {
    if (match.tail_tokens > 0) {
      pool_.unref(match.tail_page);
      deferred_.pop_back();
      --copy_source_pages_;
    }
    for (const int32_t page : request.pages) pool_.unref(page);
    request.pages.clear();
    if (match.node != nullptr) tree_.unlock(match.node);
    return false;
  }
  const int missing_pages = total_pages - shared_pages - pool_.num_free();
  if (missing_pages > 0) tree_.evict(missing_pages);
  while (static_cast<int>(request.pages.size()) < total_pages) {
    request.pages.push_back(pool_.alloc());
    assert(request.pages.back() != kNoPage);
  }
  if (match.tail_tokens > 0) {
    step.copies.push_back({match.tail_page, request.pages[shared_pages], match.tail_tokens});
  }
  request.node = match.node;
  ++request.pages_version;
  // The copied tail counts as written only when the step that copies it is committed.
  request.written = match.full_tokens;
  request.scheduled = match.full_tokens + match.tail_tokens;
  return true;
}

void Scheduler::add_prefill_row(Request& request, PrefillBudget& budget, Step& step) {
  const int page_size = pool_.page_size();
  const int remaining = request.prefill_len - request.scheduled;
  int num_tokens = std::min(remaining, budget.chunk);
  if (num_tokens < remaining && budget.cut_at_pages) {
    // End on a page boundary where the chunk reaches one.
    const int end = (request.scheduled + num_tokens) / page_size * page_size;
    if (end > request.scheduled) num_tokens = end - request.scheduled;
  }
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
