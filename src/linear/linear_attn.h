// Linear attention with a delta rule: what a kernel family does, and the structs that it is called with.
//
// Per v head a state S [v_dim, k_dim] takes the place of the KV cache. One token (Yang, Kautz and Hatamizadeh 2024
// for GDN; Kimi Team 2025 for KDA), with the decay a = exp(g), g <= 0, a scalar in GDN and one value per channel of
// k in KDA:
//     S <- S diag(a)           S <- S + beta (v - S k) k^T           o = scale S q
// v head h reads the q and k head h / (v_heads / k_heads).
//
// The optional parts of a layer are in the same call, so that a kernel can fuse them: LinearAttnConv gives q, k and v
// from a causal short convolution, LinearAttnGates gives g and beta from the model's raw gates, LinearAttnNorm norms
// and gates the output. A kernel runs all of them, whatever it fuses.
//
// All pointers are of the kernel's device (host memory for CPU kernels); strides count elements; the innermost
// dimension is contiguous. What a kernel reads and what it writes do not overlap. Calls come from one thread.
// Metadata that no kernel can run is refused by check_linear_attn_call; inside, asserts only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {

class ThreadTeam;

enum class LinearAttnKind : uint8_t { gdn, kda };
std::string_view linear_attn_kind_name(LinearAttnKind kind);  // "GDN", "KDA"

// The calls of a kernel.
enum class LinearAttnPhase : uint8_t { decode, extend, target_verify, commit };
std::string_view linear_attn_phase_name(LinearAttnPhase phase);

// Tokens of a chunk of extend; checkpoints elsewhere cost a shorter chunk each.
inline constexpr int kLinearAttnChunkTokens = 64;
// The least tokens from one checkpoint to the next of a series, and how many checkpoints of a forward kernels make room
// for.
inline constexpr int kLinearAttnLeastInterval = 16;
constexpr int64_t linear_attn_most_checkpoints(int64_t tokens, int64_t requests) {
  return tokens / kLinearAttnLeastInterval + 8 * requests;
}
// Nodes that target_verify takes per request.
inline constexpr int kLinearAttnMaxVerifyNodes = 64;
inline constexpr int kLinearAttnMaxConvWidth = 8;
inline constexpr int kLinearAttnMaxHeadDim = 256;

struct LinearAttnShape {
  LinearAttnKind kind = LinearAttnKind::gdn;
  int k_heads = 0;
  int v_heads = 0;  // a multiple of k_heads
  int k_dim = 0;    // of q and k: a multiple of 16, at most kLinearAttnMaxHeadDim
  int v_dim = 0;    // likewise

  int heads_per_k() const { return v_heads / k_heads; }
  // Channels of the convolution: all heads of q, then of k, then of v.
  int conv_channels() const { return v_channel() + v_heads * v_dim; }
  int v_channel() const { return 2 * k_heads * k_dim; }  // of them, where v begins
  int decay_dim() const { return kind == LinearAttnKind::kda ? k_dim : 1; }
};

