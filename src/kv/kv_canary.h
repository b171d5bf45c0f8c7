// KvCanary: free pages filled with a pattern that is looked at when they are taken again.
//
// A debug aid: whoever writes to a page that it no longer holds is found when the page is next
// taken, and whoever reads one reads values that are no numbers (all bits set: a NaN in every format
// but fp4_e2m1). Costs a pass over every page that is freed and one over every page that is taken.
// Not thread-safe; the cache must outlive it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "warpweave/status.h"

namespace warpweave {

class KvCanary {
 public:
  explicit KvCanary(KvCache& cache)
      : cache_(cache), poisoned_(static_cast<size_t>(cache.shape().num_pages), false) {}

  // What PagePool::take_events() gave, in order. `internal` names the first page that has changed
  // while it was free; the rest is done all the same.
  Status apply(std::span<const int32_t> events);

  // Looks at every page that is free.
  Status check_all() const;

 private:
  KvCache& cache_;
  std::vector<bool> poisoned_;  // by page
};

}  // namespace warpweave
