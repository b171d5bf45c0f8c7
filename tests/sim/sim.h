// One random schedule: scheduler, page pool, radix tree and batch builder against a fake model.
//
// The fake model's KV pool stores (token, position, salt) per slot; the next token is a hash of
// what it reads back through the page table. A page that is shared, freed, copied or handed on
// wrongly therefore shows as a wrong slot or a wrong token. Steps run as late as the overlap
// allows and free pages are poisoned at once, so a page given away too early is seen, too.
// Everything follows from the seed: the same seed gives the same run.
#pragma once

#include <cstdint>
#include <string>

namespace warpweave::sim {

struct Outcome {
  std::string error;  // empty: every check held
  int64_t steps = 0;
  int64_t tokens = 0;       // sampled and accepted
  int64_t requests = 0;
  int64_t retractions = 0;
  int64_t cached_tokens = 0;
  int64_t accepted = 0;     // proposals
  int64_t copies = 0;       // tail pages copied
  int64_t wasted_rows = 0;  // rows of requests that had ended
  int64_t rejected = 0;
  int64_t aborted = 0;
  int64_t evicted_tokens = 0;
  uint64_t decisions = 0;   // decisions.h
};

Outcome run_schedule(uint64_t seed, bool trace);

}  // namespace warpweave::sim
