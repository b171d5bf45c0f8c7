// PagePool: who holds which page of the KV cache. A page is page_size token slots.
//
// Every holder (a request's page table, a radix tree node, a pending copy) owns one reference; a
// page is free when nobody holds it. All operations are O(1). Pages freed last are reused first,
// so that a lightly used pool touches little memory. Not thread-safe (the scheduler owns it).
// A page may be marked spare: its holder can do without it, so while it has one reference it counts as memory
// that can be had (tokens that left a sliding window, kept for prefix hits only).
// A pool may be split: its last pages are then for groups with a sliding window alone, and the others for the rest.
// A reference to a free page or a double free is a programmer error (assert).
#pragma once

#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

namespace warpweave {

inline constexpr int32_t kNoPage = -1;

// Groups without a window, or with one.
enum class PagePart { full, windows };

// Pages of either.
struct PageCount {
  int64_t full = 0;
  int64_t windows = 0;

  int64_t total() const { return full + windows; }
  int64_t& operator[](PagePart part) { return part == PagePart::full ? full : windows; }
  PageCount& operator+=(const PageCount& other) { return full += other.full, windows += other.windows, *this; }
  PageCount& operator-=(const PageCount& other) { return full -= other.full, windows -= other.windows, *this; }
  friend PageCount operator+(PageCount a, const PageCount& b) { return a += b; }
  friend PageCount operator-(PageCount a, const PageCount& b) { return a -= b; }
};

class PagePool {
 public:
  // window_pages: 0, or how many of them only groups with a window may take, and no others.
  PagePool(int num_pages, int page_size, int window_pages = 0)
      : page_size_(page_size), first_window_page_(num_pages - window_pages), refs_(num_pages, 0), spare_(num_pages, 0) {
    assert(num_pages > 0 && page_size > 0 && window_pages >= 0 && window_pages < num_pages);
    for (int32_t page = num_pages - 1; page >= 0; --page) free_list(part_of(page)).push_back(page);
  }

  int page_size() const { return page_size_; }
  int num_pages() const { return static_cast<int>(refs_.size()); }
  bool split() const { return first_window_page_ < num_pages(); }
  // Of a split pool; in one that is not, all pages are those of groups without a window.
  PagePart part_of(int32_t page) const { return page < first_window_page_ ? PagePart::full : PagePart::windows; }
  int num_free() const { return static_cast<int>(free_[0].size() + free_[1].size()); }
  // Free pages that such groups may take.
  int num_free(PagePart part) const { return static_cast<int>(free_[list_of(part)].size()); }
  int num_used() const { return num_pages() - num_free(); }
  // Whether `have` are enough for `wanted`: together where all groups share, else of either part.
  bool covers(const PageCount& have, const PageCount& wanted) const {
    return split() ? have.full >= wanted.full && have.windows >= wanted.windows : have.total() >= wanted.total();
  }
  PageCount size() const { return {first_window_page_, num_pages() - first_window_page_}; }
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
  int32_t alloc(PagePart part = PagePart::full) {
    std::vector<int32_t>& free = free_list(part);
    if (free.empty()) return kNoPage;
    const int32_t page = free.back();
    free.pop_back();
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
    free_list(part_of(page)).push_back(page);
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
  int list_of(PagePart part) const { return part == PagePart::windows && split(); }
  std::vector<int32_t>& free_list(PagePart part) { return free_[list_of(part)]; }

  int page_size_;
  int32_t first_window_page_;
  std::vector<int32_t> refs_;
  std::vector<uint8_t> spare_;
  int num_spare_ = 0;
  std::vector<int32_t> free_[2];  // by part; all in the first where nothing is split
  bool logs_events_ = false;
  std::vector<int32_t> events_;
};

}  // namespace warpweave
