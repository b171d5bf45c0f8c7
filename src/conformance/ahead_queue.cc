#include "conformance/ahead_queue.h"

#include <utility>

namespace warpweave::conformance {

AheadQueue::AheadQueue(int threads, Work work)
    : work_(std::move(work)), begun_(work_.items), prepared_(work_.items), failures_(work_.items) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { this->work(); });
}

AheadQueue::~AheadQueue() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void AheadQueue::wait_for(int64_t item) {
  std::unique_lock lock(mutex_);
  wanted_ = item;
  changed_.notify_all();
  changed_.wait(lock, [&] { return prepared_[item]; });
  if (failures_[item]) std::rethrow_exception(failures_[item]);
}

bool AheadQueue::may_prepare() const {
  return first_ < work_.first.size() || (next_ < work_.items && next_ <= wanted_ + work_.ahead);
}

int64_t AheadQueue::begin_item() {
  const int64_t item = first_ < work_.first.size() ? work_.first[first_++] : next_;
  begun_[item] = true;
  while (next_ < work_.items && begun_[next_]) ++next_;
  return item;
}

void AheadQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      return stopping_ || may_prepare() || meanwhile_ < work_.meanwhile.size() || next_ == work_.items;
    });
    if (stopping_) return;
    if (may_prepare()) {
      const int64_t item = begin_item();
      lock.unlock();
      std::exception_ptr failure;
      try {
        work_.prepare(item);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failures_[item] = std::move(failure);
      prepared_[item] = true;
      changed_.notify_all();
    } else if (meanwhile_ < work_.meanwhile.size()) {
      const std::function<void()>& task = work_.meanwhile[meanwhile_++];
      lock.unlock();
      task();
      lock.lock();
    } else {
      return;
    }
  }
}

}  // namespace warpweave::conformance
