#include <algorithm>
#include <string>

#include "sched/request.h"
#include "sched/scheduler.h"

namespace warpweave {

Status Scheduler::audit_request(const Request& request, std::vector<int>& refs) const {
  const auto broken = [&](const std::string& how) {
    return Status::internal("request " + std::to_string(request.spec.id) + " has " + how);
  };
  for (size_t i = 0; i < request.pages.size(); ++i) {
    const int page = static_cast<int>(i) / num_groups_, group = static_cast<int>(i) % num_groups_;
    const bool windowed = config_.cache_groups[group].windowed();
    const bool there = request.pages[i] != kNoPage;
    if (there != (!windowed || (page >= request.kept_from[group] && page < request.window_end))) {
      return broken("a page too many or too few at entry " + std::to_string(page) + " of group " +
                    std::to_string(group));
    }
    if (!there) continue;
    ++refs[request.pages[i]];
    if (pool_.split() && pool_.part_of(request.pages[i]) != part_of(group)) {
      return broken("a page of the other part of the pool");
    }
  }
  const bool idle = request.pages.empty() && request.node == nullptr;
  if (request.state == Request::State::waiting && !idle) return Status::internal("a waiting request holds pages");
  if (request.state == Request::State::ended && request.uncommitted_steps == 0) {
    return Status::internal("an ended request was not released");
  }
  return {};
}

Status Scheduler::audit_pool(const std::vector<int>& refs) const {
  PageCount free;
  for (int32_t page = 0; page < pool_.num_pages(); ++page) {
    if (refs[page] != pool_.refs(page)) {
      return Status::internal("page " + std::to_string(page) + " has " + std::to_string(pool_.refs(page)) +
                              " references, its holders " + std::to_string(refs[page]));
    }
    free[pool_.part_of(page)] += refs[page] == 0;
  }
  if (free.full != pool_.num_free(PagePart::full) || free.total() != pool_.num_free()) {
    return Status::internal("a free list is wrong");
  }
  return {};
}

Status Scheduler::audit() const {
  std::vector<int> refs(pool_.num_pages(), 0);
  if (const std::string broken = tree_.audit([&](int32_t page) { ++refs[page]; });
      !broken.empty()) {
    return Status::internal("radix tree: " + broken);
  }
  size_t waiting = 0, running = 0, draining = 0;
  for (const auto& [id, request] : requests_) {
    WW_RETURN_IF_ERROR(audit_request(*request, refs));
    switch (request->state) {
      case Request::State::waiting: ++waiting; break;
      case Request::State::prefilling:
      case Request::State::running: ++running; break;
      case Request::State::ended: ++draining; break;
    }
  }
  if (waiting != waiting_.size() || running != running_.size() || draining != draining_.size()) {
    return Status::internal("a request is in the wrong list");
  }
  int copy_sources = 0;
  for (const DeferredPage& deferred : deferred_) {
    ++refs[deferred.page];
    copy_sources += deferred.copy_source;
  }
  if (copy_sources != copy_source_pages_) return Status::internal("copy sources are miscounted");
  WW_RETURN_IF_ERROR(audit_pool(refs));
  if (states_) WW_RETURN_IF_ERROR(audit_states());
  if (!pool_.spare_count_holds()) return Status::internal("spare pages are miscounted");
  if (in_flight_.empty() && !deferred_.empty()) return Status::internal("a page was not given back");
  if (requests_.empty() && tree_.locked_pages() != 0) {
    return Status::internal("a lock was not given back");
  }
  return {};
}

}  // namespace warpweave
