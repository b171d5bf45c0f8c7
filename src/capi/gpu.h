// What plans and calls on a GPU need beside the CPU's: the device as facts, streams that may be under
// capture, and arrays in its memory. gpu.cc in builds with GPU kernels, else gpu_none.cc, which refuses.
#pragma once

#include <cstdint>
#include <memory>

#include "attention/select.h"
#include "batch/forward_batch.h"
#include "capi/tensor_args.h"
#include "warpweave/c.h"

namespace warpweave::capi {

// `unsupported`, in words, where there is no GPU that this library has kernels for.
Result<HardwareFacts> gpu_hardware_facts();

// While it lives, the first GPU is the calling thread's current one.
class GpuGuard {
 public:
  GpuGuard();
  ~GpuGuard();
  GpuGuard(const GpuGuard&) = delete;

 private:
  int before_ = 0;
};

// The capture that `stream` is in; 0: none.
Result<uint64_t> gpu_capture_of(void* stream);

class GpuArrays {
 public:
  GpuArrays();
  ~GpuArrays();

  // Copies the batch's host arrays on `stream` and points batch.device at the copies, which live as
  // long as this object and until the next upload. The host arrays may change when this returns.
  // Arrays of the same sizes go to the same places.
  Status upload(ForwardBatch& batch, void* stream);

  // Around the launches of a run: `stream` waits for the upload, the next upload for the run. In a
  // capture the calling thread waits for the upload instead, so that it stays out of the graph.
  Status before_run(void* stream, bool capturing);
  Status after_run(void* stream, bool capturing);

 private:
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

// Stores rows of k and v in the cache; both have the KV heads and head dim of `spec`.
struct GpuAppend {
  RowsView k, v;
  KvView kv;
  KvSpec spec;
  const int64_t* slots = nullptr;  // [k.rows], on the host
  void* stream = nullptr;
};
Status append_kv_on_gpu(const GpuAppend& append);

// All dense f32: outs [rows, states, heads, dim], lses [rows, states, heads].
struct GpuMerge {
  const float* outs = nullptr;
  const float* lses = nullptr;
  float* out = nullptr;
  float* lse = nullptr;            // or null
  int64_t rows = 0;
  int states = 0, heads = 0, dim = 0;
  void* stream = nullptr;
};
Status merge_states_on_gpu(const GpuMerge& merge);

}  // namespace warpweave::capi
