#include "device/cuda/testing/failing_cuda.h"

#include <cuda_runtime_api.h>
#include <execinfo.h>

#include <mutex>
#include <set>
#include <utility>

namespace warpweave::failing_cuda {
namespace {

// Of a call: its own place, and for owners' calls who asked them.
using Place = std::pair<void*, void*>;

struct State {
  std::mutex mutex;
  bool armed = false;
  std::string failed;
  std::set<Place> failed_places;
  AliveHandles alive;
};
State& state() {
  static State& it = *new State();  // used by destructors of statics
  return it;
}

// The runtime remembers a failure of this thread; what was not called cannot.
thread_local cudaError_t last_error = cudaSuccess;

enum class Of { itself, owner };

// Whether the call of `name`, two frames up, is the one to fail.
__attribute__((noinline)) bool fails(const char* name, Of of) {
  constexpr int kOwn = 2, kFrames = kOwn + 2;  // this function and the wrapper
  {
    std::lock_guard lock(state().mutex);
    if (!state().armed) return false;
  }
  void* frames[kFrames] = {};
  backtrace(frames, kFrames);
  const Place place = {frames[kOwn], of == Of::owner ? frames[kOwn + 1] : nullptr};
  std::lock_guard lock(state().mutex);
  if (!state().armed || !state().failed_places.insert(place).second) return false;
  state().armed = false;
  state().failed = name;
  return true;
}

cudaError_t failure(cudaError_t error) { return last_error = error; }

void count(int64_t AliveHandles::*kind, int change) {
  std::lock_guard lock(state().mutex);
  state().alive.*kind += change;
}
cudaError_t made(cudaError_t result, int64_t AliveHandles::*kind) {
  if (result == cudaSuccess) count(kind, 1);
  return result;
}

}  // namespace

void fail_next_place() {
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads what it needs now
  std::lock_guard lock(state().mutex);
  state().armed = true;
  state().failed.clear();
}

void fail_nothing() {
  std::lock_guard lock(state().mutex);
  state().armed = false;
  state().failed.clear();
}

std::string failed_call() {
  std::lock_guard lock(state().mutex);
  return state().failed;
}

int num_failed_places() {
  std::lock_guard lock(state().mutex);
  return static_cast<int>(state().failed_places.size());
}

AliveHandles alive() {
  std::lock_guard lock(state().mutex);
  return state().alive;
}

}  // namespace warpweave::failing_cuda

using namespace warpweave;
using namespace warpweave::failing_cuda;

