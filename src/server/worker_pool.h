// A fixed number of threads that run API handlers, fed by a bounded queue.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "warpweave/status.h"

namespace warpweave::server {

class WorkerPool {
 public:
  explicit WorkerPool(size_t max_queued) : max_queued_(max_queued) {}
  ~WorkerPool() { stop(); }

  using StartThread = std::function<std::thread(std::function<void()>)>;
  // `unavailable` when the system gives no thread; those that run then do until stop().
  Status start(int threads, const StartThread& start_thread);

  // False when the queue is full or the pool stopped; the job is dropped then. Jobs must not throw.
  bool submit(std::function<void()> job);

  // Drops queued jobs, waits for the running ones.
  void stop();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable available_;
  std::deque<std::function<void()>> jobs_;
  const size_t max_queued_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace warpweave::server
