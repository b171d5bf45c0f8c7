#include "device/cuda/testing/fake_cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>

namespace warpweave::fake_cuda {
namespace {

constexpr size_t kTotalBytes = size_t{8} << 30;

enum class Kind { device_buffer, pinned_buffer, stream, event, graph, graph_exec };

struct Handle {
  Kind kind = Kind::device_buffer;
  size_t bytes = 0;
};

// Where a test replaces operator new and mmap by what fails, the fake's own memory is not that of the code under test.
template <typename T>
struct OwnMemory {
  using value_type = T;
  OwnMemory() = default;
  template <typename U>
  OwnMemory(const OwnMemory<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(std::malloc(count * sizeof(T))); }
  void deallocate(T* data, size_t) { std::free(data); }
  bool operator==(const OwnMemory&) const = default;
};

struct Runtime {
  std::mutex mutex;
  int64_t fail_at = 0, calls = 0, blas_objects = 0;
  After after = After::works;
  std::string failed;
  std::map<void*, Handle, std::less<void*>, OwnMemory<std::pair<void* const, Handle>>> alive;
  cudaError_t last_error = cudaSuccess;
  void* capturing = nullptr;  // the stream that is being captured
};

Runtime& runtime() {
  static Runtime& it = *new Runtime();  // used by destructors of statics
  return it;
}

cudaError_t set_error(cudaError_t error) {
  std::lock_guard lock(runtime().mutex);
  if (error != cudaSuccess) runtime().last_error = error;
  return error;
}

// What a counted call that does nothing returns.
cudaError_t counted(const char* name, cudaError_t failure = cudaErrorUnknown) {
  return count_call(name) ? set_error(failure) : cudaSuccess;
}

// Whole pages of zeros, of which only those cost something that are touched.
void* make(Kind kind, size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const data = reinterpret_cast<void*>(syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0));
  if (data == MAP_FAILED) std::abort();
  std::lock_guard lock(runtime().mutex);
  runtime().alive[data] = {kind, bytes};
  return data;
}

// Freeing what is not alive ends the test: it was freed twice, or never made.
cudaError_t release(void* data, Kind kind) {
  if (data == nullptr) return cudaSuccess;
  std::lock_guard lock(runtime().mutex);
  const auto found = runtime().alive.find(data);
  if (found == runtime().alive.end() || found->second.kind != kind) std::abort();
  munmap(data, found->second.bytes);
  runtime().alive.erase(found);
  return cudaSuccess;
}

template <typename Handle>
cudaError_t make_handle(const char* name, Kind kind, Handle* out) {
  if (count_call(name)) return set_error(cudaErrorMemoryAllocation);
  *out = static_cast<Handle>(make(kind, 1));
  return cudaSuccess;
}

// Ranks, sizes and strides are the caller's business here: no kernel reads the map.
CUresult encode_nothing() { return CUDA_SUCCESS; }

}  // namespace

void fail_call(int64_t number, After after) {
  std::lock_guard lock(runtime().mutex);
  runtime().after = after;
  runtime().fail_at = number;
  runtime().calls = 0;
  runtime().failed.clear();
}

int64_t calls() {
  std::lock_guard lock(runtime().mutex);
  return runtime().calls;
}

std::string failed_call() {
  std::lock_guard lock(runtime().mutex);
  return runtime().failed;
}

Alive alive() {
  std::lock_guard lock(runtime().mutex);
  Alive out;
  out.blas_objects = runtime().blas_objects;
  for (const auto& [data, handle] : runtime().alive) {
    switch (handle.kind) {
      case Kind::device_buffer: ++out.device_buffers; break;
      case Kind::pinned_buffer: ++out.pinned_buffers; break;
      case Kind::stream: ++out.streams; break;
      case Kind::event: ++out.events; break;
      case Kind::graph: ++out.graphs; break;
      case Kind::graph_exec: ++out.graph_execs; break;
    }
  }
  return out;
}

bool count_call(const char* name) {
  std::lock_guard lock(runtime().mutex);
  ++runtime().calls;
  const bool first = runtime().calls == runtime().fail_at;
  if (first) runtime().failed = name;
  return first || (runtime().after == After::lost && !runtime().failed.empty());
}

void count_blas_object(int change) {
  std::lock_guard lock(runtime().mutex);
  runtime().blas_objects += change;
}

}  // namespace warpweave::fake_cuda

using namespace warpweave::fake_cuda;

