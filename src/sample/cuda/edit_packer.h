// The host's part in sampling rows on a GPU whose logits are edited before, or whose log-probabilities are wanted:
// their masks, edits and wishes as the arrays of EditCall (gpu_sampler.h), and what came back as SampledRows. No CUDA
// in it. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/threads.h"
#include "sample/cuda/gpu_sampler.h"
#include "sample/sampler.h"

namespace warpweave::gpu {

// Of a row of logits that is sampled `depth` tokens after the request's first one of the step.
SampleRowParams sample_params(const SampleRow& row, int logits_row, int depth);

// A row, and where among the step's samples its token belongs.
struct EditedSample {
  SampleRow row;
  int slot = 0;
};

class EditPacker {
 public:
  // Whether the host has a part in the row.
  static bool takes(const SampleRow& row) { return row.want_logprobs || row.state->needs_logit_edit(); }

  // `masks`: room for a mask of each row. Waits for grammars; the rows' states must have the tokens of the step before.
  void pack(std::span<const EditedSample> rows, int vocab_size, std::span<uint32_t> masks, ThreadTeam& team);

  std::span<const EditedRow> rows() const { return rows_; }
  std::span<const SampleRowParams> params() const { return params_; }
  std::span<const LogitEdit> edits() const { return edits_; }
  std::span<const int32_t> wanted() const { return wanted_; }
  int num_masks() const { return num_masks_; }
  int num_scores() const { return num_scores_; }

  // Fills in the log-probabilities of the rows packed last, whose tokens are in `sampled` (by slot), and says which had
  // no token that was allowed (kNoAllowedToken). `scores`: num_scores() of them.
  void unpack(std::span<const TokenScore> scores, std::span<SampledRow> sampled) const;

 private:
  struct Prepared {
    SamplerState::Edits edits;
    bool none_allowed = false;
  };
  void add_edits(const SamplerState::Edits& edits, EditedRow& row);

  std::vector<EditedRow> rows_;
  std::vector<SampleRowParams> params_;
  std::vector<LogitEdit> edits_;
  std::vector<int32_t> wanted_;
  std::vector<Prepared> prepared_;  // by row
  int num_masks_ = 0, num_scores_ = 0;
};

}  // namespace warpweave::gpu
