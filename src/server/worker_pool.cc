#include "server/worker_pool.h"

#include <string>
#include <system_error>

namespace warpweave::server {

Status WorkerPool::start(int threads, const StartThread& start_thread) {
  try {
    threads_.reserve(static_cast<size_t>(threads));  // a thread that runs must have its place
    for (int i = 0; i < threads; ++i) threads_.push_back(start_thread([this] { loop(); }));
  } catch (const std::system_error& e) {
    return Status::unavailable("the system gives no more threads (" + std::string(e.what()) +
                               "); raise its limit, see ulimit -u");
  }
  return {};
}

bool WorkerPool::submit(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_ || jobs_.size() >= max_queued_) return false;
    jobs_.push_back(std::move(job));
  }
  available_.notify_one();
  return true;
}

void WorkerPool::stop() {
  for (;;) {
    std::function<void()> dropped;  // dies after the lock
    std::lock_guard lock(mutex_);
    stopping_ = true;
    if (jobs_.empty()) break;
    dropped = std::move(jobs_.front());
    jobs_.pop_front();
  }
  available_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerPool::loop() {
  while (true) {
    std::function<void()> job;
    {
      std::unique_lock lock(mutex_);
      available_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace warpweave::server