extern "C" {

// A call that makes nothing.
#define WW_WRAP(name, parameters, arguments)                        \
  cudaError_t __real_##name parameters;                             \
  cudaError_t __wrap_##name parameters {                            \
    if (fails(#name, Of::itself)) return failure(cudaErrorUnknown); \
    return __real_##name arguments;                                 \
  }
// One that makes a handle or memory, and one that gives it back.
#define WW_WRAP_MAKE(name, kind, parameters, arguments)                     \
  cudaError_t __real_##name parameters;                                     \
  cudaError_t __wrap_##name parameters {                                    \
    if (fails(#name, Of::owner)) return failure(cudaErrorMemoryAllocation); \
    return made(__real_##name arguments, &AliveHandles::kind);              \
  }
#define WW_WRAP_FREE(name, kind, type)                     \
  cudaError_t __real_##name(type handle);                  \
  cudaError_t __wrap_##name(type handle) {                 \
    if (handle != nullptr) count(&AliveHandles::kind, -1); \
    return __real_##name(handle);                          \
  }

WW_WRAP_MAKE(cudaMalloc, device_buffers, (void** out, size_t bytes), (out, bytes))
WW_WRAP_FREE(cudaFree, device_buffers, void*)
WW_WRAP_MAKE(cudaMallocHost, pinned_buffers, (void** out, size_t bytes), (out, bytes))
WW_WRAP_FREE(cudaFreeHost, pinned_buffers, void*)
WW_WRAP_MAKE(cudaStreamCreateWithFlags, streams, (cudaStream_t * out, unsigned flags), (out, flags))
WW_WRAP_FREE(cudaStreamDestroy, streams, cudaStream_t)
WW_WRAP_MAKE(cudaEventCreate, events, (cudaEvent_t * out), (out))
WW_WRAP_MAKE(cudaEventCreateWithFlags, events, (cudaEvent_t * out, unsigned flags), (out, flags))
WW_WRAP_FREE(cudaEventDestroy, events, cudaEvent_t)
WW_WRAP_MAKE(cudaGraphInstantiate, graph_execs, (cudaGraphExec_t * out, cudaGraph_t graph, unsigned long long flags),
             (out, graph, flags))
WW_WRAP_FREE(cudaGraphExecDestroy, graph_execs, cudaGraphExec_t)
WW_WRAP_FREE(cudaGraphDestroy, graphs, cudaGraph_t)

WW_WRAP(cudaHostRegister, (void* data, size_t bytes, unsigned flags), (data, bytes, flags))
WW_WRAP(cudaMemGetInfo, (size_t * free, size_t* total), (free, total))
WW_WRAP(cudaMemcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind), (to, from, bytes, kind))
WW_WRAP(cudaMemcpyAsync, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
        (to, from, bytes, kind, stream))
WW_WRAP(cudaMemcpy2D,
        (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t row_bytes, size_t rows,
         cudaMemcpyKind kind),
        (to, to_pitch, from, from_pitch, row_bytes, rows, kind))
WW_WRAP(cudaMemcpy2DAsync,
        (void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t row_bytes, size_t rows,
         cudaMemcpyKind kind, cudaStream_t stream),
        (to, to_pitch, from, from_pitch, row_bytes, rows, kind, stream))
WW_WRAP(cudaMemset, (void* data, int value, size_t bytes), (data, value, bytes))
WW_WRAP(cudaMemsetAsync, (void* data, int value, size_t bytes, cudaStream_t stream), (data, value, bytes, stream))

WW_WRAP(cudaGetDeviceCount, (int* count), (count))
WW_WRAP(cudaGetDevice, (int* device), (device))
WW_WRAP(cudaSetDevice, (int device), (device))
WW_WRAP(cudaGetDeviceProperties, (cudaDeviceProp * properties, int device), (properties, device))
WW_WRAP(cudaDeviceGetAttribute, (int* value, cudaDeviceAttr attribute, int device), (value, attribute, device))
WW_WRAP(cudaDeviceSynchronize, (), ())
WW_WRAP(cudaGetDriverEntryPointByVersion,
        (const char* name, void** function, unsigned version, unsigned long long flags,
         cudaDriverEntryPointQueryResult* found),
        (name, function, version, flags, found))

WW_WRAP(cudaStreamSynchronize, (cudaStream_t stream), (stream))
WW_WRAP(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), (stream, event, flags))
WW_WRAP(cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus* status), (stream, status))
WW_WRAP(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
WW_WRAP(cudaEventSynchronize, (cudaEvent_t event), (event))
WW_WRAP(cudaEventQuery, (cudaEvent_t event), (event))
WW_WRAP(cudaEventElapsedTime, (float* ms, cudaEvent_t begin, cudaEvent_t end), (ms, begin, end))
WW_WRAP(cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode), (stream, mode))
WW_WRAP(cudaGraphUpload, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream))
WW_WRAP(cudaGraphLaunch, (cudaGraphExec_t exec, cudaStream_t stream), (exec, stream))

WW_WRAP(cudaLaunchKernel,
        (const void* kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes, cudaStream_t stream),
        (kernel, grid, block, arguments, shared_bytes, stream))
WW_WRAP(__cudaLaunchKernel,
        (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes, cudaStream_t stream),
        (kernel, grid, block, arguments, shared_bytes, stream))
WW_WRAP(cudaLaunchKernelExC, (const cudaLaunchConfig_t* config, const void* kernel, void** arguments),
        (config, kernel, arguments))
WW_WRAP(cudaFuncSetAttribute, (const void* kernel, cudaFuncAttribute attribute, int value), (kernel, attribute, value))
WW_WRAP(cudaFuncGetAttributes, (cudaFuncAttributes * attributes, const void* kernel), (attributes, kernel))
WW_WRAP(cudaOccupancyMaxActiveBlocksPerMultiprocessor,
        (int* blocks, const void* kernel, int threads, size_t shared_bytes), (blocks, kernel, threads, shared_bytes))

// A capture ends even where ending it fails: there is no graph then.
cudaError_t __real_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph);
cudaError_t __wrap_cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const bool planted = fails("cudaStreamEndCapture", Of::itself);
  const cudaError_t ended = __real_cudaStreamEndCapture(stream, graph);
  if (!planted) return *graph != nullptr ? made(ended, &AliveHandles::graphs) : ended;
  if (*graph != nullptr) __real_cudaGraphDestroy(std::exchange(*graph, nullptr));
  return failure(cudaErrorUnknown);
}

cudaError_t __real_cudaPeekAtLastError();
cudaError_t __wrap_cudaPeekAtLastError() {
  return last_error != cudaSuccess ? last_error : __real_cudaPeekAtLastError();
}
cudaError_t __real_cudaGetLastError();
cudaError_t __wrap_cudaGetLastError() {
  const cudaError_t real = __real_cudaGetLastError(), planted = std::exchange(last_error, cudaSuccess);
  return planted != cudaSuccess ? planted : real;
}

}  // extern "C"
