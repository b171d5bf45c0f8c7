#include "capi/gpu.h"

#include <fmt/format.h>

#include <span>

#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/memory.h"

namespace warpweave::capi {
namespace {

constexpr size_t kAlignment = 16;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

struct GpuArrays::Memory {
  DeviceBuffer buffer;
};

GpuArrays::GpuArrays() : memory_(std::make_unique<Memory>()) {}
GpuArrays::~GpuArrays() = default;

Result<HardwareFacts> gpu_hardware_facts() {
  WW_ASSIGN_OR_RETURN(const CudaDeviceInfo info, probe_cuda_device());
  const std::optional<DeviceArch> arch = arch_of_compute_capability(info.compute_capability);
  if (!arch) {
    return Status::unsupported(fmt::format("{} has compute capability {}, which is not known here",
                                           info.name, info.compute_capability),
                               "device");
  }
  return HardwareFacts{info.name, *arch, info.driver_version};
}

Status GpuArrays::upload(ForwardBatch& batch, void* stream) {
  const size_t bytes =
      aligned(batch.q_indptr.size_bytes()) + aligned(batch.kv_lens.size_bytes()) +
      aligned(batch.positions.size_bytes()) + aligned(batch.kv_slots.size_bytes()) +
      aligned(batch.page_table.size_bytes()) + aligned(batch.tree_mask.size_bytes());
  if (bytes > memory_->buffer.size_bytes()) {
    // The old arrays may still be read by work on the stream.
    WW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "ww_batch");
    memory_->buffer = {};
    WW_ASSIGN_OR_RETURN(memory_->buffer, DeviceBuffer::allocate(2 * bytes, "ww_batch"));
  }
  std::byte* next = memory_->buffer.as<>();
  Status status;
  // From pageable memory: the call returns when the host array has been read.
  auto copy = [&](auto array) {
    const auto* at = reinterpret_cast<decltype(array.data())>(next);
    if (status.ok() && !array.empty()) {
      status =
          cuda_status(cudaMemcpyAsync(next, array.data(), array.size_bytes(),
                                      cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream)),
                      "ww_batch");
    }
    next += aligned(array.size_bytes());
    return at;
  };
  batch.device = {};
  batch.device.stream = stream;
  batch.device.q_indptr = copy(batch.q_indptr);
  batch.device.kv_lens = copy(batch.kv_lens);
  batch.device.positions = copy(batch.positions);
  batch.device.kv_slots = copy(batch.kv_slots);
  batch.device.page_table = copy(batch.page_table);
  batch.device.tree_mask = batch.tree_mask.empty() ? nullptr : copy(batch.tree_mask);
  return status;
}

}  // namespace warpweave::capi
