// Runs random schedules and checks each after every step; see sim.h.
//   sim --schedules 100000 --seed 1 --threads 2     seeds 1 .. 100000
//   sim --schedules 1 --seed 4711 --trace           one of them again, told step by step
//   sim --expect-failure                            for planted bugs: succeeds when one fails
//   sim --schedules 5000 --decisions 0x123          fails, too, when the scheduler decided otherwise (decisions.h)
// Exit 0: all held. 1: one failed (its seed is printed). 2: wrong usage.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/threads.h"
#include "sim.h"

namespace {

using warpweave::sim::Outcome;

thread_local uint64_t current_seed = 0;
bool expect_failure = false;

// An assert or a crash inside the scheduler is a failure of this seed, too.
void on_crash(int) {
  char line[128];
  const int size = std::snprintf(line, sizeof line,
                                 "FAILED seed %llu: crashed\n  again: sim --schedules 1 --seed "
                                 "%llu --trace\n",
                                 static_cast<unsigned long long>(current_seed),
                                 static_cast<unsigned long long>(current_seed));
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, line, size);
  _exit(expect_failure ? 0 : 1);
}

void add(Outcome& sum, const Outcome& one) {
  sum.steps += one.steps;
  sum.tokens += one.tokens;
  sum.requests += one.requests;
  sum.retractions += one.retractions;
  sum.cached_tokens += one.cached_tokens;
  sum.accepted += one.accepted;
  sum.copies += one.copies;
  sum.wasted_rows += one.wasted_rows;
  sum.rejected += one.rejected;
  sum.aborted += one.aborted;
  sum.evicted_tokens += one.evicted_tokens;
  sum.decisions += one.decisions;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t first_seed = 1, schedules = 100000;
  int threads = warpweave::available_cpus();
  bool trace = false;
  std::optional<uint64_t> wanted_decisions;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--trace") {
      trace = true;
    } else if (flag == "--expect-failure") {
      expect_failure = true;
    } else if (i + 1 < argc && flag == "--seed") {
      first_seed = std::strtoull(argv[++i], nullptr, 10);
    } else if (i + 1 < argc && flag == "--schedules") {
      schedules = std::strtoull(argv[++i], nullptr, 10);
    } else if (i + 1 < argc && flag == "--decisions") {
      wanted_decisions = std::strtoull(argv[++i], nullptr, 0);
    } else if (i + 1 < argc && flag == "--threads") {
      threads = std::max(1, std::atoi(argv[++i]));
    } else {
      std::fprintf(stderr, "usage: %s [--schedules N] [--seed S] [--threads T] [--trace]"
                   " [--decisions D] [--expect-failure]\n",
                   argv[0]);
      return 2;
    }
  }
  std::signal(SIGABRT, on_crash);
  std::signal(SIGSEGV, on_crash);

  const auto start = std::chrono::steady_clock::now();
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  Outcome sum;
  const auto work = [&] {
    Outcome own;
    for (uint64_t i; !failed && (i = next++) < schedules;) {
      current_seed = first_seed + i;
      const Outcome one = warpweave::sim::run_schedule(current_seed, trace);
      add(own, one);
      if (one.error.empty()) continue;
      failed = true;
      std::lock_guard lock(mutex);
      std::printf("FAILED seed %llu: %s\n  again: sim --schedules 1 --seed %llu --trace\n",
                  static_cast<unsigned long long>(current_seed), one.error.c_str(),
                  static_cast<unsigned long long>(current_seed));
    }
    std::lock_guard lock(mutex);
    add(sum, own);
  };
  std::vector<std::thread> workers;
  for (int i = 1; i < threads; ++i) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  if (failed) return expect_failure ? 0 : 1;

  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%llu schedules held in %.1f s on %d threads: %lld steps, %lld requests, %lld tokens,\n"
              "  %lld retractions, %lld cached tokens, %lld copied tails, %lld wasted rows,\n"
              "  %lld refused, %lld aborted, %lld evicted tokens, %lld accepted proposals\n",
              static_cast<unsigned long long>(schedules), seconds, threads,
              static_cast<long long>(sum.steps), static_cast<long long>(sum.requests),
              static_cast<long long>(sum.tokens), static_cast<long long>(sum.retractions),
              static_cast<long long>(sum.cached_tokens), static_cast<long long>(sum.copies),
              static_cast<long long>(sum.wasted_rows), static_cast<long long>(sum.rejected),
              static_cast<long long>(sum.aborted), static_cast<long long>(sum.evicted_tokens),
              static_cast<long long>(sum.accepted));
  std::printf("  decisions 0x%llx\n", static_cast<unsigned long long>(sum.decisions));
  if (wanted_decisions && *wanted_decisions != sum.decisions) {
    std::printf(
        "FAILED the scheduler decided otherwise than in 0x%llx: a change that is meant to, of when requests run\n"
        "or what is cached, gives the test the new number; any other has a bug\n",
        static_cast<unsigned long long>(*wanted_decisions));
    return expect_failure ? 0 : 1;
  }
  return expect_failure ? 1 : 0;
}
