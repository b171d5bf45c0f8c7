// Start and end of every kernel a program runs, those of CUDA graphs included, through CUPTI: a library the driver
// loads into the program.
//
//   g++ -O2 -shared -fPIC kernel_trace.cc -o libkernel_trace.so -I$CUDA_HOME/include -lcupti
//   CUDA_INJECTION64_PATH=./libkernel_trace.so KERNEL_TRACE_FILE=trace.txt serving_bench profile64 ...
//
// Writes the last kKeptKernels kernels at exit, by start: start and end in ns, blocks, threads, registers a thread,
// shared bytes a block, whether of a graph, name. kernel_timeline.py makes a table of it. Tracing slows kernels'
// launches a little and keeps their order; compare a step's length with one measured without it.
#include <cupti.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20, kKeptKernels = 400000;

struct Kernel {
  uint64_t start, end;
  int blocks, threads, registers, shared_bytes;
  bool of_graph;
  std::string name;
};

std::mutex mutex;
std::deque<Kernel> kernels;

void give_buffer(uint8_t** buffer, size_t* size_bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size_bytes = kBufferBytes;
  *max_records = 0;
}

void take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto& k = *reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    kernels.push_back({k.start, k.end, k.gridX * k.gridY * k.gridZ, k.blockX * k.blockY * k.blockZ,
                       k.registersPerThread, k.staticSharedMemory + k.dynamicSharedMemory, k.graphId != 0, k.name});
    if (kernels.size() > kKeptKernels) kernels.pop_front();
  }
  std::free(buffer);
}

void write() {
  cuptiActivityFlushAll(1);
  const char* path = std::getenv("KERNEL_TRACE_FILE");
  std::FILE* file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return;
  std::lock_guard lock(mutex);
  std::sort(kernels.begin(), kernels.end(), [](const Kernel& a, const Kernel& b) { return a.start < b.start; });
  for (const Kernel& k : kernels) {
    std::fprintf(file, "%llu %llu %d %d %d %d %d %s\n", static_cast<unsigned long long>(k.start),
                 static_cast<unsigned long long>(k.end), k.blocks, k.threads, k.registers, k.shared_bytes, k.of_graph,
                 k.name.c_str());
  }
  std::fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
  if (cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS) return 0;
  if (cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) return 0;
  std::atexit(write);
  return 1;
}
