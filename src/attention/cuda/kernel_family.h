// The kernels of a CUDA backend as PagedCudaBackend (paged_backend.h) calls them: what it asks for, how launches cut
// the work, and the functions. Kernels' files include this and know neither batches nor backends.
#pragma once

#include <cuda_runtime_api.h>

#include "attention/cuda/attention_params.h"
#include "attention/cuda/element_type.h"
#include "attention/cuda/split_work.h"

namespace warpweave::cuda {

struct KernelShape {
  ElementType element = ElementType::bf16;
  KvStorage kv = KvStorage::same16;
  int head_dim = 128;
  // The number of kv heads is even, a token's heads are contiguous, and pairs of them are aligned to their size.
  bool head_pairs = false;
};

// What a decode launch of `rows` rows a request (query tokens * group) takes; rows 0: not run.
struct DecodeLayout {
  int rows = 0;         // of a partial result
  int ctas_per_sm = 0;  // workers = this * SMs
  int heads = 1;        // neighbouring kv heads that the plan counts as one
};

// How a tiled launch cuts rows; tile_rows 0: not run.
struct ExtendLayout {
  int tile_rows = 0;
  int rows_per_token = 1;  // group: the q heads of a kv head share a tile; 1: a tile is of one q head
  bool fp8_mma = false;  // Caps::fp8_mma apply
  bool pairs = false;         // a request's last tile, if of few tokens, is of two q heads
  bool tiles_in_turn = false;  // PlanInput
  bool side_by_side = false;  // ExtendWorklist::q_ready is heeded, on any number of SMs
  bool after_decode = false;  // ExtendWorklist::beside_predecessor is heeded
  // Where ExtendCopies are worth it: the tile_rows with them, 0: it takes none. Tiles are then not taken in turn, nor
  // launched under decode.
  int copied_tile_rows = 0;
  int min_copy_reads = 0;  // how often a block must be read, by tiles of q heads, to make up for copying it
  bool copied_before = false;  // by a kernel before the tiles' (ExtendCopies::ready is null)
};

struct DecodeLaunch {
  int rows = 0;            // a request: query tokens * group
  bool multi_row = false;  // requests may have more than one query token
  DecodeWorkspace work;
  int num_workers = 0;
};

struct ExtendLaunch {
  ExtendLayout layout;
  ExtendWorklist work;
  int max_items = 0;       // entries that the worklist may have
  int num_sms = 0;         // that it takes
};

// How a launch for short requests cuts rows; tile_rows 0: not run.
struct ShortLayout {
  int tile_rows = 0;
  int ctas_per_sm = 0;  // workers = this * SMs
  int tile_tokens = 64;  // of K and V
};

// The kernels of one backend. Layout functions are pure.
struct KernelFamily {
  DecodeLayout (*decode_layout)(const KernelShape& shape, int rows, bool multi_row);
  cudaError_t (*decode)(const KernelShape& shape, const AttentionParams& p, const DecodeLaunch& launch,
                        cudaStream_t stream);
  ExtendLayout (*extend_layout)(const KernelShape& shape, const AttentionParams& p, int max_q_len);
  cudaError_t (*extend)(const KernelShape& shape, const AttentionParams& p, const ExtendLaunch& launch,
                        cudaStream_t stream);
  // Requests of up to p.decode_q_len query tokens, split over KV (split_work.h); null: the family has no such kernel.
  ShortLayout (*short_layout)(const KernelShape& shape, const AttentionParams& p, int num_sms) = nullptr;
  cudaError_t (*short_extend)(const KernelShape& shape, const AttentionParams& p, const SplitWork& work,
                              cudaStream_t stream) = nullptr;
  size_t (*short_workspace_bytes)(int num_sms) = nullptr;  // of any layout
};

}  // namespace warpweave::cuda
