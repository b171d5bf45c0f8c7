// The argument of every tile kernel of linear attention: the whole contract between host code and kernel text. Compiled
// by the host, and the first part of the kernel text after attention/tile/tile_args.h, whose types it uses.
//
// Addresses are those the device uses; 0 means absent. Strides are in elements. Arrays of the batch are those of
// LinearAttnBatch; parents are given to verify and commit alone.
#ifndef WW_LINEAR_TILE_ARGS_H
#define WW_LINEAR_TILE_ARGS_H

#define LINEAR_DECODE 0
#define LINEAR_EXTEND 1
#define LINEAR_VERIFY 2
#define LINEAR_COMMIT 3

// LinearAttnRows. Formats: F32_VALUES, BF16_VALUES, F16_VALUES of kernels/values.cl.
typedef struct LinearTileRows {
  tile_address data;
  tile_stride token_stride, head_stride;
  int format, reserved;
} LinearTileRows;

typedef struct LinearTileArgs {
  LinearTileRows q, k, v;      // without a convolution
  LinearTileRows x, v_weight;  // of the convolution; v_weight may be absent
  LinearTileRows decay, beta;  // with has_gates the raw gates a and b, else g and beta
  LinearTileRows z;
  tile_address conv_weight, conv_bias, conv_state;
  tile_address a_log, dt_bias, norm_weight;
  tile_address state, out;
  tile_address q_indptr, slots, initial_slots, parents, accepted;
  tile_address checkpoint_indptr, checkpoint_tokens, checkpoint_slots;
  // The workspace, f32: what `prepare` makes of each token. [heads, num_tokens, dim padded to whole lanes] each; keys
  // and queries are normed, queries scaled; the decay exp(g) is [v_heads, num_tokens] in GDN, as is beta in both.
  tile_address row_q, row_k, row_v, row_decay, row_beta;
  tile_address row_out;  // outputs before their norm; 0 without a norm
  tile_stride state_slot_stride, state_head_stride, conv_slot_stride, out_token_stride;
  int mode;
  int num_requests, num_tokens;
  int k_heads, v_heads, k_dim, v_dim;
  int tile_v;                                    // columns of v of a work-group of `chunks`
  int channel_decay;                             // KDA
  int conv_width, conv_silu, conv_state_format;  // width 0: no convolution
  int state_format, out_format;
  int has_gates, l2norm, norm_sigmoid;
  float scale, l2norm_eps, norm_eps;
} LinearTileArgs;

#endif
