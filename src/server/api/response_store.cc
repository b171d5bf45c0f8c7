#include "server/api/response_store.h"

#include <utility>

namespace warpweave::server {

void ResponseStore::drop(List::iterator at) noexcept {
  bytes_ -= at->bytes();
  if (const auto count = counts_.find(at->owner); --count->second == 0) counts_.erase(count);
  by_key_.erase(by_key_.find(Key(at->owner, at->id)));
  kept_.erase(at);
}

bool ResponseStore::put(const std::string& owner, const std::string& id, Entry entry) {
  // All memory is taken before anything changes.
  List added;
  added.push_front({owner, id, std::move(entry)});
  const Kept& kept = added.front();
  if (max_per_owner_ == 0 || kept.bytes() > kMaxEntryBytes) return false;
  decltype(by_key_) added_key = {{Key(kept.owner, kept.id), added.begin()}};
  decltype(counts_) added_count = {{owner, 0}};
  std::lock_guard lock(mutex_);
  if (const auto at = by_key_.find(Key(owner, id)); at != by_key_.end()) drop(at->second);
  bytes_ += kept.bytes();
  kept_.splice(kept_.begin(), added);
  by_key_.merge(added_key);
  counts_.merge(added_count);
  if (++counts_.find(owner)->second > max_per_owner_) {
    auto oldest = std::prev(kept_.end());
    while (oldest->owner != owner) --oldest;
    drop(oldest);
  }
  while (bytes_ > kMaxBytes) drop(std::prev(kept_.end()));
  return true;
}

std::optional<ResponseStore::Entry> ResponseStore::get(const std::string& owner, const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto at = by_key_.find(Key(owner, id));
  if (at == by_key_.end()) return std::nullopt;
  kept_.splice(kept_.begin(), kept_, at->second);
  return at->second->entry;
}

bool ResponseStore::erase(const std::string& owner, const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto at = by_key_.find(Key(owner, id));
  if (at == by_key_.end()) return false;
  drop(at->second);
  return true;
}

size_t ResponseStore::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace warpweave::server
