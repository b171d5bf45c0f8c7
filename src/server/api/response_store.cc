#include "server/api/response_store.h"

#include <utility>

namespace warpweave::server {

void ResponseStore::drop(List::iterator at) {
  bytes_ -= at->bytes();
  if (--counts_[at->owner] == 0) counts_.erase(at->owner);
  by_key_.erase({at->owner, at->id});
  kept_.erase(at);
}

bool ResponseStore::put(const std::string& owner, const std::string& id, Entry entry) {
  Kept kept{owner, id, std::move(entry)};
  if (max_per_owner_ == 0 || kept.bytes() > kMaxEntryBytes) return false;
  std::lock_guard lock(mutex_);
  if (const auto at = by_key_.find({owner, id}); at != by_key_.end()) drop(at->second);
  bytes_ += kept.bytes();
  kept_.push_front(std::move(kept));
  by_key_[{owner, id}] = kept_.begin();
  if (++counts_[owner] > max_per_owner_) {
    auto oldest = std::prev(kept_.end());
    while (oldest->owner != owner) --oldest;
    drop(oldest);
  }
  while (bytes_ > kMaxBytes) drop(std::prev(kept_.end()));
  return true;
}

std::optional<ResponseStore::Entry> ResponseStore::get(const std::string& owner, const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto at = by_key_.find({owner, id});
  if (at == by_key_.end()) return std::nullopt;
  kept_.splice(kept_.begin(), kept_, at->second);
  return at->second->entry;
}

bool ResponseStore::erase(const std::string& owner, const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto at = by_key_.find({owner, id});
  if (at == by_key_.end()) return false;
  drop(at->second);
  return true;
}

size_t ResponseStore::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace warpweave::server
