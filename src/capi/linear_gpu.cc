#include <cuda_runtime_api.h>

#include <atomic>
#include <vector>

#include "capi/gpu.h"
#include "capi/linear_attention.h"
#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/stream_memory.h"
#include "linear/cuda/cuda_device.h"

namespace warpweave::capi {
namespace {

constexpr size_t kAlign = 256;
constexpr char kCall[] = "ww_linear_attention";

// Once a process: it reads all of the GPU's properties, which is much beside a step of one layer.
Status check_gpu() {
  static std::atomic<bool> usable = false;
  if (usable) return {};
  WW_RETURN_IF_ERROR(gpu_hardware_facts().status());
  usable = true;
  return {};
}

}  // namespace

Status linear_attention_on_gpu(const LinearAttnCall& given) {
  WW_RETURN_IF_ERROR(check_gpu());
  const GpuGuard guard;
  WW_ASSIGN_OR_RETURN(const uint64_t capture, gpu_capture_of(given.stream));
  if (capture != 0) {
    return Status::unsupported(
        "ww_linear_attention: its lengths and slots come from the host, so it cannot be captured into a graph",
        "stream");
  }
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
  StreamMemory memory(call.stream);
  WW_RETURN_IF_ERROR(memory.allocate(array_bytes + call.workspace_bytes, kCall));
  // From pageable memory, which is read before the call returns.
  WW_RETURN_IF_ERROR(copy_async(memory.data(), arrays.data(), arrays.size() * sizeof(int32_t), call.stream, kCall));
  const auto on_gpu = [&](const int32_t*& array, size_t at) {
    if (array != nullptr) array = reinterpret_cast<const int32_t*>(memory.data()) + at;
  };
  on_gpu(batch.slots, slots), on_gpu(batch.initial_slots, initial), on_gpu(batch.q_indptr, indptr);
  call.workspace = memory.data() + array_bytes;
  given.batch->q_indptr == nullptr ? kernel->decode(call) : kernel->extend(call);
  return launch_status(kCall);
}

}  // namespace warpweave::capi
