// PagePool: who holds which page of the KV cache. A page is page_size token slots.
//
// Every holder (a request's page table, a radix tree node, a pending copy) owns one reference; a
// page is free when nobody holds it. All operations are O(1). Pages freed last are reused first,
// so that a lightly used pool touches little memory. Not thread-safe (the scheduler owns it).
// A reference to a free page or a double free is a programmer error (assert).
#pragma once

#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

namespace warpweave {

inline constexpr int32_t kNoPage = -1;

class PagePool {
 public:
  PagePool(int num_pages, int page_size) : page_size_(page_size), refs_(num_pages, 0) {
    assert(num_pages > 0 && page_size > 0);
    free_.reserve(num_pages);
    for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(page);
  }

  int page_size() const { return page_size_; }
  int num_pages() const { return static_cast<int>(refs_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_used() const { return num_pages() - num_free(); }
  int refs(int32_t page) const { return refs_[page]; }

  // Pages that `tokens` tokens take.
  int pages_for(int64_t tokens) const {
    return static_cast<int>((tokens + page_size_ - 1) / page_size_);
  }

  // Keeps what happens to pages for take_events(): a page when it is taken, ~page when it is freed,
  // in order. For KvCanary.
  void log_events(bool on) { logs_events_ = on; }
  std::vector<int32_t> take_events() { return std::exchange(events_, {}); }

  // A free page with one reference, or kNoPage.
  int32_t alloc() {
    if (free_.empty()) return kNoPage;
    const int32_t page = free_.back();
    free_.pop_back();
    refs_[page] = 1;
    if (logs_events_) events_.push_back(page);
    return page;
  }

  void ref(int32_t page) {
    assert(refs_[page] > 0);
    ++refs_[page];
  }

  // Drops one reference; true when that freed the page.
  bool unref(int32_t page) {
    assert(refs_[page] > 0);
    if (--refs_[page] > 0) return false;
    free_.push_back(page);
    if (logs_events_) events_.push_back(~page);
    return true;
  }

 private:
  int page_size_;
  std::vector<int32_t> refs_;
  std::vector<int32_t> free_;
  bool logs_events_ = false;
  std::vector<int32_t> events_;
};

}  // namespace warpweave
