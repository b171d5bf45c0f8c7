// What the kernels of linear attention read: a LinearAttnCall (linear/linear_attn.h) without pointers to host memory, and
// the workspace's parts. Passed by value.
#pragma once

#include <cstdint>

#include "linear/linear_attn.h"

namespace warpweave::linear {

inline constexpr int kChunk = kLinearAttnChunkTokens;
// Decays are powers of two with exponents of at least this: less is 0 in f32, and sums of a chunk keep their precision.
inline constexpr float kLeastLog2Decay = -160.0f;

enum class RecurrentMode { decode, extend, commit };

// Of a launch for one request: v heads times parts of their columns.
inline constexpr int kMostScanBlocks = 1024;

// A piece of a request that is computed at once.
struct Chunk {
  int request, first, tokens;  // first: row of the batch
  int index;                   // among the batch's chunks, not dense
};

// A long prompt that is alone is computed in segments (from which length on: chunked_kernel.cc), each by a launch of chunk_prepare and
// one of chunk_scan: the scan of one, on few multiprocessors, runs beside the preparation of the next. A segment has the chunks
// that begin at its tokens.
struct Segment {
  int index = -1;                    // -1: all is one launch of each
  int begin = 0, end = 0x7fffffff;   // tokens of the request
  bool last = true;
};

// Prompts whose scans leave much of the device idle are cut into pieces of `chunks` chunks that are scanned at once. Without V, S at a
// piece's end is S at its beginning times a matrix. A first launch finds that matrix, as what an identity becomes where V is zeros, and
// what zeros become by V (chunk_scan_ends.cuh); a second goes through the matrices (chunk_pieces.cuh); then each piece begins where it
// should. The first piece's end comes from the request's own state at once, and the last one's is not asked for.
struct Pieces {
  int most = 0;               // of a request; 0: requests are scanned whole
  int chunks = 0;             // of a piece
  float* begins = nullptr;    // [request, piece, v_heads, v_dim, k_dim]: states; until the second launch ends of the pieces before
  void* transfers = nullptr;  // [request, piece, v_heads]: matrices of four bytes an element, as fragment_at() says
};
inline constexpr int kMostHeadPieces = 96;  // heads times pieces of a batch

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
  Segment segment;
  float* handover = nullptr;         // [v_heads, v_dim, k_dim]: the state between segments
  int* handed_over = nullptr;        // [blocks of a scan]: segments that are done
  Pieces pieces;
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
  int least_nodes = 0;               // kernels of chunks leave requests of fewer tokens alone
  int decode_blocks = 0;             // of decode.cuh
  int decode_units = 1;              // there: how many share a head's rows; 1 with a norm
  bool decode_by_turns = false;      // there: a block takes every decode_blocks-th unit, else neighbouring ones
  int fused_blocks = 0;              // of fused.cuh
  bool has_norm = false;             // of decode, within its kernel
  LinearAttnNorm norm;
  bool norm_vectors = false;         // its weights and z may be read by 16 bytes
  bool state_settled = false;        // decode: no kernel that may still run writes the state, but this one
  ChunkWork work;
};

inline constexpr int kFewNodes = 16;  // of a request, at most, of those that verify_few.cuh takes
inline bool verify_few_takes(const LinearParams& p) { return !p.writes_state && p.k_dim <= 128; }

// Whether fused.cuh has this call's shape and types.
inline bool fused_takes(const LinearParams& p) {
  return p.decay_channels == 1 && p.k_dim == 128 && p.v_dim == 128 && p.writes_state && p.out_vectors && p.out_dtype != DType::f32;
}

}  // namespace warpweave::linear
