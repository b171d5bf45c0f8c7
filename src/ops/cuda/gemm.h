// y[M, N] = x[M, K] * W[N, K]^T (+ bias) on the GPU: cuBLASLt, and for few rows kernels of our own,
// which begin under the kernel before them: small_gemm.h up to 16 rows; up to 32 rows it and up to 128 rows
// stream_gemm.h where they were the fastest when tried.
//
// Weights and inputs are f32, f16 or bf16; sums are f32 (f32 inputs are multiplied exactly, without
// TF32). The first product of a shape picks its algorithm and remembers it; while tuning is on,
// products try the candidates in turn and time them, so that the layers of one forward measure
// each with weights that are not in the cache. One thread, one stream at a time.
// Errors: `unsupported` when cuBLASLt is missing; `internal` when no algorithm takes a shape.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "device/cuda/memory.h"
#include "ops/compute_types.h"
#include "ops/cuda/gpu_ops.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave::gpu {

// A weight matrix in GPU memory, [out_features, in_features] row-major, not owned. Under a GLU the
// gate rows come first, then the up rows, and `out_features` counts both.
struct GpuLinear {
  const void* weight = nullptr;
  DType dtype = DType::bf16;
  const float* bias = nullptr;   // [out_features], or null
  int64_t in_features = 0;
  int64_t out_features = 0;
  GluActivation glu = GluActivation::none;
  bool empty() const { return weight == nullptr; }
};

// The input of a product as it is before its RMS norm (gpu_ops.h), which the kernel applies.
struct NormedInput {
  const float* x = nullptr;      // [rows, in_features] dense; null: no norm
  const float* weight = nullptr;
  float weight_offset = 0;
  float eps = 1e-6f;
};

struct GemmCall {
  const GpuLinear* linear = nullptr;
  const void* x = nullptr;       // [rows, in_features] dense, of the linear's dtype
  int64_t rows = 0;
  void* y = nullptr;             // [rows, out_features] with rows y_stride elements apart
  DType y_dtype = DType::bf16;   // the linear's dtype or f32
  int64_t y_stride = 0;
  bool accumulate = false;       // y += (f32 only)
  bool fused_glu = false;        // y [rows, out_features / 2] is the linear's activation; see takes_fused()
  NormedInput norm = {};         // in place of x; see takes_fused()
};

class GpuGemm {
 public:
  static Result<std::unique_ptr<GpuGemm>> create();
  ~GpuGemm();

  Status run(const GemmCall& call, Stream stream);
  // Whether run() takes this call with what is fused into it: a kernel of our own computes the product.
  bool takes_fused(const GemmCall& call) const;

  // From now on cuBLASLt alone computes; to compare with.
  void set_library_only() { library_only_ = true; }

  // From now on a row's bits do not depend on the other rows: each product keeps one algorithm for any
  // number of rows, one that does not split the depth and was seen to give the same bits alone and
  // among others. Before the first run().
  void set_batch_invariant() { batch_invariant_ = true; }

  // Between start and stop every run() is timed and waited for; not while a graph is captured.
  void start_tuning() { tuning_ = true; }
  // Keeps the fastest candidate of every shape that was tried.
  void stop_tuning();

 private:
  struct Lt;
  struct Plan;
  struct Algorithm;
  enum class OwnKernel : int;
  // out_features, in_features, dtype, y_dtype, y_stride, accumulate, rows
  using Shape = std::tuple<int64_t, int64_t, DType, DType, int64_t, bool, int64_t>;

  GpuGemm();
  Result<Plan*> plan_for(const GemmCall& call, Stream stream);
  Status fix_algorithm(const Shape& shape, const GemmCall& call, Stream stream, Plan& plan);
  Result<Algorithm> choose_invariant(const GemmCall& call, Stream stream);
  const Plan* tuned_neighbour(const Shape& shape) const;
  static void log_tuned(const Shape& shape, const Plan& plan);
  Status try_candidates(Plan& plan, const GemmCall& call, Stream stream);
  bool own_kernels() const { return !batch_invariant_ && !library_only_; }
  static bool own_kernel_takes(OwnKernel kernel, const GemmCall& call);
  Status run_own(OwnKernel kernel, const GemmCall& call, Stream stream);
  static Shape shape_of(const GemmCall& call);
  Status run_candidate(const Plan& plan, int candidate, const GemmCall& call, Stream stream);

  std::unique_ptr<Lt> lt_;
  DeviceBuffer workspace_;
  DeviceBuffer stream_scratch_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  bool tuning_ = false;
  bool batch_invariant_ = false;
  bool library_only_ = false;
  std::map<Shape, std::unique_ptr<Algorithm>> invariant_;  // by product: the shape of 0 rows
};

// y[row, i] += bias[i].
void add_bias(void* y, DType dtype, int64_t rows, int64_t cols, int64_t stride, const float* bias, Stream stream);

}  // namespace warpweave::gpu