// [tokens, heads, dim] of somebody else; data == nullptr: not given.
struct LinearAttnRows {
  const void* data = nullptr;
  DType dtype = DType::f32;  // f32, bf16 or f16
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

// Slots of recurrent state: [slots, v_heads, v_dim, k_dim], k_dim contiguous, a head's matrix dense. Heads of one slot
// are head_stride apart. Slots are owned by a StatePool (src/kv/state_pool.h) or by whoever calls.
struct LinearAttnState {
  void* data = nullptr;
  DType dtype = DType::f32;  // f32 or bf16; updates are computed in f32 and rounded once a call and token
  int64_t slot_stride = 0;
  int64_t head_stride = 0;   // >= v_dim * k_dim
};

// The requests of one forward, equal for all layers. Arrays have one entry per request unless said otherwise.
struct LinearAttnBatch {
  int num_requests = 0;                  // with padded ones
  int64_t num_tokens = 0;                // rows of q, k, v, out; those of no request are left alone
  int max_q_tokens = 0;                  // of the longest request
  // [num_requests + 1] ascending; null: request r is row r. It may begin past row 0: some requests of a larger batch.
  const int32_t* q_indptr = nullptr;
  // Slot that a request's state is written to, and read from where initial_slots is null. -1: a padded row: no state
  // is read or written, its output rows are zeros.
  const int32_t* slots = nullptr;
  // Slot that the state before the first token is read from (a checkpoint, say); -1: zeros, for convolution and
  // recurrence alike. null: slots. One that is another request's `slots` must not be.
  const int32_t* initial_slots = nullptr;
  // extend: copies of the state taken on the way. Request r has entries [checkpoint_indptr[r], [r + 1]), ascending by
  // tokens; each says after how many of the call's tokens of that request (1 .. its length) and into which slot.
  const int32_t* checkpoint_indptr = nullptr;  // [num_requests + 1], or null: none
  const int32_t* checkpoint_tokens = nullptr;
  const int32_t* checkpoint_slots = nullptr;
  // Each of them is after a multiple of kLinearAttnChunkTokens of the call's tokens of its request, or after all: the
  // chunks are then those of a call without checkpoints, and kernels need not find out where they are.
  bool checkpoints_end_chunks = false;
  // target_verify and commit: [num_tokens] the parent of each node as an index within its request, smaller than its
  // own; -1: a root, which follows the request's state. null: a chain.
  const int32_t* parents = nullptr;
  // commit: the last node that was accepted, as an index within its request; its path of parents becomes part of the
  // state. -1: none, the state stays.
  const int32_t* accepted = nullptr;
};

// y[t, c] = silu(bias[c] + sum_j weight[c, j] x[t - (width - 1) + j, c]); rows before the call's come from the state.
struct LinearAttnConv {
  LinearAttnRows x;                // [tokens, conv_channels]; head_stride unused
  const float* weight = nullptr;   // [conv_channels, width], tap width - 1 is the newest row
  const float* bias = nullptr;     // [conv_channels], or null
  // Where a model makes the weights of v's channels of each token (Jet-Nemotron, Gu et al. 2025): [tokens, v channels,
  // width], in place of their weight and bias; head_stride unused. Not given: all are fixed.
  LinearAttnRows v_weight = {};
  int width = 4;                   // 2 .. kLinearAttnMaxConvWidth
  bool silu = true;
  void* state = nullptr;           // [slots, conv_channels, width - 1], the newest row last, a slot dense
  DType state_dtype = DType::f32;  // f32 or bf16
  int64_t slot_stride = 0;
};

// g = -exp(a_log[h]) softplus(a + dt_bias), beta = sigmoid(b).
struct LinearAttnGates {
  LinearAttnRows a;                // GDN [tokens, v_heads]; KDA [tokens, v_heads, k_dim]
  LinearAttnRows b;                // [tokens, v_heads]
  const float* a_log = nullptr;    // [v_heads]
  const float* dt_bias = nullptr;  // [v_heads] or, KDA, [v_heads, k_dim]; null: 0
};

enum class LinearAttnNormGate : uint8_t { silu, sigmoid };

// out = o / sqrt(mean(o^2) + eps) * weight * gate(z), per token and head.
struct LinearAttnNorm {
  LinearAttnRows z;                // [tokens, v_heads, v_dim]; not given: no gate
  const float* weight = nullptr;   // [v_dim]
  float eps = 1e-6f;
  LinearAttnNormGate gate = LinearAttnNormGate::silu;
};

// One layer of one forward.
struct LinearAttnCall {
  LinearAttnShape shape;
  const LinearAttnBatch* batch = nullptr;
  // Without `conv`: after their convolution. With it: not given.
  LinearAttnRows q;                // [tokens, k_heads, k_dim]
  LinearAttnRows k;                // [tokens, k_heads, k_dim]
  LinearAttnRows v;                // [tokens, v_heads, v_dim]
  // Without `gates`: log decay (<= 0; GDN [tokens, v_heads], KDA [tokens, v_heads, k_dim]) and step size [tokens,
  // v_heads], both f32. With it: not given.
  LinearAttnRows g;
  LinearAttnRows beta;
  const LinearAttnConv* conv = nullptr;
  const LinearAttnGates* gates = nullptr;
  const LinearAttnNorm* norm = nullptr;
  bool l2norm = false;             // q and k are divided by sqrt(sum of squares + l2norm_eps), per head
  float l2norm_eps = 1e-6f;
  float scale = 1.0f;              // of the output; models use k_dim^-0.5
  bool exact = false;              // extend, target_verify: GEMMs in f32, however slow; kernels of CPUs have no others
  // extend: may take the form that suits its batch, so that a request's bits depend on the batch around it whatever the
  // kernel's caps promise.
  bool any_form = false;
  // decode, target_verify, commit: a drafted node gets the bits that decode gives its token, and leaves its state; on
  // CPUs with states in f32. extend: chunks however few tokens there are, so that a prompt may be cut between chunks.
  // Slower.
  bool same_bits_drafted = false;
  LinearAttnState state;
  void* out = nullptr;             // [tokens, v_heads, v_dim]
  DType out_dtype = DType::f32;    // f32, bf16 or f16
  int64_t out_token_stride = 0;    // heads are v_dim apart
  void* workspace = nullptr;       // of the kernel's workspace_bytes, 256-byte aligned; contents are its own
  size_t workspace_bytes = 0;
  void* stream = nullptr;          // cudaStream_t; null on the CPU
};

// The largest forward that a workspace must do for.
struct LinearAttnLimits {
  int max_requests = 0;
  int64_t max_tokens = 0;          // of one forward
  int conv_width = 0;              // 0: no convolution in the call
};

// Which of the calls below a family has, and for what: data, as Caps are for the attention backends.
struct LinearAttnKernelCaps {
  std::string_view name;           // "cpu", "tile", "wgmma": what stands behind the names of flags
  bool gdn = false, kda = false;
  bool decode = false, extend = false, verify_chain = false, verify_tree = false;
  bool bf16_state = false;         // f32 is there always
  bool checkpoints = false;        // extend leaves those that its batch lists; else its callers cut their calls there
  bool graph_capture = false;
  bool deterministic = false;      // a request's bits do not depend on the batch around it
};

// One kernel family on one device. decode, extend, target_verify and commit may be of different families for one
// model: they meet in the state, whose layout all share. Nothing is allocated in a call.
class LinearAttnKernelBase {
 public:
  virtual ~LinearAttnKernelBase() = default;

