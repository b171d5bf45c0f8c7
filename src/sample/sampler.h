// The sampler: one call per step, after the model's forward, on the device thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "ops/linear.h"
#include "sample/row_sampler.h"
#include "sample/sampler_state.h"

namespace warpweave {

// One row of logits that becomes a token.
struct SampleRow {
  SamplerState* state = nullptr;  // not owned
  int logits_row = 0;
  uint64_t position = 0;          // of the token to come; seeds the draw
  int top_logprobs_num = 0;
  bool want_logprobs = false;
  std::span<const int32_t> logprob_ids;  // further ids whose logprob is wanted
  AcceptThresholds accept = {};           // of guesses
  std::span<const int32_t> guesses = {};  // of the token to come; read where `accept` is lossy
};

struct SampledRow {
  int32_t token_id = 0;       // negative: kNoToken or kNoAllowedToken, and no logprobs
  PositionLogprobs logprobs;  // filled if asked
};

// What the forward says about its rows.
struct SampleLogits {
  std::span<const float> values;   // [rows, vocab], raw
  std::span<const RowBest> best;   // [rows] argmax
  int vocab_size = 0;
};

class Sampler {
 public:
  explicit Sampler(ThreadTeam& team) : team_(team), scratch_(team.size()) {}

  // Results go to out[i] for rows[i]; each state learns its token.
  void sample(std::span<const SampleRow> rows, const SampleLogits& logits,
              std::span<SampledRow> out);

 private:
  void sample_one(const SampleRow& row, std::span<const float> logits, RowScratch& scratch,
                  SampledRow& out) const;

  ThreadTeam& team_;
  std::vector<RowScratch> scratch_;
  std::vector<size_t> reading_;  // rows that need their logits
};

}  // namespace warpweave
