// Connections that have something new to send. Any thread adds one, without taking memory, so that no answer is lost
// where memory has ended; the I/O thread takes them all.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace warpweave::server {

class Connection;

class WakeList {
 public:
  struct Entry {
    explicit Entry(std::weak_ptr<Connection> of) : connection(std::move(of)) {}
    const std::weak_ptr<Connection> connection;

   private:
    friend class WakeList;
    std::shared_ptr<Entry> next_;
    bool is_listed_ = false;
  };

  // `notify` is called, from any thread and under no lock, when the list is no longer empty: take() is to follow, once,
  // on the I/O thread. It must not throw.
  explicit WakeList(std::function<void()> notify) : notify_(std::move(notify)) {}

  void add(const std::shared_ptr<Entry>& entry) {
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(entry->is_listed_, true)) return;
      const bool first = first_ == nullptr;
      (first ? first_ : last_->next_) = entry;
      last_ = entry.get();
      if (!first) return;
    }
    notify_();
  }

  // `visit` for each connection's entry, the longest waiting first; those added meanwhile come with the next call.
  template <typename F>
  void take(const F& visit) {
    std::shared_ptr<Entry> entry;
    {
      std::lock_guard lock(mutex_);
      entry = std::exchange(first_, nullptr);
    }
    while (entry != nullptr) {
      std::shared_ptr<Entry> next;
      {
        std::lock_guard lock(mutex_);  // from here on it may be listed again
        next = std::exchange(entry->next_, nullptr);
        entry->is_listed_ = false;
      }
      visit(entry->connection);
      entry = std::move(next);
    }
  }

 private:
  const std::function<void()> notify_;
  std::mutex mutex_;
  std::shared_ptr<Entry> first_;
  Entry* last_ = nullptr;  // of the list that begins with first_
};

}  // namespace warpweave::server
