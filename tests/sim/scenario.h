// What a seed stands for: a configuration and the requests that will come.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/scheduler.h"

namespace warpweave::sim {

// splitmix64: small, fast, the same everywhere.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int between(int low, int high) {  // inclusive
    return low + static_cast<int>(next() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(1, 100) <= percent; }

 private:
  uint64_t state_;
};

struct Client {
  ScheduledRequestSpec spec;
  int salt = 0;
  // What a run of this request alone gives: prompt and max_new_tokens tokens, stop ignored.
  std::vector<int32_t> sequence;
  int output_len = 0;                     // with stop tokens heeded
  bool stops = false;                     // by a stop token, else by length
};

struct Scenario {
  SchedulerConfig config;
  int vocab_size = 0;
  int arrival_percent = 0;   // per iteration
  int abort_percent = 0;
  int flush_percent = 0;
  int right_proposal_percent = 50;
  int device_error_per_mille = 0;
  std::vector<Client> clients;
};

Scenario make_scenario(Rng& rng);

}  // namespace warpweave::sim
