// Rows of a step in whose sampling on the GPU the host has a part: grammars' masks, penalties, biases, words and ids
// that are forbidden or allowed, log-probabilities. The host makes what they need while the step's forward runs. Not
// thread-safe; used by the engine's thread, on one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "device/cuda/memory.h"
#include "sample/cuda/edit_packer.h"
#include "warpweave/status.h"

namespace warpweave {

class GpuEditedRows {
 public:
  // Memory for so many rows of a step; the rest grows with what they ask for.
  Status reserve(int max_rows, int vocab_size);

  // Where a step's logits are, and where its tokens go: GPU memory, [.., vocab_size] and by sample slot.
  struct Call {
    std::span<const gpu::EditedSample> rows;
    float* logits = nullptr;
    int32_t* tokens = nullptr;
    gpu::SharedMaximum* maxima = nullptr;  // as SampleCall's
    ThreadTeam* team = nullptr;  // prepares the rows
  };
  // Prepares the rows (waiting for grammars, not for the stream) and enqueues edits, sampling, and the copy of their
  // log-probabilities to the host. One call a step. By then what the call before enqueued must have run, as its memory
  // is used again, finish() must have taken its results, and the rows' states must have its tokens.
  Status launch(const Call& call, cudaStream_t stream);

  // Once the stream has done what the last launch enqueued: its rows' log-probabilities, and which had no token
  // allowed. `sampled`: by slot, with their tokens.
  void finish(std::span<SampledRow> sampled) const;

 private:
  // Memory of the host and of the GPU for the same values.
  struct Pair {
    PinnedBuffer host;
    DeviceBuffer device;
    Status reserve(size_t size_bytes);
    // Copies `values` in and enqueues them.
    template <typename T>
    Status send(std::span<const T> values, cudaStream_t stream);
  };

  int vocab_size_ = 0, mask_words_ = 0;
  gpu::EditPacker packer_;
  Pair masks_, params_, rows_, edits_, wanted_, scores_;
  DeviceBuffer old_values_, log_sums_;
};

}  // namespace warpweave
