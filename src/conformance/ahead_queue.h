// Items prepared by several threads, in their order and only so far ahead of the one thread that takes them: what is
// prepared and not yet taken is in memory. Threads that are far enough ahead do other work meanwhile.
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

  const Work work_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t begun_ = 0;     // items
  int64_t wanted_ = 0;    // the item that is waited for
  size_t meanwhile_ = 0;  // begun
  bool stopping_ = false;
  std::vector<bool> prepared_;
  std::vector<std::exception_ptr> failures_;
  std::vector<std::thread> threads_;
};

}  // namespace warpweave::conformance
