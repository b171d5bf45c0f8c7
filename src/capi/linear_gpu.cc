#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "capi/gpu.h"
#include "capi/linear_attention.h"
#include "device/cuda/cuda_check.h"
#include "linear/cuda/cuda_device.h"

namespace warpweave::capi {
namespace {

constexpr size_t kAlign = 256;

// A call's memory on the GPU, given back by the stream behind the call.
class CallMemory {
 public:
  explicit CallMemory(cudaStream_t stream) : stream_(stream) {}
  CallMemory(const CallMemory&) = delete;
  ~CallMemory() {
    if (data_ != nullptr) cudaFreeAsync(data_, stream_);
  }
  Status allocate(size_t bytes) { return cuda_status(cudaMallocAsync(&data_, bytes, stream_), "ww_linear_attention"); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  cudaStream_t stream_;
  void* data_ = nullptr;
};

}  // namespace

Status linear_attention_on_gpu(const LinearAttnCall& given) {
  WW_RETURN_IF_ERROR(gpu_hardware_facts().status());
  const GpuGuard guard;
  const auto kernel = linear::make_cuda_linear_kernel(true);  // wgmma where the GPU has it
  LinearAttnCall call = given;
  LinearAttnBatch batch = *given.batch;
  call.batch = &batch;
  const int n = batch.num_requests;
  // One upload of all arrays.
  std::vector<int32_t> arrays;
  const auto put = [&](const int32_t* from, int count) {
    const size_t at = arrays.size();
    if (from != nullptr) arrays.insert(arrays.end(), from, from + count);
    return at;
  };
  const size_t slots = put(batch.slots, n), initial = put(batch.initial_slots, n), indptr = put(batch.q_indptr, n + 1);
  const size_t array_bytes = (arrays.size() * sizeof(int32_t) + kAlign - 1) / kAlign * kAlign;
  call.workspace_bytes = kernel->workspace_bytes(call.shape, {n, batch.num_tokens, 0});
  const auto stream = static_cast<cudaStream_t>(call.stream);
  CallMemory memory(stream);
  WW_RETURN_IF_ERROR(memory.allocate(array_bytes + call.workspace_bytes));
  // From pageable memory, which is read before the call returns.
  WW_RETURN_IF_ERROR(cuda_status(cudaMemcpyAsync(memory.data(), arrays.data(), arrays.size() * sizeof(int32_t),
                                                 cudaMemcpyHostToDevice, stream),
                                 "ww_linear_attention"));
  const auto on_gpu = [&](const int32_t*& array, size_t at) {
    if (array != nullptr) array = reinterpret_cast<const int32_t*>(memory.data()) + at;
  };
  on_gpu(batch.slots, slots), on_gpu(batch.initial_slots, initial), on_gpu(batch.q_indptr, indptr);
  call.workspace = memory.data() + array_bytes;
  given.batch->q_indptr == nullptr ? kernel->decode(call) : kernel->extend(call);
  return cuda_status(cudaGetLastError(), "ww_linear_attention");
}

}  // namespace warpweave::capi
