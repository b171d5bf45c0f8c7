// PagePool: who holds which page of the KV cache. A page is page_size token slots.
//
// Every holder (a request's page table, a radix tree node, a pending copy) owns one reference; a
// page is free when nobody holds it. All operations are O(1). Pages freed last are reused first,
// so that a lightly used pool touches little memory. Not thread-safe (the scheduler owns it).
// A page may be marked spare: its holder can do without it, so while it has one reference it counts as memory
// that can be had (tokens that left a sliding window, kept for prefix hits only).
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
  PagePool(int num_pages, int page_size) : page_size_(page_size), refs_(num_pages, 0), spare_(num_pages, 0) {
    assert(num_pages > 0 && page_size > 0);
    free_.reserve(num_pages);
    for (int32_t page = num_pages - 1; page >= 0; --page) free_.push_back(page);
  }

  int page_size() const { return page_size_; }
  int num_pages() const { return static_cast<int>(refs_.size()); }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_used() const { return num_pages() - num_free(); }
  int refs(int32_t page) const { return refs_[page]; }
  int num_spare() const { return num_spare_; }  // marked spare, with one reference

  void mark_spare(int32_t page, bool spare) {
    assert(refs_[page] > 0);
    num_spare_ += (refs_[page] == 1) * (int{spare} - spare_[page]);
    spare_[page] = spare;
  }

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
    num_spare_ -= refs_[page] == 1 && spare_[page];
    ++refs_[page];
  }

  // Drops one reference; true when that freed the page.
  bool unref(int32_t page) {
    assert(refs_[page] > 0);
    --refs_[page];
    num_spare_ += refs_[page] == 1 && spare_[page];
    if (refs_[page] > 0) return false;
    num_spare_ -= spare_[page];
    spare_[page] = 0;
    free_.push_back(page);
    if (logs_events_) events_.push_back(~page);
    return true;
  }

  // For audits: num_spare() counted anew.
  bool spare_count_holds() const {
    int count = 0;
    for (int32_t page = 0; page < num_pages(); ++page) count += refs_[page] == 1 && spare_[page];
    return count == num_spare_;
  }

 private:
  int page_size_;
  std::vector<int32_t> refs_;
  std::vector<uint8_t> spare_;
  int num_spare_ = 0;
  std::vector<int32_t> free_;
  bool logs_events_ = false;
  std::vector<int32_t> events_;
};

}  // namespace warpweave
