#include "sample/cuda/edit_kernel.cuh"

#include <cuda_runtime.h>

#include <algorithm>

#include "ops/cuda/launch.cuh"

namespace warpweave::gpu {
namespace {

// A thread then reads 16 bytes twice. With fewer, CTAs take longer to meet than to read.
constexpr int kLeastSliceIds = 8 * kSampleThreads;

int slices_of_row(const SampleCall& call) {
  if (call.maxima == nullptr) return 1;
  return std::clamp(num_sms() / call.num_rows, 1, (call.vocab_size + kLeastSliceIds - 1) / kLeastSliceIds);
}

}  // namespace

void sample_rows(const SampleCall& call, void* stream) {
  if (call.num_rows == 0) return;
  const int slices = slices_of_row(call);
  const auto ctas = static_cast<unsigned>(call.num_rows * slices);
  launch_dependent({ctas, kSampleThreads, 0, static_cast<cudaStream_t>(stream)}, sample_kernel, call, slices);
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
