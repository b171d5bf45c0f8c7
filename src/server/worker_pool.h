// A fixed number of threads that run API handlers, fed by a bounded queue.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace warpweave::server {

class WorkerPool {
 public:
  WorkerPool(int threads, size_t max_queued);
  ~WorkerPool() { stop(); }

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
