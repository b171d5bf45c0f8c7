// y[M, N] = x[M, K] * W[N, K]^T (+ bias) on the GPU: cuBLASLt, and kernels of our own, which begin under
// the kernel before them: up to 16 rows (small_gemm.h); where the caller can take partial sums or wants a GLU, up
// to 64 (stream_gemm.h) and up to 128 (tile_gemm.h); of narrow models, where y is wanted whole, up to 256
// (cluster_gemm.h); from 512 on where nothing is added to (wide_gemm.h).
//
// Weights and inputs are f32, f16 or bf16; sums are f32 (f32 inputs are multiplied exactly, without
// TF32). Weights in e4m3 with scales (fp8.h), inputs in f16 or bf16:
//   up to 16 rows        inputs as they are, weights widened on the way to the tensor cores
//   up to 64 rows        where partial sums are taken or, with scales of rows, a GLU is wanted, and heads: inputs
//                        rounded to e4m3 by stream_gemm.h; partial sums of up to 128 rows, too
//   more                 inputs rounded to e4m3, too, a scale a row (for weight scales of blocks: one for 128
//                        columns), GEMMs of 8-bit operands by cuBLASLt with f32 sums: its fast
//                        accumulation, which keeps about 14 bits of a sum, is off
//   else                 weights are widened to memory, a piece at a time, and multiplied as 16-bit ones:
//                        where cuBLASLt has no algorithm, and for batch invariance
//  The first GEMM of a shape picks its algorithm and remembers it; while tuning is on,
// GEMMs try the candidates in turn and time them, so that the layers of one forward measure
// each with weights that are not in the cache. One thread, one stream at a time.
// Errors: `unsupported` when cuBLASLt is missing; `internal` when no algorithm takes a shape.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "device/cuda/memory.h"
#include "ops/compute_types.h"
#include "ops/cuda/fp8.h"
#include "ops/cuda/gpu_ops.h"
#include "ops/cuda/row_codes.h"
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
  const float* scales = nullptr;  // of weights in e4m3
  Fp8Scaling scaling = Fp8Scaling::row;
  DType x_dtype = DType::bf16;    // of the inputs of weights in e4m3
  bool empty() const { return weight == nullptr; }
};

// The input of a GEMM as it is before its RMS norm (gpu_ops.h), which the kernel applies.
struct NormedInput {
  const float* x = nullptr;      // [rows, in_features] dense; null: no norm
  const float* weight = nullptr;
  float weight_offset = 0;
  float eps = 1e-6f;
};

// What joins a GEMM before its activation, of some rows (LinearAddend of ops/linear.h on the host).
struct GemmAddend {
  const float* values = nullptr;  // [places, out_features] with places row_stride elements apart; null: nothing
  int64_t row_stride = 0;
  const int32_t* places = nullptr;  // [rows], -1: nothing joins this one
};

struct LoraCall;
struct TopPart;

struct GemmCall {
  const GpuLinear* linear = nullptr;
  const void* x = nullptr;       // [rows, in_features] dense, of the linear's dtype, x_dtype for e4m3
  int64_t rows = 0;
  void* y = nullptr;             // [rows, out_features] with rows y_stride elements apart
  DType y_dtype = DType::bf16;   // that of x or f32
  int64_t y_stride = 0;
  bool accumulate = false;       // y += (f32 only)
  const float* x_scales = nullptr;  // x are e4m3 codes with these: GpuGemm's own, or input_codes()
  bool fused_glu = false;        // y [rows, out_features / 2] is the linear's activation; see takes_fused()
  NormedInput norm = {};         // in place of x; see takes_fused()
  float* partials = nullptr;     // in place of y: partial_splits() sums in f32, [splits][rows][out_features]
  GemmAddend addend = {};     // see takes_addend()
  bool settles = false;       // its successor begins only when what came before is in memory: where cluster_gemm_pays()
  const LoraCall* adapters = nullptr;  // what they make of x joins before the activation; see takes_adapters()
};

// How weights in e4m3 are multiplied: by the rules above, or as a test or a benchmark says.
enum class Fp8Path : uint8_t { automatic, small, stream, tensor, widen };

inline constexpr int64_t kMostPartialRows = 128;

class GpuGemm {
 public:
  static Result<std::unique_ptr<GpuGemm>> create();
  ~GpuGemm();

