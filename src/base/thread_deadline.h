// A limit on the work that one thread does, in the time that it runs on a processor.
//
// Waits do not count: a server that was stopped for a while, or that shares its processors with others, refuses no
// input that an idle machine takes. For one thread; throws nothing.
#pragma once

#include <time.h>

#include <chrono>

namespace warpweave {

// What the calling thread has run so far, without its waits.
inline std::chrono::nanoseconds thread_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// Gives the time that a thread has used. Tests put a count in its place, so that work ends at the same step everywhere.
using ThreadClock = std::chrono::nanoseconds (*)();

// For loops: passed() looks at the clock on one of `calls_per_look` calls, and stays true once it was.
class ThreadDeadline {
 public:
  ThreadDeadline(std::chrono::nanoseconds budget, unsigned calls_per_look, ThreadClock clock = thread_time)
      : earliest_(clock == thread_time ? std::chrono::steady_clock::now() + budget
                                       : std::chrono::steady_clock::time_point::min()),
        clock_(clock), end_(clock() + budget), calls_per_look_(calls_per_look) {}

  bool was_passed() const { return passed_; }  // at a look before
  bool passed() {
    if (passed_ || ++calls_ % calls_per_look_ != 0) return passed_;
    // No thread runs longer than the time that has gone by, and that is the cheaper one to ask for.
    passed_ = std::chrono::steady_clock::now() > earliest_ && clock_() > end_;
    return passed_;
  }

 private:
  std::chrono::steady_clock::time_point earliest_;
  ThreadClock clock_;
  std::chrono::nanoseconds end_;
  unsigned calls_per_look_;
  unsigned calls_ = 0;
  bool passed_ = false;
};

}  // namespace warpweave
