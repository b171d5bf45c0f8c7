// What a CPU tier provides to linear attention: plain structs and function pointers, no STL, so that tier files may
// include it. Matrices are f32 and row-major with strides in elements. head_task.cc says in which order they run.
#pragma once

#include <stdint.h>

namespace warpweave {

enum class LinearCpuType : uint8_t { f32, bf16, f16 };

// out[i, c] = act(bias[c] + sum_j weight[j, c] x[sources[i, j], c])
struct LinearConvRows {
  const float* x;
  int64_t x_stride;
  const int32_t* sources;  // [tokens, width]
  const float* weight;     // [width, dim]
  const float* bias;       // [dim], or null
  int tokens, width, dim;  // dim: a multiple of 16
  bool silu;
  float* out;
  int64_t out_stride;
};

// An operand of products on tiles: split into bf16 parts by the first of them, for all.
struct LinearPacked {
  uint16_t* memory;  // linear_packed_elements()
  int parts;         // 2 or 3
  int uses;          // products that share it
  bool ready;        // holds the operand
};

// Of an operand of `lines` rows or columns: padded to tiles of 16 x 32.
constexpr int64_t linear_packed_elements(int lines, int depth, int parts) {
  return static_cast<int64_t>((lines + 15) / 16) * ((depth + 31) / 32) * parts * 512;
}

// c = scale_c c + a b; c is only written where `keep_c` is false.
struct LinearGemm {
  const float* a;          // [rows, depth]: element (i, k) at i * a_row + k * a_depth
  int64_t a_row, a_depth;
  const float* b;          // [depth, cols]
  int64_t b_row;
  float* c;                // [rows, cols]
  int64_t c_row;
  int rows, cols, depth;   // rows: a multiple of 4; cols: of 16
  bool keep_c = false;
  const float* scale_c = nullptr;  // [rows], with keep_c; null: ones
  bool lower_a = false;            // a is 0 right of its diagonal
  bool lower_c = false;            // columns right of the diagonal are not wanted
  // For tiles: of how many bf16 parts operands may be the sum. 3 lose next to nothing of f32, 2 leave errors of up to
  // 2^-15 of each product; 0: f32 only. Rows of c up to a multiple of 16 must exist then, and are written, too.
  int parts = 0;
  LinearPacked* packed_a = nullptr;  // at least so many parts
  LinearPacked* packed_b = nullptr;
};

// One head over some tokens, token after token, a few rows of the state at a time:
// p = S (decay k), S = S decay + beta (v - p) k^T, out = S q.
struct LinearStep {
  const void* state_in;    // [v_dim, k_dim]; null: zeros
  void* state_out;         // may be state_in
  LinearCpuType type;      // of both: f32 or bf16
  int tokens, k_dim, v_dim;
  const float* decay;      // [tokens] or, per channel, [tokens, k_dim]
  bool per_channel;
  const float* beta;       // [tokens]
  const float* k;          // [tokens, stride]
  const float* q;
  int64_t stride;
  const float* decayed_k;  // per channel: decay k and decay q, [tokens, stride]; else null
  const float* decayed_q;
  const float* kq;         // [tokens] k . q
  const float* v;          // [tokens, v_stride]
  int64_t v_stride;
  float* out;              // [tokens, v_stride]
};

// GDN: what pairs of tokens give each other. decay_ij is the product of the decays after j up to i, along parents.
struct LinearScalarPairs {
  const float* kk;         // [tokens, stride] k_i . k_j
  const float* qk;         // q_i . k_j
  const float* decay;      // [tokens]
  const float* beta;
  const int32_t* parents;  // null: the token before
  int tokens, rows;        // rows >= tokens, a multiple of 4: those beyond become zeros
  float* weights;          // [rows, stride] decay_ij
  float* minus_a;          // [rows, stride] -beta_i decay_ij kk_ij for j before i, else 0
  float* p;                // [rows, stride] decay_ij qk_ij for j up to i, else 0
  int64_t stride;
  float* since_start;      // [rows] product of the decays up to i
};

// KDA: the same per channel, for pairs (i, j) with j an ancestor of i in [first, i], or i itself.
struct LinearChannelPairs {
  const float* k;          // [tokens, stride]
  const float* q;
  const float* decay;      // [tokens, stride]
  int64_t stride;
  const float* beta;
  const int32_t* parents;  // null: the token before
  int first, end, k_dim;
  float* minus_a;          // [tokens, pair_stride]
  float* p;
  int64_t pair_stride;
};

// Rows of a matrix, `stride` apart.
struct LinearMatrix {
  float* x;
  int64_t stride;
  int rows, cols;
};

struct LinearNormGate {
  float* o;
  const float* z;  // may be null
  const float* weight;
  int dim;
  float eps;
  bool silu;  // else sigmoid
};

// Products on matrix tiles of bf16, beside a tier that does all else.
struct LinearTileKernels {
  bool (*gemm)(const LinearGemm& gemm);  // false: nothing done, since a product of this shape is faster without tiles
  void (*enter)();                       // once per thread before a run of products, and after
  void (*leave)();
};

struct LinearCpuKernels {
  void (*widen)(const void* x, LinearCpuType type, int64_t n, float* out);
  void (*narrow)(const float* x, int64_t n, LinearCpuType type, void* out);
  void (*conv)(const LinearConvRows& rows);
  // x / sqrt(sum x^2 + eps) * scale, per row, in place; with normalize == false scaled only.
  void (*l2norm)(const LinearMatrix& x, bool normalize, float eps, float scale);
  // out = exp(g)
  void (*exp_row)(const float* g, int64_t n, float* out);
  // out = exp(-rate softplus(a + bias)); bias may be null
  void (*decay_row)(const float* a, const float* bias, float rate, int64_t n, float* out);
  // x y over n elements; out may be either
  void (*multiply)(const float* x, const float* y, int64_t n, float* out);
  float (*dot)(const float* x, const float* y, int64_t n);
  void (*scale)(const float* x, float by, int64_t n, float* out);
  // out[c, i] = x[i, c]: rows and cols of x multiples of 16
  void (*transpose)(const LinearMatrix& x, float* out, int64_t out_stride);
  void (*gemm)(const LinearGemm& gemm);
  // u = (1 - minus_a)^-1 u; minus_a strictly lower triangular, rows a multiple of 4, cols of 16
  void (*solve)(const float* minus_a, int64_t a_row, const LinearMatrix& u);
  // x[i, c] = beta[i] (v[i, c] - scale[i] x[i, c]); scale may be null; v has x's stride
  void (*remainder)(const float* v, const float* beta, const float* scale, const LinearMatrix& x);
  void (*scalar_pairs)(const LinearScalarPairs& pairs);
  void (*channel_pairs)(const LinearChannelPairs& pairs);
  void (*step)(const LinearStep& step);
  // o / sqrt(mean o^2 + eps) weight gate(z) in place
  void (*norm_gate)(const LinearNormGate& row);
  const LinearTileKernels* tiles;  // null: none
};

extern const LinearCpuKernels kLinearAttnScalar, kLinearAttnAvx2, kLinearAttnAvx512;
extern const LinearTileKernels kLinearAttnAmxTiles;

}  // namespace warpweave
