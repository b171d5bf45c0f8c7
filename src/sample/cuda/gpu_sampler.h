// Sampling on the GPU: the choices of sample_row() (row_sampler.h) for rows of logits that stay there.
//
// Greedy rows give the CPU's token. Others keep the same candidates (temperature, top_k, top_p,
// min_p, ties to the lower id) and take one draw, but walk them by id where the CPU walks heaviest
// first, so that the same draw may give another token of the same distribution. Penalties, biases
// and logprobs are the CPU sampler's business. Results do not depend on the other rows. As there, a
// row with a NaN, or of only -inf, gives -1 (kNoToken).
#pragma once

#include <cstdint>

namespace warpweave::gpu {

struct SampleRowParams {
  double draw = 0;          // in [0, 1)
  int32_t logits_row = -1;  // -1: padding, gives token 0
  float temperature = 0;    // 0: greedy
  int32_t top_k = -1;       // < 1: all
  float top_p = 1;
  float min_p = 0;
};

// rows: [num_rows] in GPU memory; logits: [.., vocab_size] f32; out: [num_rows]. Only enqueues.
void sample_rows(const SampleRowParams* rows, int num_rows, const float* logits, int vocab_size, int32_t* out,
                 void* stream);

// Sets the logits of what a row's mask forbids to -inf, in place.
struct MaskLogitsCall {
  const SampleRowParams* rows = nullptr;  // [num_rows] in GPU memory; of each only logits_row
  int num_rows = 0;
  const uint32_t* masks = nullptr;        // [num_rows, mask_words] in GPU memory: bit i % 32 of word i / 32: id i is allowed
  int mask_words = 0;
  float* logits = nullptr;                // [.., vocab_size]
  int vocab_size = 0;
};
void mask_logits(const MaskLogitsCall& call, void* stream);

}  // namespace warpweave::gpu
