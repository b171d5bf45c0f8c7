// The arithmetic of one KV block, per CPU tier. Plain C types only: this header is compiled with
// each tier's instruction-set flags.
//
// A block is kBlockTokens consecutive tokens of one request and one KV head, starting at an absolute
// position that is a multiple of kBlockTokens. It is packed once and used by every row (query token
// x head of the group) of a tile. Packed operands are arrays of 32-bit units: one f32, or a pair of
// bf16 (adjacent along the dimension that is summed over) where the tier multiplies bf16.
//   q   [rows][depth]            depth = padded head dim (f32) or half of it (bf16 pairs)
//   k   [depth][kBlockTokens]    transposed: tokens along the vector lanes
//   s   [rows][kBlockTokens]     scores, then probabilities in place (f32)
//   p   [rows][kBlockTokens / 2] probabilities as bf16 pairs; f32 tiers use s instead
//   v   [tokens or pairs][v_dim] v_dim = padded v head dim
//   o   [rows][v_dim]            f32 accumulators
//
// Every element is computed by the same sequence of operations whatever the number of rows, and a
// masked token adds an exact zero: this is what makes the backend's results independent of batch,
// chunking and phase.
#pragma once

#include <stdint.h>

namespace warpweave::intel_amx {

constexpr int kBlockTokens = 64;
constexpr int kTokenPadding = 32;   // packed tokens are zero-filled up to a multiple of this
constexpr int kHeadDimPadding = 32; // head dims likewise
constexpr int kRowPadding = 16;     // row buffers are allocated up to padded_rows(rows)

// AMX works on 16 rows, or on 32 where there are more: rows beyond the real ones hold anything.
constexpr int padded_rows(int rows) {
  return rows <= kRowPadding ? kRowPadding
                             : (rows + 2 * kRowPadding - 1) / (2 * kRowPadding) * (2 * kRowPadding);
}

enum class Element : uint8_t { f32, bf16, f16 };

// The rows of the next block, K then V, fetched towards L2 a row at a time during the work on this
// one: spread out, because a burst of misses stalls the core.
struct Prefetch {
  struct Rows {
    const char* const* tokens;
    int64_t head_offset;
    int bytes;
  };
  Rows rows[2];
  int count;     // tokens
  int list;      // the next row to fetch
  int token;
};

// The K or V rows of a block: `dim` elements at arbitrary addresses, never read past `dim` or `count`.
struct BlockRows {
  const char* const* rows;        // [count] the tokens
  int64_t head_offset;            // bytes from a token to its row of this head
  int count;                      // tokens, 1..kBlockTokens
  int dim;
  int padded_dim;
  Element element;
  Prefetch* prefetch;
};

struct QueryArgs {
  const float* src;
  int dim;
  int padded_dim;
  float scale;
  uint32_t* out;
};

// c[m][n] = (row_scale ? c * row_scale[row] : 0) + a[m][k] * b[k][n]; k in units.
struct GemmArgs {
  const uint32_t* a;
  int lda;
  const uint32_t* b;
  int ldb;
  float* c;
  int ldc;
  int m, n, k;
  const float* row_scale;
  Prefetch* prefetch;
};

// Online softmax of one block: scores -> exp(score - max), running max m, running sum l, and the
// factor `rescale` for what was accumulated before. Row r sees columns [first[r], last[r]).
struct SoftmaxArgs {
  float* s;
  uint32_t* p;          // pairs out, or null on f32 tiers
  int rows;
  int cols;             // padded tokens of the block
  const int* first;
  const int* last;
  float softcap;
  float* m;
  float* l;
  float* rescale;
};

// total <- merge(total, chunk), row by row; an empty chunk (m = -inf) changes nothing.
struct MergeArgs {
  int rows;
  int v_dim;
  float *total_m, *total_l, *total_o;
  const float *m, *l, *o;
};

struct FinishArgs {
  const float* o;   // [v_dim]
  float scale;
  int v_dim;        // real, unpadded
  float* out;
};

struct KernelSet {
  const char* name;
  bool bf16_pairs;  // packs bf16 pools as pairs and multiplies them as such
  int depth_step;   // GemmArgs::k is a multiple of this
  void (*pack_query)(const QueryArgs& args);
  void (*pack_k)(const BlockRows& block, uint32_t* out);
  void (*pack_v)(const BlockRows& block, uint32_t* out);
  void (*gemm)(const GemmArgs& args);
  void (*softmax)(const SoftmaxArgs& args);
  void (*merge)(const MergeArgs& args);
  void (*finish)(const FinishArgs& args);
  void (*enter)();  // once per thread before a run of kernels, and after
  void (*leave)();
};

// The f32 set of a tier serves every pool format; a bf16 set serves bf16 pools only.
extern const KernelSet kScalarKernels;
#if defined(__x86_64__)
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;
extern const KernelSet kAvx512Bf16Kernels;
extern const KernelSet kAmxBf16Kernels;
#endif

}  // namespace warpweave::intel_amx
