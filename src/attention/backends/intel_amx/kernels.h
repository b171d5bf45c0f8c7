// The arithmetic of one KV block, per CPU tier. Plain C types only: this header is compiled with
// each tier's instruction-set flags.
//
// A block is kBlockTokens consecutive tokens of one request and one KV head, starting at an absolute
// position that is a multiple of kBlockTokens. Packed operands are arrays of 32-bit units: one f32, or
// a pair of bf16 (adjacent along the dimension that is summed over) where the tier multiplies bf16.
//   q   [rows][depth]            depth = padded head dim (f32) or half of it (bf16 pairs)
//   k   [depth][kBlockTokens]    transposed: tokens along the vector lanes
//   s   [rows][kBlockTokens]     scores, then probabilities in place (f32)
//   p   [rows][kBlockTokens / 2] probabilities as bf16 pairs; f32 tiers use s instead
//   v   [tokens or pairs][v_dim] v_dim = padded v head dim
//   o   [rows][v_dim]            f32 accumulators
// q is rounded as it is; scores are scaled to units of log2 where they become powers of two.
//
// Every element is computed by the same sequence of operations whatever the number of rows and
// whichever of the functions below computes it, and a masked token adds an exact zero: this is what
// makes the backend's results independent of batch, chunking, phase and shared prefixes.
#pragma once

#include <stdint.h>

#include "attention/cpu_tiles/element.h"

namespace warpweave::intel_amx {

constexpr int kBlockTokens = 64;
constexpr int kTokenPadding = 32;    // packed tokens are zero-filled up to a multiple of this
constexpr int kHeadDimPadding = 32;  // head dims likewise
constexpr int kMaxLanes = 16;        // f32 lanes of the widest tier
constexpr int kFewRows = 12;         // KernelSet::few_rows takes up to this many

// A row's running maximum moves only when a block exceeds it by this much (log2): until then
// probabilities are up to 2^kMaxSlack and nothing accumulated has to be rescaled.
constexpr float kMaxSlack = 8;

using cpu_tiles::Element;

// The K, then the V rows of the tokens that come next, fetched towards L2 a few lines at a time
// during the work on the present ones: a burst of misses takes all the miss buffers of L1, and then
// the loads that L2 could answer wait for memory, too.
struct Prefetch {
  const char* const* tokens[2];  // [count] each
  int64_t offset[2];             // bytes from a token to what is wanted of it
  int bytes[2];                  // wanted of each token
  int count = 0;
  int list = 0, token = 0;       // that comes next; nothing is left at list 2
  const char* at = nullptr;      // the next line of it
  const char* end = nullptr;
  int lines_per_step = 0;
};

// The K or V rows of a block: `dim` elements at arbitrary addresses, never read past `dim` or `count`.
struct BlockRows {
  const char* const* rows;            // [count] the tokens
  int64_t head_offset;                // bytes from a token to its row of this head
  const uint8_t* const* scale_rows;   // e2m1: [count] the tokens' block scales
  int64_t scale_head_offset;
  int count;                          // tokens, 1..kBlockTokens
  int dim;
  int padded_dim;
  Element element;
};

struct QueryArgs {
  const float* src;
  int dim;
  int padded_dim;
  uint32_t* out;
};

// State of rows within a chunk: running maximum m (log2), lanes of the running sum l, values o.
struct RowStates {
  float* m;
  float* l;  // [rows][kMaxLanes]
  float* o;  // [rows][v_dim]
};

// What one block means to a group of rows.
struct BlockView {
  const uint64_t* visible;  // per row: bit t for token t; null where every row sees every token
  int count;                // tokens
};

// Up to KernelSet::group_rows rows against packed blocks, in order. `s` and `p` have room for
// two blocks' scores of a group, `rescale` for two floats per row.
struct AttendArgs {
  const uint32_t* q;
  int rows;
  int depth;
  const uint32_t* k;        // blocks, depth * kBlockTokens units apart
  const uint32_t* v;        // blocks, v_block units apart
  int v_block;
  int v_dim;
  const BlockView* blocks;
  int num_blocks;
  float scale;              // of scores, > 0: log2(e) times the softmax's and K's own
  float softcap;            // log2 units; 0: off
  RowStates state;
  float* s;
  uint32_t* p;
  float* rescale;
  Prefetch* prefetch;
};

// One block straight from its pages, for up to kFewRows rows: nothing is packed.
struct FewRowsArgs {
  const AttendArgs* attend;  // rows, q, state and scratch; one block
  BlockRows k, v;
};

// total <- merge(total, chunk), row by row; an empty chunk (m = -inf) changes nothing.
struct MergeArgs {
  int rows;
  int v_dim;
  float *total_m, *total_l, *total_o;
  const float *m, *l, *o;  // l: one sum per row
};

struct FinishArgs {
  const float* o;   // [v_dim]
  float scale;
  int v_dim;        // real, unpadded
  float* out;
};

struct KernelSet {
  const char* name;
  bool bf16_pairs;  // operands are bf16 pairs, else f32
  int group_rows;   // rows that attend() takes at a time
  int tile_rows;    // rows that share packed blocks, a multiple of group_rows
  int row_padding;  // of a group: row buffers are allocated, and may be written, up to a multiple
  void (*pack_query)(const QueryArgs& args);
  void (*pack_k)(const BlockRows& block, uint32_t* out, Prefetch& prefetch);
  void (*pack_v)(const BlockRows& block, uint32_t* out, Prefetch& prefetch);
  void (*attend)(const AttendArgs& args);
  void (*few_rows)(const FewRowsArgs& args);  // null: the tier packs
  void (*sum_lanes)(const float* l, int rows, float* sums);
  void (*merge)(const MergeArgs& args);
  void (*finish)(const FinishArgs& args);
  void (*enter)();  // once per thread before a run of kernels, and after
  void (*leave)();
};

// The f32 set of a tier serves every pool format. A bf16 set serves the formats whose values are
// exact in bf16, of them fp8 and fp4 only where the CPU has AVX512-VBMI.
extern const KernelSet kScalarKernels;
#if defined(__x86_64__)
extern const KernelSet kAvx2Kernels;
extern const KernelSet kAvx512Kernels;
extern const KernelSet kAvx512Bf16Kernels;
extern const KernelSet kAmxBf16Kernels;
#endif

}  // namespace warpweave::intel_amx
