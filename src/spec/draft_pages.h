// What a draft model's cache holds of each page: texts that it did not follow leave gaps there, which the target's
// pages, shared and cached, do not have. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sched/scheduler.h"

namespace warpweave {

class DraftPages {
 public:
  explicit DraftPages(int page_size) : page_size_(page_size) {}

  // How many tokens, from its first on, have their K/V there.
  int tokens(int32_t page) const { return page < static_cast<int32_t>(tokens_.size()) ? tokens_[page] : 0; }
  // The page holds another token, and none behind it.
  void written(int32_t page, int offset) {
    if (tokens(page) >= offset) set(page, offset + 1);
  }
  // The target's token has no K/V there.
  void skipped(int32_t page, int offset) {
    if (tokens(page) > offset) set(page, offset);
  }
  void copied(const PageCopy& copy) { set(copy.dst_page, std::min(tokens(copy.src_page), copy.num_tokens)); }

  // The first position of a text with these pages from which on none is missing up to the page that holds `position`.
  int begin_before(const int32_t* pages, int position) const {
    int page = position / page_size_;
    while (page > 0 && tokens(pages[page - 1]) == page_size_) --page;
    return page * page_size_;
  }

 private:
  void set(int32_t page, int tokens) {
    if (page >= static_cast<int32_t>(tokens_.size())) tokens_.resize(page + 1);
    tokens_[page] = tokens;
  }

  const int page_size_;
  std::vector<int32_t> tokens_;  // by page; those past the end have none
};

}  // namespace warpweave
