// One k head of one request, with the v heads that share it: the unit of work of the CPU kernels. Convolution, gates,
// recurrence, norm and both states of these heads belong to the task alone, so that tasks need no order.
#pragma once

#include "linear/cpu/kernels.h"
#include "linear/linear_attn.h"

namespace warpweave {

// Working memory of one thread, cut from its share of the call's workspace.
struct LinearHeadScratch {
  static constexpr int kTokens = kLinearAttnChunkTokens;
  static constexpr int kPairStride = kTokens + 16;  // not a power of two: rows fall into all sets of the cache

  // `tiles`: with room for operands of products on tiles.
  LinearHeadScratch(const LinearAttnShape& shape, int conv_width, bool tiles, float* memory);
  static size_t floats(const LinearAttnShape& shape, int conv_width, bool tiles);

  int k_stride, v_stride;  // of rows of k_dim and v_dim
  float* k;            // [64, k_stride]; q follows
  float* q;
  float* v;            // [64, v_stride]
  float* u;            // [64, v_stride] S k, the remainder, its solution
  float* o;            // [64, v_stride]
  float* decay;        // [64, k_stride]; GDN [64]
  float* decayed_k;    // [64, k_stride] KDA: decayed since the start of the call's chunk
  float* decayed_q;
  float* local_k;      // [16, k_stride] KDA: decayed since the start of the block
  float* local_q;
  float* reach;        // [64, k_stride] KDA: products of decays up to each token; row 0 alone outside of trees
  float* keys_t;       // [k_dim, kPairStride] k transposed; KDA: decayed up to the end of the block
  float* kk;           // [64, kPairStride] GDN
  float* qk;
  float* weights;
  float* minus_a;
  float* p;
  float* state_t;      // [heads_per_k, k_dim, v_stride]
  float* block;        // [16, 256] rows on their way
  float* beta;         // [64]
  float* kq;           // [64]
  float* since_start;  // [64]
  float* end_decay;    // [256]
  float* conv_x;       // [64 + 7, 256]
  float* conv_weight;  // [8, 256]
  float* windows;      // [2 + heads_per_k, 7, 256]
  int32_t* sources;    // [64, 8]
  // LinearPacked: the left operands of products with the state and of its update, those of the rest, the right ones.
  uint16_t* packed_k;
  uint16_t* packed_q;
  uint16_t* packed_keys;
  uint16_t* packed_a;
  uint16_t* packed_b;

 private:
  LinearHeadScratch() = default;
  size_t lay_out(const LinearAttnShape& shape, int conv_width, bool tiles, float* memory);
};

class LinearHeadTask {
 public:
  LinearHeadTask(const LinearAttnCall& call, const LinearCpuKernels& kernels, const LinearHeadScratch& scratch);

  void decode(int request, int k_head);
  void advance(int request, int k_head);  // extend
  void verify(int request, int k_head);
  void commit(int request, int k_head);

 private:
  // The rows of the call that a run of at most 64 tokens reads, and each one's parent within the run (null: the one
  // before; -1: what the request has carried so far).
  struct Tokens {
    int64_t first = 0;              // row of token i: first + (picked != null ? picked[i] : i)
    const int32_t* picked = nullptr;
    const int32_t* parents = nullptr;
    int count = 0;
    bool carries = true;            // the state after the run is wanted
    int64_t row(int i) const { return first + (picked != nullptr ? picked[i] : i); }
  };

  bool begin(int request, int k_head);
  int v_head(int index) const { return k_head_ * shape_.heads_per_k() + index; }
  int64_t state_at(int slot, int index) const {
    return slot * call_.state.slot_stride + v_head(index) * call_.state.head_stride;
  }

  void zero_rows();
  int path_to(int node, int32_t* path) const;
  void carry();
  void by_steps(const Tokens& tokens, bool outputs);
  void verify_by_steps();
  void by_chunks();
  void chunk(const Tokens& tokens);
  void key_products(const Tokens& tokens);
  void with_state(const Tokens& tokens, const float* state);
  void within_chunk(const Tokens& tokens);
  void advance_state(const Tokens& tokens, float* state);
  void multiply(const LinearGemm& gemm) const;
  LinearPacked to_pack(uint16_t* memory, int uses) const { return {memory, state_parts_, uses, false}; }

  void load_windows();
  void store_windows(int slot);
  void load_state(int index);
  void store_state(int index, int slot);

  // Rows of q (scaled), k and, per v head, v, decay and beta, into the scratch; rows up to a multiple of 16 are zeros.
  void load_qk(const Tokens& tokens);
  void load_v(const Tokens& tokens, int index);
  void load_gates(const Tokens& tokens, int index);
  struct Part { int head, channel, dim, window; };
  void load_part(const Tokens& tokens, const Part& part, const LinearAttnRows& plain, float* out, int64_t stride);
  void convolve(const Tokens& tokens, const Part& part, float* out, int64_t stride);
  void convolve_by_token(const Tokens& tokens, const Part& part, LinearConvRows rows);

  void channel_terms(const Tokens& tokens);
  void channel_block(int first, int end);
  void pairs_with_earlier_blocks(int first, int end);
  void tree_terms(const Tokens& tokens);
  void scalar_terms(const Tokens& tokens);
  void store_outputs(const Tokens& tokens, int index);

  bool is_kda() const { return shape_.kind == LinearAttnKind::kda; }

  const LinearAttnCall& call_;
  const LinearAttnShape shape_;
  const LinearAttnBatch& batch_;
  const LinearCpuKernels& kernels_;
  const LinearHeadScratch& s_;
  int request_ = 0, k_head_ = 0;
  int64_t first_ = 0, end_ = 0;
  int slot_ = -1, initial_ = -1;
  int state_parts_ = 0, output_parts_ = 0;  // LinearGemm::parts of what the state sees and of what outputs alone see
  LinearPacked packed_k_{}, packed_q_{}, packed_keys_{};
};

}  // namespace warpweave
