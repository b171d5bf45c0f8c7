// Pages of groups with a sliding window: taken chunk by chunk, given back when no row sees them any more.
#include <algorithm>
#include <cassert>

#include "sched/request.h"
#include "sched/scheduler.h"

namespace warpweave {

// A windowed group holds the window of the oldest row that is not committed, and the rows of all steps that are not.
int64_t peak_group_pages(const SchedulerConfig& config, const CacheGroupRule& group, int64_t tokens, bool prefilling) {
  const auto pages_for = [&](int64_t count) { return (count + config.page_size - 1) / config.page_size; };
  const int64_t whole = pages_for(tokens);
  if (!group.windowed() || (prefilling && config.chunked_prefill_size < 0)) return whole;
  const int64_t rows = prefilling ? config.chunked_prefill_size : 1;
  return std::min(whole, pages_for(group.window_left + rows * (config.overlap_depth + 1)) + 1);
}

PageCount peak_request_pages(const SchedulerConfig& config, int64_t tokens, bool prefilling) {
  PageCount pages;
  for (const CacheGroupRule& group : config.cache_groups) {
    (group.windowed() ? pages.windows : pages.full) += peak_group_pages(config, group, tokens, prefilling);
  }
  return pages;
}

// What an admitted request may still take in windowed groups until it has `tokens` tokens.
int Scheduler::window_pages_to_come(const Request& request, int64_t tokens) const {
  int pages = 0;
  const bool prefilling = request.state == Request::State::prefilling;
  for (int g = 0; g < num_groups_; ++g) {
    const CacheGroupRule& group = config_.cache_groups[g];
    if (!group.windowed()) continue;
    const int held = request.window_end - request.window_from[g];
    pages += std::max(0, static_cast<int>(peak_group_pages(config_, group, tokens, prefilling)) - held);
  }
  return pages;
}

// The tokens for which the windowed groups have pages, or could have with all that are available.
int Scheduler::reachable_tokens(const Request& request) const {
  const PageCount available = available_pages();
  const int64_t more = std::max<int64_t>(0, pool_.split() ? available.windows : available.total()) / window_groups();
  const int64_t pages = std::min<int64_t>(request.window_end + more, request.pages.size() / num_groups_);
  return static_cast<int>(pages * pool_.page_size());
}

// Takes the pages that windowed groups need up to token `end`; they are available.
void Scheduler::grow_windows(Request& request, int end) {
  const int pages = pool_.pages_for(end);
  if (window_groups() == 0 || pages <= request.window_end) return;
  make_free({0, int64_t{pages - request.window_end} * window_groups()});
  for (; request.window_end < pages; ++request.window_end) {
    for (int g = 0; g < num_groups_; ++g) {
      if (!config_.cache_groups[g].windowed()) continue;
      int32_t& page = request.pages[request.window_end * num_groups_ + g];
      assert(page == kNoPage);
      page = pool_.alloc(PagePart::windows);
      assert(page != kNoPage);
    }
  }
}

// A step is committed: pages that the rows still to come do not see leave the request, or linger.
void Scheduler::leave_windows(Request& request) {
  const bool linger = !config_.disable_radix_cache && !request.kv_shared;
  for (int g = 0; g < num_groups_; ++g) {
    const CacheGroupRule& group = config_.cache_groups[g];
    if (!group.windowed()) continue;
    const int first = group.first_seen(request.written) / pool_.page_size();
    for (int& i = request.window_from[g]; i < first; ++i) {
      if (linger) pool_.mark_spare(request.pages[i * num_groups_ + g], true);
    }
  }
  if (!linger) drop_lingering(request, pool_.num_pages());
}

// Gives up to num_pages lingering pages up, the first ones first; returns how many came free.
int Scheduler::drop_lingering(Request& request, int num_pages) {
  int freed = 0;
  for (int g = 0; g < num_groups_; ++g) {
    for (int& i = request.kept_from[g]; i < request.window_from[g] && freed < num_pages; ++i) {
      int32_t& page = request.pages[i * num_groups_ + g];
      freed += pool_.unref(page);
      page = kNoPage;
    }
  }
  return freed;
}

int Scheduler::reclaim_lingering(int num_pages) {
  int freed = 0;
  if (window_groups() == 0) return 0;
  for (const auto* requests : {&running_, &draining_}) {
    for (Request* request : *requests) {
      if (freed < num_pages) freed += drop_lingering(*request, num_pages - freed);
    }
  }
  return freed;
}

}  // namespace warpweave
