// The gated delta net layers of Qwen3-Next, Qwen3.5 and Jet-Nemotron (GDN) and of Kimi Linear (KDA) on the host: input
// GEMMs, then one LinearAttnCall with its convolution, gates, l2norm and gated norm, then the output GEMM.
//
// The input GEMMs make one row per token, so that the convolution and the gates read their part of it in place: q of
// all heads, k, v, then in GDN z, b, a, all of one GEMM. In KDA b follows v; a and z have a value per channel and come
// through GEMMs of a low rank each, and z passes a sigmoid. Where a model makes the weights of v's convolution of each
// token, they stand at the end of the row, through a low rank with a SiLU in it. Weights are read only; one call at a
// time per dispatcher.
#pragma once

#include <algorithm>
#include <vector>

#include "linear/dispatch.h"
#include "ops/linear.h"

namespace warpweave {

template <typename Linear, typename Vector>
struct GdnLayerWeightsOf {
  static constexpr int64_t kColumnAlign = 128;  // values: cuBLASLt takes 256 bytes for granted

  LinearAttnShape shape;
  int conv_width = 4;
  float norm_eps = 1e-6f;
  Linear in;                        // hidden -> row_width(), in KDA to q, k, v and b
  Linear a_down, a_up;              // KDA: hidden -> rank -> v_heads x k_dim
  Linear z_down, z_up;              // KDA: hidden -> rank -> v_heads x v_dim
  bool token_weights = false;       // LinearAttnConv::v_weight
  Linear weight_down, weight_up;    // with it: hidden -> rank -> v_heads x v_dim x conv_width
  Linear out;                       // v_heads x v_dim -> hidden
  Vector conv_weight;               // [conv_channels, conv_width]
  Vector a_log;                     // [v_heads]
  Vector dt_bias;                   // [v_heads], in KDA [v_heads, k_dim]
  Vector norm_weight;               // [v_dim]

  int64_t v_width() const { return int64_t{shape.v_heads} * shape.v_dim; }
  bool is_kda() const { return shape.kind == LinearAttnKind::kda; }
  int64_t a_width() const { return int64_t{shape.v_heads} * shape.decay_dim(); }
  // Where the parts of a row begin; those of a GEMM of their own where libraries expect a matrix to.
  static int64_t aligned_column(int64_t column) { return (column + kColumnAlign - 1) / kColumnAlign * kColumnAlign; }
  int64_t z_column() const {
    return is_kda() ? aligned_column(shape.conv_channels() + shape.v_heads) : shape.conv_channels();
  }
  int64_t b_column() const { return shape.conv_channels() + (is_kda() ? 0 : v_width()); }
  int64_t a_column() const { return is_kda() ? aligned_column(z_column() + v_width()) : b_column() + shape.v_heads; }
  int64_t weight_column() const { return aligned_column(a_column() + a_width()); }
  int64_t row_width() const {
    return token_weights ? weight_column() + v_width() * conv_width : a_column() + a_width();
  }
  // The widest of the low ranks; 0: there are none. `out_features`: of a Linear.
  template <typename OutFeatures>
  int64_t widest_rank(const OutFeatures& out_features) const {
    int64_t rank = is_kda() ? std::max<int64_t>(out_features(a_down), out_features(z_down)) : 0;
    if (token_weights) rank = std::max<int64_t>(rank, out_features(weight_down));
    return rank;
  }
  LinearAttnNormGate norm_gate() const { return is_kda() ? LinearAttnNormGate::sigmoid : LinearAttnNormGate::silu; }
};

using GdnLayerWeights = GdnLayerWeightsOf<PackedLinear, std::vector<float>>;

// What `in` is packed from where a checkpoint keeps q, k, v and z of a k head side by side (in_proj_qkvz), then b and a
// (in_proj_ba), as Qwen3-Next's do. Both have rank 2 and hidden columns; `invalid_argument` for other numbers of rows.
Result<std::vector<LinearPart>> gdn_grouped_input(const LinearAttnShape& shape, const TensorView& qkvz,
                                                  const TensorView& ba);

struct GdnLayerCall {
  LinearAttnPhase phase = LinearAttnPhase::extend;
  bool same_bits_drafted = false;  // as in LinearAttnCall
  const LinearAttnBatch* batch = nullptr;
  LinearInput x;                    // [tokens, hidden], normed; not read by commit
  LinearOutput y;                   // [tokens, hidden]; not written by commit
  LinearAttnState state;
  void* conv_state = nullptr;
  DType conv_state_dtype = DType::f32;
  int64_t conv_slot_stride = 0;
  float* rows = nullptr;            // [tokens, row_width()]; target_verify leaves in it what commit reads
  float* heads = nullptr;           // [tokens, v_width()]
  float* low = nullptr;             // [tokens, widest_rank()]
  void* workspace = nullptr;        // of the dispatcher's workspace_bytes, 256-byte aligned
  size_t workspace_bytes = 0;
};

// As check_linear_attn_call and the kernels' take_failure(); the GEMMs only assert.
Status run_gdn_layer(const GdnLayerWeights& weights, const GdnLayerCall& call, LinearAttnDispatcher& kernels,
                     ThreadTeam& team);
// The same up to call.heads: without the output GEMM, for callers that want it of some rows.
Status run_gdn_heads(const GdnLayerWeights& weights, const GdnLayerCall& call, LinearAttnDispatcher& kernels,
                     ThreadTeam& team);

}  // namespace warpweave
