// One attention backend: the functions of the recipe users know, nothing more.
//
// Lifetime: a backend lives as long as its engine; init_forward_metadata(batch) is called once per
// forward, then forward_extend / forward_decode once per layer with the same batch, but for its slots and page tables,
// which are those of the layer's cache group (ForwardBatch::of_group). Calls come from
// one thread, the device thread; inside, a backend may use the ThreadTeam it was created with.
// K/V of the batch's tokens are already in the pool when forward_* runs (the model writes them
// with ops::write_kv), so a backend only reads the pool.
// Errors: unsupported shapes are refused by Caps before any call, and asserted inside. What the device or a library
// refuses is the returned Status of the call that met it, on every device: the step then fails, and nothing of it is
// published. What is in `out` after a failure means nothing. The next init_forward_metadata begins anew.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "attention/caps.h"
#include "batch/forward_batch.h"
#include "kv/kv_pool_view.h"
#include "warpweave/status.h"
#include "warpweave/tensor.h"

namespace warpweave {

class ThreadTeam;
namespace mods {
struct Modifiers;  // attention/mods/expression.h
}

// Dual chunk attention (An et al. 2024): positions are cut into chunks of chunk_len tokens. A row of
// chunk n meets the keys of chunk n with AttentionCall::q, those of chunk n - 1 with q_succ, older ones
// with q_inter; each is the same query, rotated for other positions. Keys are rotated for their
// position within the chunk.
struct DualChunkQueries {
  const void* q_succ = nullptr;    // [num_tokens, num_q_heads, head_dim], the type of q
  const void* q_inter = nullptr;
  int64_t token_stride = 0;        // of both, in elements
  int chunk_len = 0;
};

// What one layer asks of the backend. On the CPU q and out are f32; on a GPU they are the model's
// dtype and all pointers are device pointers.
struct AttentionCall {
  int layer = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;   // divides num_q_heads
  int head_dim = 0;       // of q and k
  int v_head_dim = 0;
  float scale = 1.0f;     // applied to q.k
  int window_left = -1;   // a row at position p sees kv positions >= p - window_left; -1: all
  // Where the batch is not causal: and those <= p + window_right; -1: all. A bound is for backends that claim
  // Caps::right_window and for requests with at most as many rows as tokens, so that each row sees itself.
  int window_right = -1;
  float logit_softcap = 0;         // 0: off; s = cap * tanh(s / cap)
  const float* sinks = nullptr;    // [num_q_heads] extra logit per head in the softmax's sum
  const void* q = nullptr;         // [num_tokens, num_q_heads, head_dim]
  DType q_dtype = DType::f32;
  int64_t q_token_stride = 0;      // in elements
  KvPoolView k;
  KvPoolView v;
  void* out = nullptr;             // [num_tokens, num_q_heads, v_head_dim]
  DType out_dtype = DType::f32;
  int64_t out_token_stride = 0;
  float* lse = nullptr;            // [num_tokens, num_q_heads] natural log, or null
  const DualChunkQueries* dual_chunk = nullptr;  // null: ordinary attention
  // K and V of the tokens before this forward's rows were in the pool when the forward's first attention call was
  // made; a GPU kernel may then read them while the call's predecessor in the stream still runs.
  bool earlier_kv_settled = false;

  const float* q_f32() const { return static_cast<const float*>(q); }
  float* out_f32() const { return static_cast<float*>(out); }
};

struct GraphLimits {
  int max_batch_size = 0;
  int max_tokens = 0;
  int max_pages_per_request = 0;
};

class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;

  virtual const Caps& caps() const = 0;

  // Plans one forward. `batch` stays valid and unchanged until the forward ends.
  virtual Status init_forward_metadata(const ForwardBatch& batch) = 0;

  // Prefill, prefill with cached prefix, mixed, target verify, draft extend. On a GPU success means enqueued.
  virtual Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) = 0;
  // Every request has exactly one row.
  virtual Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) = 0;

  // Allocates what forward_* of such calls will need, so that they allocate nothing, for callers that
  // must not allocate later; after init_forward_metadata. Pointers in `shape` are not followed. A
  // backend may leave it out and allocate on first use.
  virtual Status reserve(const ForwardBatch& batch, const AttentionCall& shape);

  // Compiles the kernels of such calls with batches of `max_q_len` rows a request (1: decode), for backends that
  // compile at run time; others do nothing. What was not compiled ahead is compiled by the call that needs it. Pointers
  // in `shape` are not followed. Unlike all else here it may be called from several threads at once.
  virtual Status compile(const AttentionCall& shape, int max_q_len);

  // Graphs: backends without Caps::graph_capture keep these defaults, which refuse.
  virtual Status init_cuda_graph_state(const GraphLimits& limits);
  virtual Status init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch);
  virtual Status init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch);
  // Whether steps that verify drafts (target_verify) are captured as decode steps are: with lengths and masks of the
  // batch's device arrays alone.
  virtual bool captures_verification() const { return false; }
  // Before the first forward of a graph, or of its trial run: decode batches of it whose lengths are in the GPU's
  // memory by then. They may be planned at once; each is announced before its own forward all the same.
  virtual Status plan_together(std::span<const ForwardBatch* const> batches);
};

// Everything a backend may need at creation.
struct BackendContext {
  ThreadTeam* team = nullptr;  // not owned, outlives the backend
  int max_context_len = 0;
  int page_size = 1;
  const mods::Modifiers* modifiers = nullptr;  // of flex_attention; copied; null: none
  bool deterministic = false;  // as Caps::deterministic says; without it a backend may be faster
};

}  // namespace warpweave
