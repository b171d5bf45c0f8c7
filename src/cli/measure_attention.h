// Times of attention backends on the CPU, for `bench attention` and `tune`: one layer's forward over a
// pool with pages in random order. Timed by the wall clock: run on an idle machine.
#pragma once

#include <string>
#include <vector>

#include "attention/backend.h"
#include "attention/tuning.h"
#include "base/threads.h"

namespace warpweave {

struct AttentionPoint {
  AttentionPhase phase = AttentionPhase::decode;
  int batch_size = 1;
  int q_len = 1;    // rows per request, 1 in decode
  int kv_len = 0;

  // Bytes of K and V read, and multiply-adds times two under the causal mask, for this shape.
  double kv_bytes(const TuningShape& shape) const;
  double flops(const TuningShape& shape) const;
  std::string text() const;  // "decode b16 kv 4096"
};

struct MeasureOptions {
  int page_size = 64;
  int max_repeats = 15;
  double max_seconds = 1.0;  // per point, beside the first run; at least 3 repeats are timed
};

// Median microseconds of one layer. The backend was created for options.page_size.
Result<double> measure_attention(AttentionBackend& backend, const TuningShape& shape,
                                 const AttentionPoint& point, const MeasureOptions& options);

// What this machine can do at most, measured with all threads of the team.
struct MachineLimits {
  double read_gb_per_s = 0;
  double gflop_per_s = 0;      // of the fastest multiply-add instruction measured; 0: none was
  std::string instruction;     // "bf16 dot", "f32 fma"
};
MachineLimits measure_machine(ThreadTeam& team);

}  // namespace warpweave
