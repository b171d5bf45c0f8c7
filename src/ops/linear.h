// y[M, N] = x[M, K] * W[N, K]^T (+ bias), the GEMM of every projection in a model.
//
// PackedLinear copies its weights once into a private, 64-byte aligned, huge-page advised layout;
// afterwards the source tensors may go away. Weights keep their stored precision in memory: bf16
// and f16 are widened in registers, GGUF blocks stay compressed. Several tensors may be stacked
// (q|k|v), or interleaved as gate and up so that the activation is fused into the GEMM.
//
// Precision. Sums are always f32. Under ComputeMode::f32 products are exact FMAs of f32
// activations with the widened weights. Under ComputeMode::bf16 activations are rounded to bf16
// when the CPU has a bf16 unit (avx512_bf16, amx_bf16); weights stored as f32 or f16, and CPUs
// without such a unit, still compute in f32 (bf16 inputs are widened). Activations that meet GGUF
// blocks are then rounded to 8 bits, a scale for 32 values, and multiplied as integers; a CPU that has
// AMX for bf16 and not for bytes widens blocks to bf16 instead, and so do GEMMs of
// LinearOptions::widen_from_rows rows or more.
//
// Batch invariance: the bits of output row m depend only on input row m and the tier, not on the
// other rows or the number of threads, nor on M but where widen_from_rows is set: there on which side
// of it M is. Every element is one chain of sums over ascending k.
//
// Layout: panels of 16 output features, padded with zeros: f32 and f16 [N/16][K][16], bf16
// [N/16][K/2][16][2] with K padded to 32 (what vdpbf16ps and AMX tiles want), GGUF blocks: see
// kernels/quant_panel.h. Under a GLU, gate and up panels alternate.
//
// Thread-safe for concurrent forward() of one object with different teams. Move-only. Shapes are
// checked by pack(); forward() asserts.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>

#include "base/threads.h"
#include "device/cpu/cpu_info.h"
#include "ops/aligned_buffer.h"
#include "ops/compute_types.h"
#include "ops/fp8_matrix.h"
#include "ops/kernels/linear_kernels.h"
#include "ops/random_matrix.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {

// Rows first_row, first_row + row_step, ... (`rows` of them; -1: to the end) of a rank-2 weight
// [out_features, in_features], with an optional bias [out_features] (f32, bf16 or f16) of which
// the same rows are taken.
struct LinearPart {
  TensorView weight;
  TensorView bias;         // data == nullptr: none
  int64_t first_row = 0;
  int64_t row_step = 1;    // 2 for weights that store gate and up rows alternately
  int64_t rows = -1;
  const WeightScales* scales = nullptr;  // of a weight in fp8_e4m3, which only a GPU takes
  bool stays = false;      // the weight's memory is there until its source is told to release it
  std::optional<RandomMatrix> random = {};  // in place of the weight's data, which only a GPU takes: all its rows
  DType random_dtype = DType::bf16;  // that they are rounded to before codes and scales are made of them
};

inline constexpr int64_t kNeverWiden = std::numeric_limits<int64_t>::max();

struct LinearOptions {
  ComputeMode compute = ComputeMode::f32;
  GluActivation glu = GluActivation::none;  // otherwise: exactly two parts of equal rows, gate, up
  CpuTier tier = cpu_info().tier;           // tests lower it; never above cpu_info().tier
  // From so many rows on GGUF blocks meet activations of bf16 in place of 8 bits, where the CPU has a bf16 unit.
  int64_t widen_from_rows = kNeverWiden;
};

// Whether this CPU multiplies GGUF blocks with activations of 8 bits as integers: then a GEMM of few rows takes the
// less time the fewer bits its weights have.
bool multiplies_bytes();

// The widen_from_rows that takes the least time on this CPU for blocks of `dtype`, by measurement.
int64_t fastest_widen_from_rows(DType dtype);

struct LinearInput {
  const void* data = nullptr;  // [rows, in_features]
  DType dtype = DType::f32;    // f32 or bf16
  int64_t rows = 0;
  int64_t row_stride = 0;      // in elements, >= in_features
};

// What joins a GEMM before its activation: row r gets row rows[r] of `values`, or nothing where that is -1. Columns
// are counted as in the parts, stacked; of a GLU gate's, then up's.
struct LinearAddend {
  const float* values = nullptr;  // null: none
  int64_t row_stride = 0;         // in elements
  const int32_t* rows = nullptr;  // [rows of the GEMM]

  // The same for a GEMM whose columns begin at this one.
  LinearAddend from_column(int64_t column) const {
    LinearAddend out = *this;
    if (values != nullptr) out.values += column;
    return out;
  }
};