  virtual const LinearAttnKernelCaps& caps() const = 0;

  // Compiles the kernels of a shape before its first call, where they are compiled at run time.
  virtual Status prepare(const LinearAttnShape&) { return {}; }

  // Bytes of workspace that every call within the limits needs; 0 is possible.
  virtual size_t workspace_bytes(const LinearAttnShape& shape, const LinearAttnLimits& limits) const = 0;

  // One token per request: q_indptr is null, or of rows of one token each (check_linear_attn_batch takes null only).
  virtual void decode(const LinearAttnCall& call) = 0;
  // Any number of tokens per request, 0 among them (the state is then only carried from initial_slots to slots).
  virtual void extend(const LinearAttnCall& call) = 0;
  // The outputs of drafted nodes; neither state is written. At most kLinearAttnMaxVerifyNodes nodes per request.
  virtual void target_verify(const LinearAttnCall& call) = 0;
  // After a target_verify with the same call, inputs and states: advances both states along the accepted path
  // (batch->accepted). `out` and `norm` are not used.
  virtual void commit(const LinearAttnCall& call) = 0;

  // The first failure of the calls since it was last asked: what they write is then undefined. For kernels that learn
  // of it in the call; those of GPUs fail their stream, and those of CPUs do not fail.
  virtual Status take_failure() { return {}; }
};

// The metadata of a call, on the host: shapes, types, strides, which parts are given. `invalid_argument` with the
// struct's member as field, the rule and the value. Reads no tensor, so it serves callers of every device.
Status check_linear_attn_call(const LinearAttnCall& call);
// The index arrays, in host memory, for one call: ascending q_indptr, slots below `num_slots`, none written twice,
// parents before their nodes and not more of them than a kernel takes, checkpoints in order. For callers that hold them
// there; kernels follow these arrays unchecked.
Status check_linear_attn_batch(const LinearAttnBatch& batch, int num_slots,
                               LinearAttnPhase phase = LinearAttnPhase::extend);

}  // namespace warpweave
