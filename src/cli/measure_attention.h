// Times of attention backends, for `bench attention` and `tune`: one layer's forward over a pool with
// pages in random order. On the CPU timed by the wall clock: run on an idle machine. On a GPU timed by
// its own clock, as graph replays over as many layers' pools as keep the KV out of the cache.
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

// Of K and V of one token and layer together, in the pool.
int64_t token_bytes(const TuningShape& shape);

struct MeasureOptions {
  int page_size = 64;
  int max_repeats = 15;
  double max_seconds = 1.0;  // per point, beside the first run; at least 3 repeats are timed
};

// The batch of a point and the host arrays that it refers to; every request has pages of its own, shuffled.
struct MeasuredArrays {
  std::vector<int32_t> page_table, q_indptr = {0}, kv_lens, slots, positions;
};
ForwardBatch measured_batch(const AttentionPoint& point, int page_size, MeasuredArrays& arrays);

// Median microseconds of one layer. The backend was created for options.page_size.
Result<double> measure_attention(AttentionBackend& backend, const TuningShape& shape,
                                 const AttentionPoint& point, const MeasureOptions& options);

// The same on the current GPU; `unsupported` where the program has no GPU code.
Result<double> measure_attention_on_gpu(AttentionBackend& backend, const TuningShape& shape,
                                        const AttentionPoint& point, const MeasureOptions& options);

// What this machine can do at most, measured with all threads of the team.
struct MachineLimits {
  double read_gb_per_s = 0;
  double gflop_per_s = 0;      // of the fastest multiply-add instruction measured; 0: none was
  std::string instruction;     // "bf16 dot", "f32 fma"
};
MachineLimits measure_machine(ThreadTeam& team);

}  // namespace warpweave
