#include "capi/gpu.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "capi/gpu_merge.h"
#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/current_device.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "device/cuda/stream_memory.h"
#include "ops/cuda/gpu_ops.h"

namespace warpweave::capi {
namespace {

constexpr size_t kAlignment = 16;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

cudaStream_t as_stream(void* stream) { return static_cast<cudaStream_t>(stream); }

}  // namespace

struct GpuArrays::Memory {
  std::vector<std::byte> staged;
  DeviceBuffer buffer;
  CudaEvent uploaded, last_run;
  void* stream = nullptr;       // of the upload
  bool run_elsewhere = false;   // since the upload, on another stream
};

GpuArrays::GpuArrays() : memory_(std::make_unique<Memory>()) {}
GpuArrays::~GpuArrays() = default;

GpuGuard::GpuGuard() {
  const Result<int> before = current_device("device");
  before_ = before.ok() ? *before : 0;
  if (before_ != 0) use_device(0);
}
GpuGuard::~GpuGuard() {
  if (before_ != 0) use_device(before_);
}

Result<HardwareFacts> gpu_hardware_facts() {
  const GpuGuard guard;
  WW_ASSIGN_OR_RETURN(const CudaDeviceInfo info, probe_cuda_device());
  const std::optional<DeviceArch> arch = arch_of_compute_capability(info.compute_capability);
  if (!arch) {
    return Status::unsupported(fmt::format("{} has compute capability {}, which is not known here",
                                           info.name, info.compute_capability),
                               "device");
  }
  return HardwareFacts{info.name, *arch, info.driver_version};
}

Result<uint64_t> gpu_capture_of(void* stream) {
  return capture_of(stream);
}

Status GpuArrays::upload(ForwardBatch& batch, void* stream) {
  Memory& memory = *memory_;
  if (!memory.uploaded) {
    WW_ASSIGN_OR_RETURN(memory.uploaded, create_event());
    WW_ASSIGN_OR_RETURN(memory.last_run, create_event());
  }
  std::vector<std::byte>& staged = memory.staged;
  staged.clear();
  auto stage = [&](auto array) {
    const size_t at = staged.size();
    staged.resize(at + aligned(array.size_bytes()));
    if (!array.empty()) std::memcpy(staged.data() + at, array.data(), array.size_bytes());
    return at;
  };
  const size_t q_indptr = stage(batch.q_indptr), kv_lens = stage(batch.kv_lens),
               positions = stage(batch.positions), kv_slots = stage(batch.kv_slots),
               page_table = stage(batch.page_table), tree_mask = stage(batch.tree_mask);
  if (staged.size() > memory.buffer.size_bytes()) {
    // The old arrays may still be read.
    WW_RETURN_IF_ERROR(wait_for_device("ww_batch"));
    memory.buffer = {};
    WW_ASSIGN_OR_RETURN(memory.buffer, DeviceBuffer::allocate(2 * staged.size(), "ww_batch"));
  }
  if (memory.run_elsewhere) {
    WW_RETURN_IF_ERROR(let_stream_wait(as_stream(stream), memory.last_run.get(), "ww_batch"));
  }
  std::byte* const base = memory.buffer.as<>();
  if (!staged.empty()) {
    // From pageable memory: the call returns when `staged` has been read.
    WW_RETURN_IF_ERROR(copy_async(base, staged.data(), staged.size(), as_stream(stream), "ww_batch"));
  }
  WW_RETURN_IF_ERROR(record_event(memory.uploaded.get(), as_stream(stream), "ww_batch"));
  memory.stream = stream;
  memory.run_elsewhere = false;
  batch.device = {};
  batch.device.stream = stream;
  batch.device.q_indptr = reinterpret_cast<const int32_t*>(base + q_indptr);
  batch.device.kv_lens = reinterpret_cast<const int32_t*>(base + kv_lens);
  batch.device.positions = reinterpret_cast<const int32_t*>(base + positions);
  batch.device.kv_slots = reinterpret_cast<const int32_t*>(base + kv_slots);
  batch.device.page_table = reinterpret_cast<const int32_t*>(base + page_table);
  if (!batch.tree_mask.empty()) {
    batch.device.tree_mask = reinterpret_cast<const uint32_t*>(base + tree_mask);
  }
  return {};
}

Status GpuArrays::before_run(void* stream, bool capturing) {
  if (capturing) {
    return wait_in_capture(memory_->uploaded.get(), "ww_plan_run in a capture");
  }
  if (stream == memory_->stream) return {};
  return let_stream_wait(as_stream(stream), memory_->uploaded.get(), "ww_plan_run");
}

Status GpuArrays::after_run(void* stream, bool capturing) {
  if (capturing || stream == memory_->stream) return {};
  memory_->run_elsewhere = true;
  return record_event(memory_->last_run.get(), as_stream(stream), "ww_plan_run");
}

// The kernel of the model's forward stores rows that hold k and v side by side.
Status append_kv_on_gpu(const GpuAppend& append) {
  const GpuGuard guard;
  const int64_t rows = append.k.rows;
  if (rows == 0) return {};
  WW_ASSIGN_OR_RETURN(const uint64_t capture, gpu_capture_of(append.stream));
  if (capture != 0) {
    return Status::unsupported("ww_append_kv: its slots come from the host, so it cannot be captured into a graph",
                               "stream");
  }
  const size_t half_bytes = static_cast<size_t>(append.k.heads) * append.k.dim * dtype_info(append.k.dtype).block_bytes;
  const size_t row_bytes = 2 * half_bytes;
  const size_t slots_at = aligned(static_cast<size_t>(rows) * row_bytes);
  StreamMemory memory(append.stream);
  WW_RETURN_IF_ERROR(memory.allocate(slots_at + static_cast<size_t>(rows) * sizeof(int32_t), "ww_append_kv"));
  const cudaStream_t stream = as_stream(append.stream);
  std::byte* to = memory.data();
  for (const RowsView* from : {&append.k, &append.v}) {
    const size_t pitch = static_cast<size_t>(from->row_stride) * dtype_info(from->dtype).block_bytes;
    WW_RETURN_IF_ERROR(copy_rows_async({to, row_bytes, from->data, rows > 1 ? pitch : half_bytes, half_bytes,
                                        static_cast<size_t>(rows)}, stream, "ww_append_kv"));
    to += half_bytes;
  }
  const std::vector<int32_t> slots(append.slots, append.slots + rows);
  auto* const device_slots = reinterpret_cast<int32_t*>(memory.data() + slots_at);
  WW_RETURN_IF_ERROR(copy_async(device_slots, slots.data(), slots.size() * sizeof(int32_t), stream, "ww_append_kv"));
  gpu::QkvRowsCall call;
  call.qkv = memory.data();
  call.dtype = append.k.dtype;
  call.rows = rows;
  call.num_kv_heads = append.spec.num_kv_heads;
  call.head_dim = append.spec.head_dim;
  call.kv_slots = device_slots;
  call.page_size = std::max(1, append.spec.page_size);
  call.k_out = append.kv.k;
  call.v_out = append.kv.v;
  gpu::norm_rope_write_kv(call, append.stream);
  return launch_status("ww_append_kv");
}

Status merge_states_on_gpu(const GpuMerge& merge) {
  const GpuGuard guard;
  if (merge.rows == 0) return {};
  return cuda_status(launch_merge_states(merge, as_stream(merge.stream)), "ww_merge_states");
}

}  // namespace warpweave::capi
