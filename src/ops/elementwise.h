// The row-wise operations of a forward pass: norms, gathers, logits and conversions.
//
// All matrices are row-major with a row stride in elements; sizes may be zero. Vectorised by the
// CPU's tier (exp and tanh by polynomials, relative error below 2e-6). A `team` is used only when
// the work is large enough to pay for waking it; each row is computed by one thread in an order
// that does not depend on the other rows, so results are batch-invariant. Inputs and outputs do
// not overlap unless a function says so. No allocation, no errors: sizes are asserted.
#pragma once

#include <cstdint>
#include <span>

#include "base/threads.h"
#include "ops/linear.h"
#include "warpweave/tensor.h"

namespace warpweave {

// out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset), per row.
struct RmsNormCall {
  const float* x = nullptr;       // [rows, cols]; may be `out` itself
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [cols]; null: ones
  float weight_offset = 0.0f;     // 1 for Gemma
  float eps = 1e-6f;
  void* out = nullptr;            // [rows, cols]
  DType out_dtype = DType::f32;   // f32 or bf16
  int64_t out_stride = 0;
  bool accumulate = false;        // out += (f32 only): a branch normed into the residual stream
};
void rms_norm(const RmsNormCall& call, ThreadTeam& team);

// out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias, per row (Ba et al. 2016).
struct LayerNormCall {
  const float* x = nullptr;       // [rows, cols]; may be `out` itself
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t x_stride = 0;
  const float* weight = nullptr;  // [cols]
  const float* bias = nullptr;    // [cols], or null
  float eps = 1e-5f;
  void* out = nullptr;            // [rows, cols]
  DType out_dtype = DType::f32;   // f32 or bf16
  int64_t out_stride = 0;
};
void layer_norm(const LayerNormCall& call, ThreadTeam& team);

// out[i] = scale * table[ids[i]], widened.
struct EmbeddingRows {
  std::span<const int32_t> ids;
  float scale = 1;
  float* out = nullptr;  // [ids, cols]
};
// `table` is rank 2 [vocab, cols] of any dtype the loader knows; an id outside [0, vocab) is a programmer error
// (requests are checked before).
void embedding_gather(const TensorView& table, const EmbeddingRows& rows, ThreadTeam& team);
// The same from a packed (tied) output head.
void embedding_gather(const PackedLinear& table, const EmbeddingRows& rows, ThreadTeam& team);

// [rows, cols] dense, activated in place. `dtype` bf16: narrowed at the start of each row's memory, so that rows are
// 2 * cols elements apart.
struct ActivatedRows {
  float* x = nullptr;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::f32;
};
void activate_rows(GluActivation activation, const ActivatedRows& to, ThreadTeam& team);

// x += y over count elements.
void add_inplace(float* x, const float* y, int64_t count);
// x += scale * y.
void add_scaled_inplace(float* x, const float* y, float scale, int64_t count);
// x *= scale.
void scale_inplace(float* x, float scale, int64_t count);
// x = cap * tanh(x / cap).
void softcap_inplace(float* x, float cap, int64_t count, ThreadTeam& team);

// One row of n > 0 logits. Ties go to the lowest index; NaN never wins; all NaN or -inf: index 0.
int64_t argmax(const float* x, int64_t n);
// out = x - log(sum(exp(x))); may run in place. The return value is log(sum(exp(x))).
float log_softmax(const float* x, int64_t n, float* out);
// out = exp((x - shift) * scale), [n]; the return value is the sum of out.
double exp_row(const float* x, int64_t n, float shift, float scale, float* out);
// log(sum(exp(x))) alone, without writing a row.
float log_sum_exp(const float* x, int64_t n);

// Conversions of contiguous elements, round to nearest even.
void f32_to_bf16_row(const float* x, int64_t n, uint16_t* out);
void bf16_to_f32_row(const uint16_t* x, int64_t n, float* out);
void f32_to_f16_row(const float* x, int64_t n, uint16_t* out);
void f16_to_f32_row(const uint16_t* x, int64_t n, float* out);
// n elements of any weight dtype (plain or GGUF block; n a multiple of its block) to f32.
void dequantize_row(DType dtype, const void* x, int64_t n, float* out);

}  // namespace warpweave