  Status run(const GemmCall& call, Stream stream);
  // Whether run() takes this call with what is fused into it: a kernel of our own computes the GEMM.
  bool takes_fused(const GemmCall& call) const;
  // Whether run() of this call adds an addend, which is in memory before the kernel is launched.
  bool takes_addend(const GemmCall& call) const;
  // Whether its kernel brings rows to their adapters' ranks itself (lora_join.cuh). No bias, rows as in the adapters' call.
  bool takes_adapters(const GemmCall& call) const;
  // How many partial sums run() leaves of this call where it is given room for them (stream_gemm.h); 0: it does not.
  // Of more rows than kMostPartialRows it leaves none.
  int partial_splits(const GemmCall& call) const;
  // Where the kernel that makes the inputs may leave them for run() of this call, which is given them as x and x_scales then:
  // else another kernel rounds them. Scales are of rows or of blocks, as the linear's are. Nowhere: run() takes no codes.
  RowCodes input_codes(const GemmCall& call) const;
  // Of a head: in how many parts of a row run_choice() leaves what stands there (choice_gemm.h), with the values that run()
  // would write to y; 0: it does not.
  int choice_parts(const GemmCall& call) const;
  Status run_choice(const GemmCall& call, TopPart* parts, Stream stream);
  // Whether none of our own kernels does.
  bool runs_library(const GemmCall& call) const;

  // From now on cuBLASLt alone computes; to compare with.
  void set_library_only() { library_only_ = true; }

  // From now on a row's bits do not depend on the other rows: each GEMM keeps one algorithm for any
  // number of rows, one that does not split the depth and was seen to give the same bits alone and
  // among others. Before the first run().
  void set_batch_invariant() { batch_invariant_ = true; }

  // Memory for GEMMs of e4m3 weights: once, before the first of them.
  Status reserve_fp8(int64_t max_rows, int64_t max_in_features);
  void set_fp8_path(Fp8Path path) { fp8_path_ = path; }
  // Shapes of 8-bit operands that cuBLASLt had no algorithm for.
  size_t fp8_refusals() const { return fp8_refused_.size(); }
  // Before the first run().
  void set_fp8_fast_accumulation(bool on) { fp8_fast_accumulation_ = on; }

  // Between start and stop every run() is timed and waited for; not while a graph is captured.
  void start_tuning() { tuning_ = true; }
  // Keeps the fastest candidate of every shape that was tried.
  void stop_tuning();

 private:
  enum class Kernel : uint8_t { library, small, stream, tile, wide };
  struct Lt;
  struct Plan;
  struct Algorithm;
  // out_features, in_features, dtype and scaling, y_dtype, y_stride, accumulate, rows
  using Shape = std::tuple<int64_t, int64_t, std::pair<DType, Fp8Scaling>, DType, int64_t, bool, int64_t>;

  static Shape shape_of(const GemmCall& call);
  Status run_by_plan(const GemmCall& call, Stream stream);
  Status run_16_bit(const GemmCall& call, Stream stream);
  Status run_fp8(const GemmCall& call, Stream stream);
  bool streams_codes(const GemmCall& call) const;
  bool runs_streamed_codes(const GemmCall& call) const;
  Result<GemmCall> round_inputs(const GemmCall& call, Stream stream);
  Status run_fp8_tensor(const GemmCall& call, Stream stream);
  Status run_fp8_widened(const GemmCall& call, Stream stream);

  GpuGemm();
  Result<Plan*> plan_for(const GemmCall& call, Stream stream);
  Status fix_algorithm(const Shape& shape, const GemmCall& call, Stream stream, Plan& plan);
  Result<Algorithm> choose_invariant(const GemmCall& call, Stream stream);
  const Plan* tuned_neighbour(const Shape& shape) const;
  static void log_tuned(const Shape& shape, const Plan& plan);
  Status try_candidates(Plan& plan, const GemmCall& call, Stream stream);
  Kernel kernel_for(const GemmCall& call) const;
  Status run_candidate(const Plan& plan, int candidate, const GemmCall& call, Stream stream);

  std::unique_ptr<Lt> lt_;
  DeviceBuffer workspace_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  DeviceBuffer fp8_codes_, fp8_scales_, fp8_widened_;
  std::set<Shape> fp8_refused_;         // by cuBLASLt
  Fp8Path fp8_path_ = Fp8Path::automatic;
  bool fp8_fast_accumulation_ = false;
  bool tuning_ = false;
  bool batch_invariant_ = false;
  bool library_only_ = false;
  std::map<Shape, std::unique_ptr<Algorithm>> invariant_;  // by GEMM: the shape of 0 rows
};

// y[row, i] += the linear's bias[i].
void add_bias(const GemmCall& call, Stream stream);

}  // namespace warpweave::gpu
