// Items prepared by several threads, in their order and only so far ahead of the one thread that takes them: what is
// prepared and not yet taken is in memory. Some may be begun before all others: one that takes as long as many others
// would else be waited for by all. Threads that are far enough ahead do other work meanwhile.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace warpweave::conformance {

class AheadQueue {
 public:
  struct Work {
    int64_t items = 0;
    int64_t ahead = 1;                             // items that may be begun behind the one that is waited for
    std::vector<int64_t> first;                    // items that are begun before all others, in this order
    std::function<void(int64_t item)> prepare;     // called by several threads, once for each item
    std::vector<std::function<void()>> meanwhile;  // in their order, one after the other by any thread
  };

  AheadQueue(int threads, Work work);
  // What has not been begun is left.
  ~AheadQueue();
  AheadQueue(const AheadQueue&) = delete;
  AheadQueue& operator=(const AheadQueue&) = delete;

  // Returns when `item` has been prepared; items before it are done with. Throws what its preparation threw.
  void wait_for(int64_t item);

 private:
  void work();
  bool may_prepare() const;
  int64_t begin_item();

  const Work work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t first_ = 0;      // begun of Work::first
  int64_t next_ = 0;      // item in their order
  int64_t wanted_ = 0;    // the item that is waited for
  size_t meanwhile_ = 0;  // begun
  bool stopping_ = false;
  std::vector<bool> begun_, prepared_;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;
};

}  // namespace warpweave::conformance
