#include "sample/cuda/sample_kernel.cuh"

#include <cuda_runtime.h>

namespace warpweave::gpu {

void sample_rows(const SampleRowParams* rows, int num_rows, const float* logits, int vocab_size, int32_t* out,
                 void* stream) {
  if (num_rows == 0) return;
  sample_kernel<<<num_rows, kSampleThreads, 0, static_cast<cudaStream_t>(stream)>>>(rows, logits, vocab_size, out);
}

}  // namespace warpweave::gpu
