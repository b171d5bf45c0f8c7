#include "capi/gpu.h"
#include "capi/linear_attention.h"
#include "device/cuda/cuda_device.h"

namespace warpweave::capi {
namespace {

Status no_kernels() { return Status::unsupported("this library was built without GPU kernels", "device"); }

}  // namespace

struct GpuArrays::Memory {};

GpuArrays::GpuArrays() = default;
GpuArrays::~GpuArrays() = default;
GpuGuard::GpuGuard() = default;
GpuGuard::~GpuGuard() = default;

Result<HardwareFacts> gpu_hardware_facts() { return probe_cuda_device().status(); }
Result<uint64_t> gpu_capture_of(void*) { return no_kernels(); }
Status GpuArrays::upload(ForwardBatch&, void*) { return no_kernels(); }
Status GpuArrays::before_run(void*, bool) { return no_kernels(); }
Status GpuArrays::after_run(void*, bool) { return no_kernels(); }
Status append_kv_on_gpu(const GpuAppend&) { return no_kernels(); }
Status merge_states_on_gpu(const GpuMerge&) { return no_kernels(); }
Status linear_attention_on_gpu(const LinearAttnCall&) { return no_kernels(); }

}  // namespace warpweave::capi
