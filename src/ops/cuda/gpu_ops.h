// The row-wise operations of a forward pass on the GPU; the same meaning as ops/elementwise.h,
// ops/rope.h and ops/moe.h have on the CPU.
//
// Pointers are device pointers; strides count elements. The residual stream, norm weights, rope
// tables and logits are f32, other activations `dtype` (f32, f16 or bf16). Every call enqueues on
// `stream` (a cudaStream_t), allocates nothing, never waits, and may be captured into a graph.
// Launch errors stay with the runtime: the caller asks once per forward. A row's bits do not
// depend on the other rows.
#pragma once

#include <cstdint>

#include "kv/kv_pool_view.h"
#include "ops/compute_types.h"
#include "ops/elementwise.h"
#include "ops/random_matrix.h"
#include "ops/router_rule.h"
#include "warpweave/tensor.h"

namespace warpweave::gpu {

using Stream = void*;

// What a scale of e4m3 weights belongs to (fp8.h).
enum class Fp8Scaling : uint8_t { row, block };

// The start of every row of a weight matrix, to be asked for from memory while a small kernel leaves it
// idle: the GEMM that follows finds it in the L2 cache.
struct WeightPrefetch {
  const void* data = nullptr;             // null: nothing
  int64_t rows = 0;
  int64_t row_bytes = 0;
  int64_t prefetched_bytes = 0;           // of a row, a multiple of 128
};

// out[i] = scale * table[id(i)]; id(i) is ids[i], or sampled[future_slots[i]] where that slot >= 0. A
// row that sampled no token (negative) counts as 0: its request has failed.
struct EmbeddingCall {
  const void* table = nullptr;            // [vocab, cols] of `dtype`
  DType dtype = DType::bf16;
  const int32_t* ids = nullptr;           // [rows]
  const int32_t* future_slots = nullptr;  // [rows], or null: all ids are known
  const int32_t* sampled = nullptr;       // what the step before sampled, by slot
  int64_t rows = 0;
  int64_t cols = 0;
  float scale = 1;
  float* out = nullptr;                   // [rows, cols]
};
void embedding(const EmbeddingCall& call, Stream stream);

inline constexpr int kMostPartials = 4;

// What a GEMM left to be added up (stream_gemm.h): [splits][rows][cols] f32, each split dense.
struct PartialSums {
  const float* data = nullptr;            // null: none
  int splits = 0;                         // up to kMostPartials
  int64_t stride = 0;                     // from one split to the next
};

inline constexpr int64_t kNormPartialCols = 12288;  // with partial sums a row stays in registers

// out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset) per row.
struct RmsNormCall {
  float* x = nullptr;                     // [rows, cols] dense; written only with partial sums
  PartialSums partials = {};              // x += their sum first; up to kNormPartialCols cols
  int64_t rows = 0;
  int64_t cols = 0;
  const float* weight = nullptr;
  float weight_offset = 0;
  float eps = 1e-6f;
  void* out = nullptr;                    // [rows, cols] of out_dtype
  DType out_dtype = DType::bf16;
  float* out_f32 = nullptr;               // a second, exact copy for routers, or null
  bool accumulate = false;                // out (then f32) += result
  WeightPrefetch prefetch = {};
};
void rms_norm(const RmsNormCall& call, Stream stream);

// Row i of `out` is row index[i] of `in`.
struct GatherRowsCall {
  const void* in = nullptr;
  const int32_t* index = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t row_bytes = 0;           // a multiple of 4
  void* out = nullptr;
};
void gather_rows(const GatherRowsCall& call, Stream stream);

// out = act(gate) * up; a row of `in` is gate [cols], then up [cols].
struct GluCall {
  GluActivation activation = GluActivation::silu;
  const void* in = nullptr;               // [rows, 2 * cols] of `dtype`
  DType dtype = DType::bf16;
  int64_t rows = 0;
  int64_t cols = 0;
  void* out = nullptr;                    // [rows, cols]
  WeightPrefetch prefetch = {};
};
void glu(const GluCall& call, Stream stream);

// x = cap * tanh(x / cap).
void softcap(float* x, float cap, int64_t count, Stream stream);

// x *= sigmoid(gate), element by element.
struct GateRowsCall {
  void* x = nullptr;                      // [rows, cols] of `dtype`, dense
  DType dtype = DType::bf16;
  int64_t rows = 0;
  int64_t cols = 0;                       // even
  const void* gate = nullptr;             // [rows, cols] of `dtype`
  int64_t gate_stride = 0;                // from row to row, in elements: even
};
void gate_rows(const GateRowsCall& call, Stream stream);

// Dual chunk attention (model/dual_chunk.h): keys are rotated for position % chunk_len, queries for the
// three positions that it explains.
struct DualChunkForms {
  void* q_succ = nullptr;                 // [rows, q heads * head_dim] of `dtype`
  void* q_inter = nullptr;
  int chunk_len = 0;                      // 0: ordinary attention
  int farthest = 0;
  int original_max_positions = 0;         // rows beyond scale their query; 0: none
};

// q/k norms, rotary embedding in place on q, and the write of k and v to the pool.
struct QkvRowsCall {
  void* qkv = nullptr;                    // [rows, (q heads + 2 kv heads) * head_dim] of `dtype`
  int64_t row_stride = 0;                 // in elements, of qkv and partials; 0: rows are dense
  PartialSums partials = {};              // in place of qkv, of which then only q is written; see rope_takes_partials()
  DType dtype = DType::bf16;
  int64_t rows = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;                       // even
  const float* q_norm = nullptr;          // [head_dim], or null
  const float* k_norm = nullptr;
  bool norm_after_rope = false;           // the norms follow the rotation
  float norm_weight_offset = 0;
  float norm_eps = 1e-6f;
  const float* cos = nullptr;             // [positions, rotary_dim / 2]; null: no rotation
  const float* sin = nullptr;
  int rotary_dim = 0;
  bool interleaved = false;
  const int32_t* positions = nullptr;     // [rows]; both were written before the step's kernels (launch.cuh)
  const int32_t* kv_slots = nullptr;      // [rows], -1: write nothing
  int page_size = 1;
  KvPoolView k_out;
  KvPoolView v_out;
  DualChunkForms dual_chunk = {};
};
void norm_rope_write_kv(const QkvRowsCall& call, Stream stream);
bool rope_takes_partials(const QkvRowsCall& call);

// out[i] = element i of `rule`, rounded to `dtype`, for i < count. `out` is 16-byte aligned.
void fill_random(const RandomMatrix& rule, int64_t count, DType dtype, void* out, Stream stream);

// What a step brings to the GPU, read by the kernel straight from pinned host memory: the batch's
// arrays, and what changed in the page tables since the step before:
//   table[run.row * stride + run.first + i] = values[run.values + i] for i < run.count.
struct PageTableRun {
  int32_t row = 0;
  int32_t first = 0;
  int32_t count = 0;
  int32_t values = 0;
};
struct StepUpload {
  const void* host_arrays = nullptr;      // 16-byte aligned, size_bytes a multiple of 16
  void* arrays = nullptr;
  int64_t size_bytes = 0;
  const PageTableRun* runs = nullptr;     // pinned host memory
  int num_runs = 0;
  const int32_t* values = nullptr;        // pinned host memory
  int32_t* table = nullptr;
  int64_t table_stride = 0;
};
void upload_step(const StepUpload& upload, Stream stream);

}  // namespace warpweave::gpu
