/* An attention backend outside Warpweave: one pass over the tokens with a running maximum
 * (Milakov and Gimelshein 2018), one row and head at a time. Plain C, needs only warpweave/plugin.h.
 *
 * What it does not claim (tree masks, fp8 and fp4 caches, bidirectional attention) is never asked of it.
 * Each row is computed from its own q and tokens in the order of their positions, so its bits do not
 * depend on the batch: that is why it may claim `deterministic`.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "warpweave/plugin.h"

enum { MAX_HEAD_DIM = 512 };

typedef struct {
  ww_plugin_host host;
  float* values; /* [threads][MAX_HEAD_DIM]: a token's K or V as f32 */
} backend_t;

/* ---- Reading the pages ---- */

static void read_row(const ww_tensor* pages, ww_kv_format format, int64_t page, int64_t offset, int64_t head,
                     int dim, float* out) {
  const int64_t at = page * pages->strides[0] + offset * pages->strides[1] + head * pages->strides[2];
  const char* data = (const char*)pages->data + pages->byte_offset;
  int i;
  if (format == WW_KV_F32) {
    memcpy(out, (const float*)data + at, (size_t)dim * sizeof(float));
    return;
  }
  for (i = 0; i < dim; ++i) { /* bf16: the upper half of a float */
    const uint32_t bits = (uint32_t)((const uint16_t*)data)[at + i] << 16;
    memcpy(out + i, &bits, sizeof bits);
  }
}

/* ---- One row and head ---- */

typedef struct {
  const ww_forward_batch* batch;
  const ww_attention_call* call;
  backend_t* backend;
} forward_t;

static void attend(const forward_t* f, int request, int row, int head, float* scratch) {
  const ww_forward_batch* batch = f->batch;
  const ww_attention_call* call = f->call;
  const int kv_head = head / (call->num_q_heads / call->num_kv_heads);
  const int q_len = batch->q_indptr[request + 1] - batch->q_indptr[request];
  const int position = batch->kv_lens[request] - q_len + row;
  const int64_t at = batch->q_indptr[request] + row;
  const float* q = (const float*)call->q.data + at * call->q.strides[0] + head * call->q.strides[1];
  float* out = (float*)call->out.data + at * call->out.strides[0] + head * call->out.strides[1];
  const int first = call->window_left >= 0 && position > call->window_left ? position - call->window_left : 0;
  /* The sink is a logit without a value: the sum starts with it. */
  double top = call->sinks != NULL ? call->sinks[head] : -INFINITY;
  double sum = call->sinks != NULL ? 1 : 0;
  int t, i;

  for (i = 0; i < call->v_head_dim; ++i) out[i] = 0;
  if (batch->kv_lens[request] == 0) { /* a row that sees nothing */
    if (call->lse_ln != NULL) call->lse_ln[at * call->num_q_heads + head] = -INFINITY;
    return;
  }
  for (t = first; t <= position; ++t) {
    const int64_t page = batch->page_table[(int64_t)request * batch->page_table_stride + t / batch->page_size];
    double score = 0, shrink, weight;
    read_row(&call->k, call->kv_format, page, t % batch->page_size, kv_head, call->head_dim, scratch);
    for (i = 0; i < call->head_dim; ++i) score += (double)q[i] * scratch[i];
    score *= call->scale;
    if (call->logit_softcap > 0) score = call->logit_softcap * tanh(score / call->logit_softcap);

    shrink = score > top ? exp(top - score) : 1; /* what the sums so far are worth under the new maximum */
    if (score > top) top = score;
    weight = exp(score - top);
    sum = sum * shrink + weight;
    read_row(&call->v, call->kv_format, page, t % batch->page_size, kv_head, call->v_head_dim, scratch);
    for (i = 0; i < call->v_head_dim; ++i) out[i] = (float)(out[i] * shrink + weight * scratch[i]);
  }
  for (i = 0; i < call->v_head_dim; ++i) out[i] = (float)(out[i] / sum);
  if (call->lse_ln != NULL) call->lse_ln[at * call->num_q_heads + head] = (float)(top + log(sum));
}

