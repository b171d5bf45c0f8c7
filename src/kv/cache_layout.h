// Which layers keep their K/V in one page: the cache as a list of groups over one pool of pages.
//
// A layer with full attention keeps every token; one with a sliding window forgets tokens that no row can see any
// more. Layers that forget alike form groups of at most `layers_per_page` layers, so that all pages have one size and
// any page can serve any group: memory goes where it is needed. A request has one page table a group; entries whose
// tokens left the window name the blank page, which nothing writes.
// Method: equal pages for unequal layers after vLLM's hybrid KV cache manager, with the unit chosen by cost.
#pragma once

#include <span>
#include <vector>

namespace warpweave {

inline constexpr int kMaxCacheGroups = 8;

// What a group of layers still needs of a request's tokens.
struct CacheGroupRule {
  int window_left = -1;  // a row at position p sees [p - window_left, p]; -1: all before it
  bool windowed() const { return window_left >= 0; }
  // The first token that a row at `position` sees.
  int first_seen(int position) const { return windowed() && position > window_left ? position - window_left : 0; }
};

struct CacheLayout {
  struct Place {
    int group = 0;
    int index = 0;  // within the group's pages; -1: the layer keeps no K/V
  };
  int layers_per_page = 0;
  std::vector<CacheGroupRule> groups;
  std::vector<Place> places;  // [layers]

  int num_groups() const { return static_cast<int>(groups.size()); }
  bool windowed() const;
};

// One group that holds all layers for ever: as long as nothing is gained by more. Layers `without_kv` ([layers], or
// empty: none), which keep a state in its place, are left out.
CacheLayout single_cache_group(int num_layers, const std::vector<bool>& without_kv = {});

struct CacheLayoutRequest {
  std::span<const int> window_left;  // [layers]
  int context_len = 0;               // tokens of the longest request
  int page_size = 1;                 // tokens
};

// The layout that keeps a request of context_len tokens in the fewest bytes, in at most kMaxCacheGroups groups; a
// single group where windows save less than a twentieth.
CacheLayout plan_cache_layout(const CacheLayoutRequest& request);

}  // namespace warpweave