extern "C" {

bool ww_fake_cuda_count_call(const char* name) { return count_call(name); }
void ww_fake_cuda_count_blas_object(int change) { count_blas_object(change); }

// Memory.
cudaError_t cudaMalloc(void** out, size_t bytes) {
  if (count_call("cudaMalloc")) return set_error(cudaErrorMemoryAllocation);
  *out = make(Kind::device_buffer, bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** out, size_t bytes, cudaStream_t) { return cudaMalloc(out, bytes); }
cudaError_t cudaFree(void* data) { return release(data, Kind::device_buffer); }
cudaError_t cudaFreeAsync(void* data, cudaStream_t) { return cudaFree(data); }
cudaError_t cudaMallocHost(void** out, size_t bytes) {
  if (count_call("cudaMallocHost")) return set_error(cudaErrorMemoryAllocation);
  *out = make(Kind::pinned_buffer, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) { return release(data, Kind::pinned_buffer); }
cudaError_t cudaHostRegister(void*, size_t, unsigned) { return counted("cudaHostRegister"); }
cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = *total_bytes = kTotalBytes;
  return counted("cudaMemGetInfo");
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (count_call("cudaMemcpy")) return set_error(cudaErrorUnknown);
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
  if (count_call("cudaMemcpyAsync")) return set_error(cudaErrorUnknown);
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t row_bytes, size_t rows,
                         cudaMemcpyKind) {
  if (count_call("cudaMemcpy2D")) return set_error(cudaErrorUnknown);
  for (size_t row = 0; row < rows; ++row) {
    std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, row_bytes);
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t row_bytes,
                              size_t rows, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy2D(to, to_pitch, from, from_pitch, row_bytes, rows, kind);
}
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  if (count_call("cudaMemset")) return set_error(cudaErrorUnknown);
  std::memset(data, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t) {
  return cudaMemset(data, value, bytes);
}

// The device: a Hopper.
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return counted("cudaGetDeviceCount", cudaErrorNoDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return counted("cudaGetDevice");
}
cudaError_t cudaSetDevice(int) { return counted("cudaSetDevice"); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Fake H200");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->sharedMemPerBlockOptin = 227 << 10;
  return counted("cudaGetDeviceProperties");
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 << 10; break;
    case cudaDevAttrL2CacheSize: *value = 60 << 20; break;
    default: *value = 1; break;
  }
  return counted("cudaDeviceGetAttribute");
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return counted("cudaDeviceSynchronize"); }
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = reinterpret_cast<void*>(&encode_nothing);
  *found = cudaDriverEntryPointSuccess;
  return counted("cudaGetDriverEntryPointByVersion");
}

// Errors.
cudaError_t cudaPeekAtLastError() {
  std::lock_guard lock(runtime().mutex);
  return runtime().last_error;
}
cudaError_t cudaGetLastError() {
  std::lock_guard lock(runtime().mutex);
  return std::exchange(runtime().last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "a planted failure";
}
const char* cudaGetErrorName(cudaError_t) { return "cudaErrorPlanted"; }

// Streams and events.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) {
  return make_handle("cudaStreamCreateWithFlags", Kind::stream, reinterpret_cast<void**>(out));
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return release(stream, Kind::stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return counted("cudaStreamSynchronize"); }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return counted("cudaStreamWaitEvent"); }
cudaError_t cudaEventCreate(cudaEvent_t* out) {
  return make_handle("cudaEventCreate", Kind::event, reinterpret_cast<void**>(out));
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) { return cudaEventCreate(out); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return release(event, Kind::event); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return counted("cudaEventRecord"); }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return counted("cudaEventSynchronize"); }
cudaError_t cudaEventQuery(cudaEvent_t) { return counted("cudaEventQuery"); }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 1;
  return counted("cudaEventElapsedTime");
}

// Graphs.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (count_call("cudaStreamBeginCapture")) return set_error(cudaErrorUnknown);
  std::lock_guard lock(runtime().mutex);
  runtime().capturing = stream;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = nullptr;
  {
    std::lock_guard lock(runtime().mutex);
    runtime().capturing = nullptr;
  }
  return make_handle("cudaStreamEndCapture", Kind::graph, reinterpret_cast<void**>(graph));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (count_call("cudaStreamIsCapturing")) return set_error(cudaErrorUnknown);
  std::lock_guard lock(runtime().mutex);
  *status = stream != nullptr && runtime().capturing == stream ? cudaStreamCaptureStatusActive
                                                               : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t, unsigned long long) {
  return make_handle("cudaGraphInstantiate", Kind::graph_exec, reinterpret_cast<void**>(exec));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 0;
  return counted("cudaGraphGetNodes");
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t, cudaGraphNodeType*) { return counted("cudaGraphNodeGetType"); }
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return counted("cudaGraphUpload"); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return counted("cudaGraphLaunch"); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return release(exec, Kind::graph_exec); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return release(graph, Kind::graph); }

// Kernels.
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
  return counted("cudaLaunchKernel", cudaErrorLaunchOutOfResources);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) {
  return counted("cudaLaunchKernelExC", cudaErrorLaunchOutOfResources);
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return counted("cudaFuncSetAttribute"); }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return counted("cudaFuncGetAttributes");
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 1;
  return counted("cudaOccupancyMaxActiveBlocksPerMultiprocessor");
}

// What the compiler puts into every object with kernels.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }
unsigned __cudaPushCallConfiguration(dim3, dim3, size_t, void*) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return cudaSuccess; }
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void*) {
  *kernel = nullptr;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) {
  return counted("cudaLaunchKernel", cudaErrorLaunchOutOfResources);
}

}  // extern "C"