/* Items [begin, end) of rows x heads, on one thread of the server. */
static void attend_items(void* arg, int64_t begin, int64_t end, int32_t member) {
  const forward_t* f = arg;
  const ww_forward_batch* batch = f->batch;
  int64_t item;
  int request = 0;
  for (item = begin; item < end; ++item) {
    const int32_t row = (int32_t)(item / f->call->num_q_heads);
    while (row >= batch->q_indptr[request + 1]) ++request;
    attend(f, request, row - batch->q_indptr[request], (int)(item % f->call->num_q_heads),
           f->backend->values + (size_t)member * MAX_HEAD_DIM);
  }
}

/* ---- The functions of the table ---- */

static ww_status create(const ww_plugin_host* host, void** backend, ww_plugin_error* error) {
  backend_t* created = calloc(1, sizeof *created);
  if (created != NULL) {
    created->host = *host;
    created->values = calloc((size_t)host->threads * MAX_HEAD_DIM, sizeof(float));
  }
  if (created == NULL || created->values == NULL) {
    free(created);
    snprintf(error->text, error->capacity, "no memory for %d threads", (int)host->threads);
    return WW_RESOURCE_EXHAUSTED;
  }
  *backend = created;
  return WW_OK;
}

static void destroy(void* backend) {
  free(((backend_t*)backend)->values);
  free(backend);
}

/* Nothing to plan: a faster backend would cut the work into tiles here. */
static ww_status init_forward_metadata(void* backend, const ww_forward_batch* batch, ww_plugin_error* error) {
  (void)backend;
  (void)batch;
  (void)error;
  return WW_OK;
}

/* Prefill and decode alike: rows that see tokens. */
static ww_status forward(void* backend, const ww_forward_batch* batch, const ww_attention_call* call, ww_plugin_error* error) {
  forward_t f;
  if (call->head_dim > MAX_HEAD_DIM) { /* never asked of it: its Caps say so */
    snprintf(error->text, error->capacity, "head dim %d is more than %d", (int)call->head_dim, (int)MAX_HEAD_DIM);
    return WW_UNSUPPORTED;
  }
  f.batch = batch;
  f.call = call;
  f.backend = backend;
  f.backend->host.parallel_for(f.backend->host.host, (int64_t)batch->num_rows * call->num_q_heads, attend_items, &f);
  return WW_OK;
}

/* ---- What it can do ---- */

static const ww_backend_caps caps = {
    .struct_size = sizeof(ww_backend_caps),
    .kinds = WW_KIND_MHA,
    .phases = WW_PHASE_PREFILL | WW_PHASE_DECODE,
    .devices = WW_RUNS_ON_CPU,
    .model_dtypes = WW_MODEL_F32 | WW_MODEL_BF16,
    .kv_formats = WW_KV_BIT(WW_KV_F32) | WW_KV_BIT(WW_KV_BF16),
    .head_dims = {.max = MAX_HEAD_DIM}, /* every one up to that */
    .page_sizes = {0},                  /* every one */
    .sliding_window = 1,
    .sinks = 1,
    .softcap = 1,
    .chunked_prefix = 1,
    .deterministic = 1,
    .workspace_bytes = MAX_HEAD_DIM * sizeof(float),
    .name = "online_softmax",
    .summary = "example plug-in: one pass with a running maximum",
};

static const ww_backend_table table = {
    .struct_size = sizeof(ww_backend_table),
    .abi_version = WW_PLUGIN_ABI_VERSION,
    .caps = &caps,
    .create = create,
    .destroy = destroy,
    .init_forward_metadata = init_forward_metadata,
    .forward_extend = forward,
    .forward_decode = forward,
};

const ww_backend_table* ww_attention_plugin(uint32_t host_abi_version) {
  return host_abi_version == WW_PLUGIN_ABI_VERSION ? &table : NULL;
}
