#include "sample/cuda/edit_kernel.cuh"

#include <cuda_runtime.h>

namespace warpweave::gpu {

void sample_rows(const SampleRowParams* rows, int num_rows, const float* logits, int vocab_size, int32_t* out,
                 void* stream) {
  if (num_rows == 0) return;
  sample_kernel<<<num_rows, kSampleThreads, 0, static_cast<cudaStream_t>(stream)>>>(rows, logits, vocab_size, out);
}

void edit_logits(const EditCall& call, void* stream) {
  const auto on = static_cast<cudaStream_t>(stream);
  if (call.num_scores > 0) score_kernel<<<call.num_rows, kSampleThreads, 0, on>>>(call);
  if (call.num_edits > 0) edit_kernel<<<call.num_rows, kSampleThreads, 0, on>>>(call);
  if (call.num_masks == 0) return;
  const dim3 grid((call.vocab_size + kSampleThreads - 1) / kSampleThreads, call.num_rows);
  mask_kernel<<<grid, kSampleThreads, 0, on>>>(call);
}

void score_chosen(const EditCall& call, void* stream) {
  if (call.num_scores == 0) return;
  chosen_kernel<<<call.num_rows, kSampleThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
}

}  // namespace warpweave::gpu
