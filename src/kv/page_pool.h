// PagePool: who holds which page of the KV cache. A page is page_size token slots.
//
// Every holder (a request's page table, a radix tree node, a pending copy) owns one reference; a
// page is free when nobody holds it. All operations are O(1). Pages freed last are reused first and
// those that were never used are taken in ascending order, so that a lightly used pool touches little memory: of the
// cache, and of its own word a page, which lies untouched until then.
// Not thread-safe (the scheduler owns it).
// A page may be marked spare: its holder can do without it, so while it has one reference it counts as memory
// that can be had (tokens that left a sliding window, kept for prefix hits only).
// A pool may be split: its last pages are then for groups with a sliding window alone, and the others for the rest.
// A reference to a free page or a double free is a programmer error (assert).
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/untouched_zeros.h"

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
      : page_size_(page_size),
        num_pages_(num_pages),
        first_window_page_(num_pages - window_pages),
        words_(num_pages),
        parts_{Part{.first_unused = 0, .num_free = first_window_page_},
               Part{.first_unused = first_window_page_, .num_free = window_pages}} {
    assert(num_pages > 0 && page_size > 0 && window_pages >= 0 && window_pages < num_pages);
  }

  int page_size() const { return page_size_; }
  int num_pages() const { return num_pages_; }
  bool split() const { return first_window_page_ < num_pages_; }
  // Of a split pool; in one that is not, all pages are those of groups without a window.
  PagePart part_of(int32_t page) const { return page < first_window_page_ ? PagePart::full : PagePart::windows; }
  int num_free() const { return parts_[0].num_free + parts_[1].num_free; }
  // Free pages that such groups may take.
  int num_free(PagePart part) const { return parts_[index_of(part)].num_free; }
  int num_used() const { return num_pages() - num_free(); }
  // Whether `have` are enough for `wanted`: together where all groups share, else of either part.
  bool covers(const PageCount& have, const PageCount& wanted) const {
    return split() ? have.full >= wanted.full && have.windows >= wanted.windows : have.total() >= wanted.total();
  }
  PageCount size() const { return {first_window_page_, num_pages() - first_window_page_}; }
  int refs(int32_t page) const { return std::max(words_[page], 0) / kOneReference; }
  int num_spare() const { return num_spare_; }  // marked spare, with one reference

  void mark_spare(int32_t page, bool spare) {
    assert(refs(page) > 0);
    num_spare_ += (refs(page) == 1) * (int{spare} - int{is_spare(page)});
    words_[page] = refs(page) * kOneReference + spare;
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
    Part& from = parts_[index_of(part)];
    if (from.num_free == 0) return kNoPage;
    --from.num_free;
    const bool reused = from.freed_last != kNoPage;
    const int32_t page = reused ? from.freed_last : from.first_unused++;
    if (reused) from.freed_last = freed_before(page);
    words_[page] = kOneReference;
    if (logs_events_) events_.push_back(page);
    return page;
  }

  void ref(int32_t page) {
    assert(refs(page) > 0);
    num_spare_ -= refs(page) == 1 && is_spare(page);
    words_[page] += kOneReference;
  }

  // Drops one reference; true when that freed the page.
  bool unref(int32_t page) {
    assert(refs(page) > 0);
    const int left = refs(page) - 1;
    if (is_spare(page)) num_spare_ += int{left == 1} - int{left == 0};
    words_[page] -= kOneReference;
    if (left > 0) return false;
    Part& to = parts_[index_of(part_of(page))];
    words_[page] = word_of_freed(std::exchange(to.freed_last, page));
    ++to.num_free;
    if (logs_events_) events_.push_back(~page);
    return true;
  }

  // For audits: num_spare() counted anew.
  bool spare_count_holds() const {
    int count = 0;
    for (int32_t page = 0; page < num_pages(); ++page) count += refs(page) == 1 && is_spare(page);
    return count == num_spare_;
  }

 private:
  struct Part {
    int32_t first_unused;  // it and those behind it were never taken
    int num_free;
    int32_t freed_last = kNoPage;  // each freed page names the one that was freed before it
  };

  // A page's word: 0 before its first use; while it is held, twice the references, and 1 where it is spare; while it
  // is free again, below 0, what it names.
  static constexpr int32_t kOneReference = 2;
  static int32_t word_of_freed(int32_t freed_before) { return -2 - freed_before; }
  int32_t freed_before(int32_t page) const { return -2 - words_[page]; }
  bool is_spare(int32_t page) const { return words_[page] > 0 && words_[page] % kOneReference != 0; }

  // All pages are in the first where nothing is split.
  int index_of(PagePart part) const { return part == PagePart::windows && split(); }

  int page_size_;
  int num_pages_;
  int32_t first_window_page_;
  UntouchedZeros<int32_t> words_;  // by page
  std::array<Part, 2> parts_;
  int num_spare_ = 0;
  bool logs_events_ = false;
  std::vector<int32_t> events_;
};

}  // namespace warpweave
