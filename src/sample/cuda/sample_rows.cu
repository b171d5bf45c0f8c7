#include "sample/cuda/edit_kernel.cuh"

#include <cuda_runtime.h>

namespace warpweave::gpu {

void sample_rows(const SampleCall& call, void* stream) {
  if (call.num_rows == 0) return;
  sample_kernel<<<call.num_rows, kSampleThreads, 0, static_cast<cudaStream_t>(stream)>>>(call);
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
