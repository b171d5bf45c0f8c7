#include "kv/kv_canary.h"

#include <string>

namespace warpweave {
namespace {

constexpr std::byte kPoison{0xFF};

Status changed(int32_t page) {
  return Status::internal("KV canary: page " + std::to_string(page) +
                          " was written to while it was free");
}

}  // namespace

Status KvCanary::apply(std::span<const int32_t> events) {
  Status status;
  for (const int32_t event : events) {
    const int32_t page = event < 0 ? ~event : event;
    if (event < 0) {
      cache_.fill_page(page, kPoison);
      poisoned_[page] = true;
      continue;
    }
    if (!poisoned_[page]) continue;
    if (status.ok() && !cache_.page_is_filled(page, kPoison)) status = changed(page);
    // Kernels multiply what stands behind a sequence's end by 0, which a NaN survives.
    cache_.fill_page(page, std::byte{0});
    poisoned_[page] = false;
  }
  return status;
}

Status KvCanary::check_all() const {
  for (size_t page = 0; page < poisoned_.size(); ++page) {
    if (poisoned_[page] && !cache_.page_is_filled(static_cast<int32_t>(page), kPoison)) {
      return changed(static_cast<int32_t>(page));
    }
  }
  return {};
}

}  // namespace warpweave
