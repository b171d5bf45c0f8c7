// Answers of /v1/responses that were asked to be kept: by owner (the key a client sends), a bounded number and a
// bounded size, those used longest ago go first. In memory only. Thread-safe.
#pragma once

#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

namespace warpweave::server {

class ResponseStore {
 public:
  static constexpr size_t kMaxBytes = size_t{64} << 20;       // of all owners
  static constexpr size_t kMaxEntryBytes = size_t{4} << 20;

  // `max_per_owner`: 0 keeps none.
  explicit ResponseStore(size_t max_per_owner) : max_per_owner_(max_per_owner) {}

  struct Entry {
    std::string body;        // the answer, as it was given
    std::string messages;    // the conversation up to its end: a JSON list of chat messages
    std::string input = {};  // what was asked with: a JSON list of items
  };

  // False: too large, or none are kept. Where memory ends it throws and keeps nothing of the entry.
  bool put(const std::string& owner, const std::string& id, Entry entry);
  std::optional<Entry> get(const std::string& owner, const std::string& id);
  bool erase(const std::string& owner, const std::string& id);
  size_t max_per_owner() const { return max_per_owner_; }
  size_t bytes() const;

 private:
  struct Kept {
    std::string owner, id;
    Entry entry;
    size_t bytes() const {
      return owner.size() + id.size() + entry.body.size() + entry.messages.size() + entry.input.size();
    }
  };
  using List = std::list<Kept>;  // the one used last in front
  using Key = std::pair<std::string_view, std::string_view>;  // owner and id, of an element of kept_
  void drop(List::iterator at) noexcept;

  const size_t max_per_owner_;
  mutable std::mutex mutex_;
  List kept_;
  std::map<Key, List::iterator> by_key_;
  std::map<std::string, size_t, std::less<>> counts_;  // by owner
  size_t bytes_ = 0;
};

}  // namespace warpweave::server
