// The operations of latent attention (MLA, DeepSeek-V2, 2405.04434) between its GEMMs and attention itself, on the GPU;
// ops/latent_rows.h is the host's. As in gpu_ops.h: device pointers, strides in elements, activations of `dtype` (f32, f16
// or bf16), sums in f32; every call enqueues, allocates nothing and may be captured; a row's bits do not depend on the
// other rows.
#pragma once

#include <cstdint>

#include "ops/cuda/gpu_ops.h"

namespace warpweave::gpu {

// The norm of the latent, rotary embedding of the rope parts of queries and token, and the write of the token's row
// [latent | rope] to the pool.
struct LatentRowsCall {
  DType dtype = DType::bf16;
  int64_t rows = 0;
  int num_heads = 0;
  int kv_rank = 0;
  int rope_dim = 0;                       // even; that of the tables
  void* q_rope = nullptr;                 // of row 0, head 0
  int64_t q_stride = 0;                   // from row to row
  int64_t q_head_stride = 0;
  bool in_place = false;                  // the rotated parts go there, too
  void* q_out = nullptr;                  // the rotated parts
  int64_t q_out_stride = 0;
  int64_t q_out_head_stride = 0;
  const void* token = nullptr;            // [rows, kv_rank + rope_dim]
  int64_t token_stride = 0;
  const float* latent_norm = nullptr;     // [kv_rank]
  float norm_eps = 1e-6f;
  const float* cos = nullptr;             // [positions, rope_dim / 2]; null: nothing is rotated
  const float* sin = nullptr;
  bool interleaved = false;
  const int32_t* positions = nullptr;     // [rows]; both were written before the step's kernels (launch.cuh)
  const int32_t* kv_slots = nullptr;      // [rows] page * page_size + offset, or -1: write nothing
  int page_size = 1;
  KvPoolView out;  // one head; not fp4_e2m1; packed formats of 512 + 64 values
};
void norm_rope_write_latent(const LatentRowsCall& call, Stream stream);

// out = x / sqrt(mean(x^2) + eps) * weight, per row: the norm of compressed queries.
struct NormRowsCall {
  const void* x = nullptr;                // [rows, cols] of `dtype`
  int64_t x_stride = 0;
  DType dtype = DType::bf16;
  int64_t rows = 0;
  int64_t cols = 0;
  const float* weight = nullptr;
  float eps = 1e-6f;
  void* out = nullptr;                    // [rows, cols] dense, of `dtype`
};
void norm_rows(const NormRowsCall& call, Stream stream);

// Each head's own matrix times its rows: y[r, h] = weight[h] x[r, h].
struct HeadGemmCall {
  const void* weight = nullptr;           // [heads, out_dim, in_dim] of `dtype`; a head's dense
  int64_t weight_head_stride = 0;
  DType dtype = DType::bf16;
  int64_t rows = 0;
  int num_heads = 0;
  int in_dim = 0;
  int out_dim = 0;
  const void* x = nullptr;                // [rows, heads, in_dim]
  int64_t x_stride = 0;                   // from row to row
  int64_t x_head_stride = 0;
  void* y = nullptr;                      // [rows, heads, out_dim]
  int64_t y_stride = 0;
  int64_t y_head_stride = 0;
  bool by_rows = false;                   // the kernel, and with it a row's bits, may depend on how many rows there are
  bool x_settled = false;                 // x was written before the kernel before this one let its successors begin
};
void head_gemm(const HeadGemmCall& call, Stream stream);

// norm_rope_write_latent and head_gemm of the same rows, whose results neither reads: in one kernel where it can.
void write_latent_and_absorb(const LatentRowsCall& rows, const HeadGemmCall& absorb, Stream stream);

}  // namespace warpweave::gpu
