// The decode rows of a step, and retraction when their next tokens do not fit.
#include <algorithm>
#include <cassert>

#include "sched/request.h"
#include "sched/scheduler.h"

namespace warpweave {

// Its next token's position may be scheduled now: not the last token, and not in this step yet.
bool Scheduler::can_decode(const Request& request) const {
  return request.state == Request::State::running && !request.retracting &&
         request.last_step != totals_.steps_total + 1 &&
         (!waits_for_tokens_ || request.uncommitted_steps == 0) &&
         request.num_output_scheduled() < request.spec.max_new_tokens;
}

// The tokens that its page tables have room for.
int Scheduler::covered_tokens(const Request& request) const {
  return static_cast<int>(request.pages.size()) / num_groups_ * pool_.page_size();
}

bool Scheduler::needs_page(const Request& request) const { return request.scheduled >= covered_tokens(request); }

bool Scheduler::proposals_in_flight() const {
  return std::any_of(in_flight_.begin(), in_flight_.end(), [](const Step& step) {
    return std::any_of(step.rows.begin(), step.rows.end(), [](const StepRow& row) { return row.max_proposals > 0; });
  });
}

bool Scheduler::decodes_in_flight() const {
  return std::any_of(in_flight_.begin(), in_flight_.end(), [](const Step& step) {
    return std::any_of(step.rows.begin(), step.rows.end(), [](const StepRow& row) { return !row.prefill; });
  });
}

void Scheduler::add_decode_rows(Step& step) {
  // A request with proposals must wait for its step. The others wait with it: else two halves would decode by turns for
  // ever, and each read all weights.
  if (waits_for_tokens_ && decodes_in_flight()) return;
  const bool propose =
      proposing_ && config_.max_proposals > 0 && step.empty();  // beside a prefill there is no time for it
  PageCount needed = pages_needed_for_decode();
  if (!pool_.covers(available_pages(), needed)) {
    make_room();
    needed = pages_needed_for_decode();
  }
  PageCount spare = propose ? available_pages() - needed : PageCount{};
  for (Request* request : running_) {
    if (!can_decode(*request)) continue;
    // Without pages it sits out: they are about to come free.
    if (needs_page(*request) && !append_pages(*request)) continue;
    fill_row(*request, 1, /*prefill=*/false, step);
    if (propose) make_room_for_proposals(*request, spare, step.rows.back());
  }
}

// Proposals take pages that nobody else needs now, and are fewer where there are none.
void Scheduler::make_room_for_proposals(Request& request, PageCount& spare, StepRow& row) {
  const int remaining = request.spec.max_new_tokens - request.num_output_scheduled();  // after this row's own
  const int wanted = std::min(config_.max_proposals, remaining);
  while (covered_tokens(request) < request.scheduled + wanted && pool_.covers(spare, in_all_groups(1)) &&
         append_pages(request)) {
    spare -= in_all_groups(1);
  }
  row.max_proposals = std::clamp(covered_tokens(request) - request.scheduled, 0, wanted);
  row.pages = request.pages.data();
  row.num_pages = pool_.pages_for(request.scheduled + row.max_proposals);
}

PageCount Scheduler::pages_needed_for_decode() const {
  int requests = 0;
  for (const Request* request : running_) requests += can_decode(*request) && needs_page(*request);
  return in_all_groups(requests);
}

// Retracts requests, the latest first, until the next tokens of the others fit. One is always
// left; it fits once everybody else's pages are free. Victims with a row in an uncommitted step
// give their pages back when it is committed; until then rows without a page sit out.
void Scheduler::make_room() {
  PageCount coming = pages_about_to_free();
  if (pool_.covers(available_pages() + coming, pages_needed_for_decode())) return;
  const int headroom = pool_.pages_for(kRetractHeadroomSteps);
  for (;;) {
    const int staying =
        std::count_if(running_.begin(), running_.end(), [&](auto* r) { return can_decode(*r); });
    if (staying < 2) break;
    const PageCount wanted = pages_needed_for_decode() + in_all_groups(int64_t{staying} * headroom);
    if (pool_.covers(available_pages() + coming, wanted)) break;
    Request& victim = *pick_victim();
    if (victim.uncommitted_steps == 0) {
      retract(victim);
    } else {
      victim.retracting = true;
      coming += releasable_pages(victim);
    }
  }
  int64_t decoded = 0, max_new = 0;
  for (const Request* request : running_) {
    if (request->retracting) continue;
    decoded += request->num_output() + kRetractHeadroomSteps;
    max_new += request->spec.max_new_tokens;
  }
  new_token_ratio_.on_retraction(decoded, max_new);
}

Scheduler::Request* Scheduler::pick_victim() const {
  Request* victim = nullptr;
  for (Request* request : running_) {
    if (!can_decode(*request)) continue;
    if (victim == nullptr || request->rank > victim->rank ||
        (request->rank == victim->rank && request->sequence > victim->sequence)) {
      victim = request;
    }
  }
  return victim;
}

// About how many pages come free when the request gives its own up: those that nobody but it, or
// it and the tree, holds.
PageCount Scheduler::releasable_pages(const Request& request) const {
  PageCount pages;
  for (const int32_t page : request.pages) {
    if (page != kNoPage && pool_.refs(page) <= 2) ++pages[pool_.part_of(page)];
  }
  return pages;
}

PageCount Scheduler::pages_about_to_free() const {
  PageCount pages;
  if (in_flight_.empty()) return pages;
  for (const DeferredPage& deferred : deferred_) ++pages[pool_.part_of(deferred.page)];
  for (const Request* request : draining_) pages += releasable_pages(*request);
  for (const Request* request : running_) {
    const bool last_token_in_flight =
        request->uncommitted_samples > 0 &&
        request->num_output_scheduled() >= request->spec.max_new_tokens;
    if (request->retracting || last_token_in_flight) pages += releasable_pages(*request);
  }
  return pages;
}

// Back to the front of the queue with all its tokens; their K/V stays cached while there is room.
void Scheduler::retract(Request& request) {
  leave_running(request);
  release_pages(request);
  request.state = Request::State::waiting;
  request.retracted = true;
  request.retracting = false;
  ++request.retractions;
  ++totals_.retracted_reqs_total;
  request.match_version = std::numeric_limits<uint64_t>::max();
  waiting_.insert(&request);
}

}  // namespace warpweave