struct LinearOutput {
  void* data = nullptr;        // [rows, out_features]; must not overlap the input
  DType dtype = DType::f32;    // f32 or bf16
  int64_t row_stride = 0;      // in elements, >= out_features
  bool accumulate = false;     // y += instead of y =; f32 only (the residual stream)
  // [rows], or null; f32 without accumulate only. The argmax of each row, taken while its tiles are
  // still in cache: greedy sampling then never reads the logits again. Ties go to the lower
  // column; NaNs never win; all -inf or NaN leaves {-inf, 0}.
  RowBest* best = nullptr;
  LinearAddend addend = {};    // without `best`
};

struct LinearTask;

class PackedLinear {
 public:
  PackedLinear() = default;
  PackedLinear(PackedLinear&&) noexcept = default;
  PackedLinear& operator=(PackedLinear&&) noexcept = default;

  // All parts have the same in_features and the same weight dtype: f32, bf16, f16, q8_0, q4_0,
  // q4_1, q4_k, q5_k, q6_k, iq4_nl or iq4_xs. `team` shares the packing work.
  static Result<PackedLinear> pack(std::span<const LinearPart> parts, const LinearOptions& options,
                                   ThreadTeam& team);

  void forward(const LinearInput& x, const LinearOutput& y, ThreadTeam& team) const;

  // GEMMs side by side in one parallel region: the members of the team take tiles of all of them in turn, so
  // many small GEMMs keep everybody busy. Inputs are as the GEMMs want them: of preferred_input(), with rows
  // of gemm_width() elements that are zero past in_features(). The bits are those of forward().
  static void forward_all(std::span<const LinearTask> tasks, ThreadTeam& team);

  // Weight row `index` (counted as in the parts, stacked) widened to f32: [in_features]. Lets a
  // tied embedding be read from the packed head instead of being held twice.
  void weight_row(int64_t index, float* out) const;

  int64_t in_features() const { return in_features_; }
  // Columns of y: all rows of the parts, or those of one part under a GLU activation.
  int64_t out_features() const { return out_features_; }
  size_t size_bytes() const { return weights_.size() + bias_.size(); }
  bool empty() const { return out_features_ == 0; }
  // What forward() multiplies with; feed it inputs of this dtype to save the conversion.
  DType preferred_input() const { return uses_bf16_ ? DType::bf16 : DType::f32; }
  // Whether GEMMs round their input to 8 bits, below widen_from_rows.
  bool rounds_to_int8() const { return uses_int8_; }
  // Elements of an input row that GEMMs read: in_features() or, for bf16, the next multiple of 32.
  int64_t gemm_width() const;

 private:
  struct Plan;  // how one forward is cut into jobs

  bool multiplies_integers(int64_t rows) const { return uses_int8_ && rows < widen_from_rows_; }
  size_t prepared_bytes(int64_t rows) const;
  const void* prepare_blocks_input(const LinearInput& x, std::byte* out, ThreadTeam& team) const;
  Plan plan_tiles(const LinearInput& x, const LinearOutput& y, int64_t tiles_beside, int members) const;
  void run_jobs_for_best(const Plan& plan, ThreadTeam& team) const;
  void run_job(const Plan& plan, int64_t job, RowBest* best) const;
  void multiply_widened(const Plan& plan, GemmTile& tile, const unsigned char* weights, int64_t first_row) const;
  void multiply_int8(const Plan& plan, const GemmTile& tile, const unsigned char* weights, int64_t first_row) const;
  const void* quantize_input(const LinearInput& x, std::byte* out, ThreadTeam& team) const;

  AlignedBuffer weights_;
  AlignedBuffer bias_;          // f32, padded to whole panels; empty: none
  DType dtype_ = DType::f32;    // as stored
  CpuTier tier_ = CpuTier::scalar;
  GluActivation glu_ = GluActivation::none;
  bool uses_bf16_ = false;      // GEMMs by the CPU's bf16 unit
  bool uses_int8_ = false;      // of blocks, with rows rounded to 8 bits
  int64_t widen_from_rows_ = kNeverWiden;
  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  int64_t part_rows_ = 0;       // under a GLU: rows of gate (= of up); else all rows
  int64_t panels_ = 0;
  size_t panel_bytes_ = 0;
};

// One GEMM of forward_all(). Outputs of different tasks do not overlap.
struct LinearTask {
  const PackedLinear* linear = nullptr;
  LinearInput x;
  LinearOutput y;
};

}  // namespace warpweave
