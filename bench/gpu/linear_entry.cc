// The kernels of linear attention behind two C functions, for programs that time them beside others' in one process
// (linear_peers.py): decode and extend of one layer with raw gates and l2norm within, as models call them, on tensors that are on
// the GPU. All but the workspace's size may be captured into a graph.
#include <cmath>
#include <memory>

#include "linear/cuda/cuda_device.h"
#include "linear/linear_attn.h"

using namespace warpweave;

extern "C" {

// q, k [tokens, k_heads, k_dim], v [tokens, v_heads, v_dim], a [tokens, v_heads] or, KDA, [tokens, v_heads, k_dim], b [tokens,
// v_heads], out as v: bf16. a_log [v_heads], dt_bias as a row of a: f32. states [slots, v_heads, v_dim, k_dim].
struct WwLinearBenchCall {
  int kda, k_heads, v_heads, k_dim, v_dim;
  int requests, longest;             // tokens of the longest request
  int64_t tokens;                    // of all
  int decode, bf16_state;
  const void *q, *k, *v, *a, *b;
  const float *a_log, *dt_bias;
  const int32_t *q_indptr, *slots;   // of extend [requests + 1]; [requests]
  void *states, *out, *workspace;
  size_t workspace_bytes;
  void* stream;
};

size_t ww_linear_bench_workspace(const WwLinearBenchCall* c) {
  const LinearAttnShape shape = {c->kda != 0 ? LinearAttnKind::kda : LinearAttnKind::gdn, c->k_heads, c->v_heads, c->k_dim, c->v_dim};
  return linear::make_cuda_linear_kernel(true)->workspace_bytes(shape, {c->requests, c->tokens, 0});
}

void ww_linear_bench_run(const WwLinearBenchCall* c) {
  static const std::unique_ptr<LinearAttnKernelBase> kernel = linear::make_cuda_linear_kernel(true);
  const auto rows = [](const void* data, int heads, int dim) { return LinearAttnRows{data, DType::bf16, int64_t{heads} * dim, dim}; };
  LinearAttnCall call;
  call.shape = {c->kda != 0 ? LinearAttnKind::kda : LinearAttnKind::gdn, c->k_heads, c->v_heads, c->k_dim, c->v_dim};
  LinearAttnBatch batch;
  batch.num_requests = c->requests, batch.num_tokens = c->tokens, batch.max_q_tokens = c->longest;
  batch.q_indptr = c->decode != 0 ? nullptr : c->q_indptr;
  batch.slots = c->slots;
  call.batch = &batch;
  call.q = rows(c->q, c->k_heads, c->k_dim), call.k = rows(c->k, c->k_heads, c->k_dim), call.v = rows(c->v, c->v_heads, c->v_dim);
  LinearAttnGates gates;
  gates.a = rows(c->a, c->v_heads, call.shape.decay_dim()), gates.b = rows(c->b, c->v_heads, 1);
  gates.a_log = c->a_log, gates.dt_bias = c->dt_bias;
  call.gates = &gates;
  call.l2norm = true;
  call.any_form = true;  // as models and the library's functions call them
  call.scale = 1.0f / std::sqrt(static_cast<float>(c->k_dim));
  const int64_t head = int64_t{c->v_dim} * c->k_dim;
  call.state = {c->states, c->bf16_state != 0 ? DType::bf16 : DType::f32, head * c->v_heads, head};
  call.out = c->out, call.out_dtype = DType::bf16, call.out_token_stride = int64_t{c->v_heads} * c->v_dim;
  call.workspace = c->workspace, call.workspace_bytes = c->workspace_bytes;
  call.stream = c->stream;
  c->decode != 0 ? kernel->decode(call) : kernel->extend(call);
}

}  // extern "C"
