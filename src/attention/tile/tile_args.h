// The arguments of every tile kernel: the whole contract between host code and kernel text. This
// file is compiled by the host and is also the first part of the kernel text, in every dialect.
//
// Addresses are those the device uses: host addresses on an OpenCL CPU, device addresses on a GPU.
// 0 means absent. Strides are in elements. Arrays of the batch are those of ForwardBatch.
#ifndef WW_TILE_ARGS_H
#define WW_TILE_ARGS_H

#if defined(__OPENCL_C_VERSION__)
typedef ulong tile_address;
typedef long tile_stride;
#else
typedef unsigned long long tile_address;
typedef long long tile_stride;
#endif

typedef struct TileArgs {
  tile_address q, k, v, out, lse;
  tile_address sinks;                    // f32 [num_q_heads]
  tile_address k_block_scales, v_block_scales;  // e4m3, for fp4_e2m1
  tile_address k_head_scales, v_head_scales;    // f32 [num_kv_heads]
  tile_address q_indptr, kv_lens, page_table, positions, tree_mask;
  tile_address q_succ, q_inter;  // dual chunk attention: the other forms of q
  // With splits: f32 [splits, num_tokens, num_q_heads, PARTIAL_STRIDE]; else 0.
  tile_address partial_out;
  // With splits: f32 [splits, num_tokens, num_q_heads, 2], maximum in log2 units and sum.
  tile_address partial_stats;
  tile_stride q_token_stride, q_form_token_stride, out_token_stride;
  tile_stride k_page_stride, k_token_stride, k_head_stride;
  tile_stride v_page_stride, v_token_stride, v_head_stride;
  int num_reqs, num_tokens, num_q_heads, num_kv_heads;
  int group;                  // query heads per KV head
  int page_size, page_table_stride, tree_mask_words;
  int page_shift;             // log2(page_size), or -1
  int tiles_per_request;      // > 0: every request has this many tiles; 0: found from q_indptr
  int num_tiles;
  int splits;                 // of the grid, where they are as long as the tokens need (SPLIT_TOKENS 0)
  int window_left;            // -1: all
  int window_right;           // where not causal; -1: all
  int causal;
  int chunk_len;              // dual chunk attention; see attention/backend.h
  float scale_log2;           // softmax scale * log2(e); with a softcap: softmax scale / softcap
  float softcap_log2;         // softcap * log2(e); 0: off
} TileArgs;

#endif
