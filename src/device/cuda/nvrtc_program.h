// Kernels of the current GPU made at run time: from the cubin that an earlier start left in the cache
// where there is one, else by NVRTC. The driver's functions are reached through the runtime, so that
// nothing links to it. A program belongs to the GPU's primary context; any thread may launch.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "device/cuda/nvrtc.h"
#include "device/program_cache.h"
#include "warpweave/status.h"

namespace warpweave {

struct KernelGrid {
  unsigned x = 1, y = 1, z = 1;
  unsigned threads = 1;
  unsigned shared_bytes = 0;  // dynamic
};

class NvrtcProgram {
 public:
  // A damaged cache file is made anew. `unsupported` without NVRTC; `internal` with its messages.
  static Result<std::unique_ptr<NvrtcProgram>> build(const NvrtcSource& source, const ProgramCache& cache);
  ~NvrtcProgram();
  NvrtcProgram(const NvrtcProgram&) = delete;
  NvrtcProgram& operator=(const NvrtcProgram&) = delete;

  // The extern "C" kernel of this name, allowed `shared_bytes` of dynamic shared memory.
  Result<CUfunction> kernel(const char* name, size_t shared_bytes) const;
  bool from_cache() const { return from_cache_; }
  double build_seconds() const { return build_seconds_; }

 private:
  NvrtcProgram() = default;
  Status load(const std::string& cubin);

  CUmodule module_ = nullptr;
  bool from_cache_ = false;
  double build_seconds_ = 0;
};

// A kernel with one argument, passed by value.
Status launch_kernel(CUfunction kernel, const KernelGrid& grid, void* argument, cudaStream_t stream);

}  // namespace warpweave
