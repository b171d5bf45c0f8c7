// Rows of a step that are sampled on the GPU with a mask that the host makes while the step's forward runs: those of
// grammars, and those whose end must not come yet. Not thread-safe; used by the engine's thread, on one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <span>
#include <vector>

#include "device/cuda/memory.h"
#include "sample/sampler.h"
#include "warpweave/status.h"

namespace warpweave {

class GpuMaskedRows {
 public:
  // Memory for so many rows of a step.
  Status reserve(int max_rows, int vocab_size);

  // Whether a row's edit is a mask and nothing else, and its log-probabilities are not asked for.
  static bool takes(const SampleRow& row) { return !row.want_logprobs && row.state->only_masks(); }

  // Makes the masks of `rows` (waiting for grammars, not for the stream), and enqueues their use on the rows of `logits`,
  // [.., vocab_size] in GPU memory, and the sampling. One call a step; the step before has been waited for.
  Status launch(std::span<const SampleRow> rows, float* logits, cudaStream_t stream);

  // By row of the last launch, once the stream has come so far: as SampledRow::token_id.
  std::span<const int32_t> tokens();

 private:
  int vocab_size_ = 0, mask_words_ = 0;
  DeviceBuffer masks_, params_, tokens_;
  PinnedBuffer host_masks_, host_params_, host_tokens_;
  std::vector<bool> none_allowed_;  // by row
};

}  // namespace warpweave
