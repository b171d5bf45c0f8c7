/* The C interface from C: decode of two requests over pages, checked against plain loops. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "warpweave/c.h"
#include "warpweave/plugin.h"

enum { REQUESTS = 2, Q_HEADS = 4, KV_HEADS = 2, DIM = 16, PAGE = 4, PAGES = 5 };

static float q[REQUESTS * Q_HEADS * DIM], k[PAGES * PAGE * KV_HEADS * DIM], v[PAGES * PAGE * KV_HEADS * DIM];
static float out[REQUESTS * Q_HEADS * DIM], lse[REQUESTS * Q_HEADS];

static void check(ww_status status, const char* what) {
  if (status == WW_OK) return;
  fprintf(stderr, "%s: %s\n", what, ww_last_error());
  exit(1);
}

static ww_tensor tensor_of(float* data, int32_t ndim, int64_t* shape) {
  ww_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = WW_DEVICE_CPU;
  t.ndim = ndim;
  t.dtype.code = WW_DTYPE_FLOAT;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

/* |out - softmax(q K^T) V|, the largest. */
static double largest_error(const int32_t* kv_lens, const int32_t* table, int32_t stride) {
  double worst = 0;
  int r, h, t, d;
  for (r = 0; r < REQUESTS; ++r) {
    for (h = 0; h < Q_HEADS; ++h) {
      const float* row = q + (r * Q_HEADS + h) * DIM;
      double sum = 0, value[DIM] = {0};
      for (t = 0; t < kv_lens[r]; ++t) {
        const int at = ((table[r * stride + t / PAGE] * PAGE + t % PAGE) * KV_HEADS + h / 2) * DIM;
        double score = 0, weight;
        for (d = 0; d < DIM; ++d) score += (double)row[d] * k[at + d];
        weight = exp(score / sqrt((double)DIM));
        sum += weight;
        for (d = 0; d < DIM; ++d) value[d] += weight * v[at + d];
      }
      for (d = 0; d < DIM; ++d) {
        const double error = fabs(value[d] / sum - out[(r * Q_HEADS + h) * DIM + d]);
        if (!(error <= worst)) worst = error;
      }
      if (!(fabs(log(sum) - lse[r * Q_HEADS + h]) < 1e-4)) worst = 1;
    }
  }
  return worst;
}

static void fill(float* data, int count, unsigned seed) {
  int i;
  for (i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = (float)(seed >> 8) / (float)(1 << 23) - 1.0f;
  }
}

int main(void) {
  const int32_t q_indptr[] = {0, 1, 2}, kv_lens[] = {7, 3}, table[] = {4, 1, 2, 0};
  int64_t q_shape[] = {REQUESTS, Q_HEADS, DIM}, kv_shape[] = {PAGES, PAGE, KV_HEADS, DIM};
  int64_t lse_shape[] = {REQUESTS, Q_HEADS};
  ww_tensor tq = tensor_of(q, 3, q_shape), tk = tensor_of(k, 4, kv_shape), tv = tensor_of(v, 4, kv_shape);
  ww_tensor tout = tensor_of(out, 3, q_shape), tlse = tensor_of(lse, 2, lse_shape);
  ww_context_options context_options = WW_CONTEXT_OPTIONS_INIT;
  ww_plan_options options = WW_PLAN_OPTIONS_INIT;
  ww_batch batch = WW_BATCH_INIT;
  ww_kv_cache kv = WW_KV_CACHE_INIT;
  ww_run_args args = WW_RUN_ARGS_INIT;
  ww_context* context = NULL;
  ww_workspace* workspace = NULL;
  ww_plan* plan = NULL;
  double error;

  fill(q, REQUESTS * Q_HEADS * DIM, 1);
  fill(k, PAGES * PAGE * KV_HEADS * DIM, 2);
  fill(v, PAGES * PAGE * KV_HEADS * DIM, 3);
  if (ww_abi_version() != WW_ABI_VERSION) return 1;

  context_options.threads = 2;
  check(ww_context_create(&context_options, &context), "context");
  check(ww_workspace_create(context, 0, &workspace), "workspace");
  options.num_q_heads = Q_HEADS;
  options.num_kv_heads = KV_HEADS;
  options.head_dim = DIM;
  options.page_size = PAGE;
  options.kv_format = WW_KV_F32;
  check(ww_plan_create(workspace, &options, &plan), "plan");
  printf("%s", ww_plan_explain(plan));

  batch.num_requests = REQUESTS;
  batch.q_indptr = q_indptr;
  batch.kv_lens = kv_lens;
  batch.page_table = table;
  batch.page_table_stride = 2;
  check(ww_plan_batch(plan, &batch), "batch");

  kv.format = WW_KV_F32;
  kv.k = &tk;
  kv.v = &tv;
  args.q = &tq;
  args.kv = &kv;
  args.out = &tout;
  args.lse_ln = &tlse;
  check(ww_plan_run(plan, &args), "run");

  error = largest_error(kv_lens, table, 2);
  printf("largest error: %g\n", error);
  ww_plan_destroy(plan);
  ww_workspace_destroy(workspace);
  ww_context_destroy(context);
  return error < 1e-5 ? 0 : 1;
}
