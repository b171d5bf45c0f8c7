#include "base/threads.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/machine_share.h"

namespace warpweave {
namespace {

// Long enough to bridge the serial code between two loops of a forward, short enough that an idle
// server does not burn a core.
constexpr int kSpinIterations = 4000;

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void pin_current_thread(int index) {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mask) || index-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
    return;
  }
}

}  // namespace

// No more than a container's quota: threads beyond it would only be stopped in turns.
int available_cpus() {
  cpu_set_t mask;
  const bool known = sched_getaffinity(0, sizeof mask, &mask) == 0;
  const int cpus = known ? CPU_COUNT(&mask) : static_cast<int>(std::thread::hardware_concurrency());
  const double quota = cgroup_limits().cpus.value_or(cpus);
  return std::max(1, std::min(cpus, static_cast<int>(std::ceil(quota))));
}

ThreadTeam::ThreadTeam(int threads, bool pin) : ranges_(std::max(1, threads)) {
  try {
    for (int member = 1; member < threads; ++member) {
      workers_.emplace_back([this, member, pin] {
        if (pin) pin_current_thread(member);
        worker_loop(member);
      });
    }
  } catch (...) {  // no memory or no threads left: those that run are not left behind
    stop();
    throw;
  }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() {
  stopping_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::run(FunctionRef<void(int, int)> body) {
  const int members = size();
  if (members > 1) {
    body_ = &body;
    pending_.store(members - 1, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  }
  call(body, 0);
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpinIterations) {
      cpu_relax();
    } else {
      sched_yield();  // more members than free CPUs: let the late one run
    }
  }
  if (!failed_.load(std::memory_order_relaxed)) return;
  failed_.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadTeam::call(const FunctionRef<void(int, int)>& body, int member) noexcept {
  try {
    body(member, size());
  } catch (...) {
    if (!failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
  }
}

void ThreadTeam::parallel_for(int64_t count, int64_t grain,
                              FunctionRef<void(int64_t, int64_t)> body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(1, grain);
  if (size() == 1 || count <= grain) {
    body(0, count);
    return;
  }
  next_chunk_.store(0, std::memory_order_relaxed);
  run([&](int, int) {
    for (;;) {
      const int64_t begin = next_chunk_.fetch_add(grain, std::memory_order_relaxed);
      if (begin >= count) return;
      body(begin, std::min(count, begin + grain));
    }
  });
}

bool ThreadTeam::Range::take(bool last, int64_t* index) {
  uint64_t now = left.load(std::memory_order_relaxed);
  do {
    if (now >> 32 >= (now & 0xffffffff)) return false;
  } while (!left.compare_exchange_weak(now, last ? now - 1 : now + (uint64_t{1} << 32), std::memory_order_relaxed));
  *index = static_cast<int64_t>(last ? (now & 0xffffffff) - 1 : now >> 32);
  return true;
}

void ThreadTeam::parallel_ranges(int64_t count, FunctionRef<void(int, int64_t)> body) {
  const int members = size();
  if (members == 1 || count <= 1) {
    for (int64_t index = 0; index < count; ++index) body(0, index);
    return;
  }
  for (int m = 0; m < members; ++m) {
    const uint64_t begin = count * m / members, end = count * (m + 1) / members;
    ranges_[m].left.store(begin << 32 | end, std::memory_order_relaxed);
  }
  run([&](int member, int) {
    int64_t index;
    while (ranges_[member].take(/*last=*/false, &index)) body(member, index);
    for (int other = 1; other < members; ++other) {
      Range& range = ranges_[(member + other) % members];
      while (range.take(/*last=*/true, &index)) body(member, index);
    }
  });
}

void ThreadTeam::worker_loop(int member) {
  uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; generation_.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < kSpinIterations) {
        cpu_relax();
      } else {
        generation_.wait(seen, std::memory_order_acquire);
        break;
      }
    }
    const uint32_t current = generation_.load(std::memory_order_acquire);
    if (current == seen) continue;
    seen = current;
    if (stopping_) return;
    call(*body_, member);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace warpweave
