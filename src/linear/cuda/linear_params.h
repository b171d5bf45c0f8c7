// What the kernels of linear attention read: a LinearAttnCall (linear/linear_attn.h) without pointers to host memory, and
// the workspace's parts. Passed by value.
#pragma once

#include <cstdint>

#include "linear/linear_attn.h"

namespace warpweave::linear {

inline constexpr int kChunk = kLinearAttnChunkTokens;
// Decays are powers of two with exponents of at least this: less is 0 in f32, and sums of a chunk keep their precision.
inline constexpr float kLeastLog2Decay = -160.0f;

inline constexpr int kDecodeMostDim = 128;  // of k, that decode.cuh takes

enum class RecurrentMode { decode, extend, commit };

// A piece of a request that is computed at once.
struct Chunk {
  int request, first, tokens;  // first: row of the batch
  int index;                   // among the batch's chunks, not dense
};

// What chunk_prepare leaves for chunk_scan. Per v head h, `rows` rows of tokens; chunk-local indices i, j; 2^G: the product of
// decays from the chunk's beginning to a token, that token's included.
//   t[h][i][64]: beta_j of (I + A)^-1, A[i][j] = beta_i k_i k_j 2^(G_i - G_j), j < i
//   p[h][i][64]: scale q_i k_j 2^(G_i - G_j), j <= i
//   GDN: factors[h][i] = {2^G_i, scale 2^G_i, 2^(G_last - G_i), 2^G_last}, the first three times the norms of k, q, k
//   KDA: kg = k 2^G_i, qg = scale q 2^G_i, kd = k 2^(G_last - G_i), decay[h][chunk] = 2^G_last
struct ChunkWork {
  const Chunk* list = nullptr;       // null: chunks are found by arithmetic (chunk_list.cuh)
  const int* list_first = nullptr;   // [requests + 1] first entry of each request, then their number
  int grid_chunks = 0;               // blocks along the chunks
  int64_t rows = 0;
  int64_t capacity = 0;              // chunks
  void* t = nullptr;
  void* p = nullptr;
  float* factors = nullptr;          // four a row
  void* kg = nullptr;
  void* qg = nullptr;
  void* kd = nullptr;
  float* decay = nullptr;
};

struct LinearParams {
  int k_heads = 0, v_heads = 0, heads_per_k = 0, k_dim = 0, v_dim = 0;
  int decay_channels = 1;            // k_dim in KDA
  LinearAttnBatch batch;
  LinearAttnRows q, k, v, g, beta;   // q, k and v: 16-bit elements for chunks, or as they come for the recurrence
  bool has_gates = false;
  LinearAttnGates gates;
  bool vectors = false;              // q, k, v and KDA's gates may be read by four elements
  bool l2norm = false;
  float l2norm_eps = 0;
  float scale = 1;
  LinearAttnState state;
  void* out = nullptr;
  DType out_dtype = DType::f32;
  int64_t out_token_stride = 0;
  bool out_vectors = false;          // rows of 16-bit outputs begin at multiples of 16 bytes
  bool writes_state = true;
  int decode_rows = 0;               // of a block of decode.cuh: a multiple of 16 that divides v_dim; v_dim with a norm
  bool has_norm = false;             // of decode.cuh, within its kernel
  LinearAttnNorm norm;
  bool state_settled = false;        // decode: no kernel that may still run writes the state, but this one
  ChunkWork work;
};

// Whether decode.cuh has this shape.
inline bool decode_takes(const LinearParams& p) { return p.k_dim == 64 || p.k_dim == kDecodeMostDim; }

}  // namespace warpweave::linear
