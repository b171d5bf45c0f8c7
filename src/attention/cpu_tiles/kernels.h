// The arithmetic of one KV block against the rows of a tile, per CPU tier. Plain C types only: this
// header is compiled with each tier's instruction-set flags.
//
// A block is kBlockTokens consecutive positions of one request and one KV head, from a multiple of
// kBlockTokens on; of these the tokens [first, end) exist and are read. Operands are arrays of 32-bit
// units: one f32, or two bf16 that are neighbours along the summed dimension (Kernels::pairs).
//   q  [rows][depth]              depth = units of a padded head
//   k  [depth][kBlockTokens]      tokens along the lanes
//   s  [rows][kBlockTokens]       f32 scores, then probabilities in place
//   p  [rows][kBlockTokens / 2]   probabilities as pairs; without pairs s is used
//   v  [tokens or pairs][v_dim]   v_dim padded
//   o  [rows][v_dim]              f32 sums
// A row's result does not depend on the other rows, and a hidden token adds an exact zero.
#pragma once

#include <stdint.h>

#include "attention/cpu_tiles/element.h"

namespace warpweave::cpu_tiles {

constexpr int kBlockTokens = 64;
constexpr int kDimPadding = 32;  // head dims are padded with zeros to a multiple
constexpr int kMaxDim = 576;  // of latent rows; all others have at most 512

struct BlockRows {
  const char* rows[kBlockTokens];              // of this head; entries outside [first, end) unset
  const uint8_t* block_scales[kBlockTokens];   // fp4: e4m3 per 16 elements
  int first, end;
  int dim;
  int padded_dim;
  Element element;
};

// c[m][n] = (row_scale ? c * row_scale[row] : 0) + a[m][k] * b[k][n]; k in units, n a multiple of 16.
struct GemmArgs {
  const uint32_t* a;
  int lda;
  const uint32_t* b;
  int ldb;
  float* c;
  int ldc;
  int m, n, k;
  const float* row_scale;
};

// Online softmax (Milakov and Gimelshein 2018): s -> exp(s - max) with running max m and sum l;
// `rescale` is the factor for what was summed before. -inf is a hidden token.
struct SoftmaxArgs {
  float* s;
  uint32_t* p;        // pairs out, or null
  int rows;
  float* m;
  float* l;
  float* rescale;
};

struct Kernels {
  const char* name;
  bool pairs;
  // scratch: [kBlockTokens][padded_dim] floats.
  void (*pack_q)(const float* q, int dim, int padded_dim, uint32_t* out);
  void (*pack_k)(const BlockRows& block, float* scratch, uint32_t* out);
  void (*pack_v)(const BlockRows& block, float* scratch, uint32_t* out);
  void (*gemm)(const GemmArgs& args);
  void (*softmax)(const SoftmaxArgs& args);
  // s *= factor over count elements, a multiple of 16.
  void (*scale)(float* s, int count, float factor);
  // s = cap * tanh(s / cap) over count elements, a multiple of 16.
  void (*softcap)(float* s, int count, float cap);
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512PairKernels;  // bf16 dot products; not for f32 and f16 pools
#endif

}  // namespace warpweave::cpu_tiles
