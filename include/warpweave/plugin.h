/* Attention backends outside Warpweave: the C interface of a plug-in.
 *
 * A plug-in is a shared library that exports one function, ww_attention_plugin, which returns a table:
 * what the backend can do (its Caps, as data) and the functions of the recipe. Warpweave loads it with
 * --attention-backend-plugin FILE, checks the table, runs a short conformance suite of what it claims,
 * and then treats it as any other backend; `warpweave conformance --plugin FILE` runs the whole suite.
 * docs/add-a-backend.md walks through one; examples/plugin is one.
 *
 * Order of calls: create; then for each forward init_forward_metadata once, and once per layer
 * forward_extend or forward_decode with the same batch, but for its page table: layers that keep fewer tokens
 * (sliding windows) stand on pages of their own, so a plan says nothing about pages; destroy. All come from one thread
 * at a time.
 * K and V of the batch's tokens are already in the pages, so a backend only reads them.
 * Memory belongs to Warpweave and is valid for the call, that of the batch until the forward ends.
 * Versions: structs only grow at their end. struct_size says how much of one its writer knew; a reader
 * does not look past it. A change of meaning changes WW_PLUGIN_ABI_VERSION.
 * No function may throw or end the process. Each but destroy returns WW_OK, or another ww_status with a message in
 * `error`: the step then fails, its requests are answered with the message, and the next init_forward_metadata begins
 * anew. What the Caps do not claim is never asked for.
 *
 * Version 2 (2026-11): forward_* return a status; kinds and devices in the Caps; right window bounds; arrays on a
 * device. Tables of version 1 are refused.
 */
#ifndef WARPWEAVE_PLUGIN_H_
#define WARPWEAVE_PLUGIN_H_

#include <stddef.h>
#include <stdint.h>

#include "warpweave/c.h" /* ww_tensor, ww_dtype, ww_status and the WW_KV_... formats */

#ifdef __cplusplus
extern "C" {
#endif

#define WW_PLUGIN_ABI_VERSION 2

/* ---- What the backend can do ---- */

enum { WW_PHASE_PREFILL = 1, WW_PHASE_DECODE = 2 };
/* Where K, V, q and out are, and what `stream` is: one of these a table. This program calls plug-ins for the CPU and
 * for CUDA; the others have their names, and a table for them is refused. */
enum {
  WW_RUNS_ON_CPU = 1,
  WW_RUNS_ON_CUDA = 2,    /* stream: a CUstream */
  WW_RUNS_ON_OPENCL = 4,
  WW_RUNS_ON_NPU = 8,
  WW_RUNS_ON_OTHER = 16
};
/* What a layer's attention reads. This program calls MHA; for what else a table claims it is not asked yet, and a table
 * without MHA is refused. */
enum {
  WW_KIND_MHA = 1,        /* K and V of num_kv_heads heads: MHA, GQA, MQA */
  WW_KIND_MLA = 2,        /* one latent row a token (DeepSeek-AI 2024, 2405.04434), see ww_attention_call */
  WW_KIND_SPARSE = 4,     /* the tokens that an indexer chose */
  WW_KIND_LINEAR = 8      /* a state in place of tokens */
};
enum { WW_MODEL_F32 = 1, WW_MODEL_BF16 = 2, WW_MODEL_F16 = 4 };
enum { WW_SPEC_NONE = 0, WW_SPEC_CHAIN = 1, WW_SPEC_TREE = 2 };
#define WW_KV_BIT(format) (1u << (format)) /* WW_KV_BIT(WW_KV_BF16) | ... */
#define WW_PLUGIN_MAX_CHOICES 8

/* Exact values, at most WW_PLUGIN_MAX_CHOICES; or, with count = 0, every value up to max (0: no limit). */
typedef struct ww_int_choice {
  int32_t count;
  int32_t max;
  int32_t values[WW_PLUGIN_MAX_CHOICES];
} ww_int_choice;

typedef struct ww_backend_caps {
  uint32_t struct_size;
  uint32_t kinds;           /* WW_KIND_... */
  uint32_t phases;          /* WW_PHASE_... */
  uint32_t devices;         /* WW_RUNS_ON_..., one */
  uint32_t model_dtypes;    /* WW_MODEL_... */
  uint32_t kv_formats;      /* WW_KV_BIT(...) */
  ww_int_choice head_dims;  /* of q and k, and of v; for MLA of the latent row (576) and of its part (512) */
  ww_int_choice page_sizes; /* native ones */
  uint8_t expands_pages;    /* runs every other page size, too, slot by slot */
  uint8_t sliding_window;
  uint8_t sinks;
  uint8_t softcap;
  uint8_t custom_mask;      /* ww_forward_batch.tree_mask */
  uint8_t chunked_prefix;   /* rows that start after a cached prefix */
  uint8_t non_causal;       /* ww_forward_batch.causal = 0: window_right = -1 */
  uint8_t deterministic;    /* equal bits for any batch composition, chunking, phase and repeat; of drafts, chains */
  uint8_t right_window;     /* window_right > 0, which no plug-in is asked for yet */
  uint8_t reserved[7];      /* 0 */
  uint32_t spec;            /* speculation with page size 1, and with larger ones: WW_SPEC_... */
  uint32_t spec_paged;
  uint64_t workspace_bytes; /* bound per thread */
  ww_int_choice compute_capabilities; /* on CUDA: exactly those, 90 or 120; count 0: every one */
  const char* name;         /* letters, digits and _; of --attention-backend */
  const char* summary;      /* one line */
} ww_backend_caps;

/* ---- One forward ---- */

enum {
  WW_MODE_EXTEND = 0,        /* prefill, with or without a cached prefix */
  WW_MODE_DECODE = 1,        /* every request has exactly one row */
  WW_MODE_MIXED = 2,         /* both */
  WW_MODE_IDLE = 3,
  WW_MODE_TARGET_VERIFY = 4, /* of drafted tokens */
  WW_MODE_DRAFT_EXTEND = 5
};

/* Request r owns the rows [q_indptr[r], q_indptr[r + 1]) and sees kv_lens[r] tokens, those of its own
 * rows included: its row i stands at position kv_lens[r] - q_len + i and sees the tokens up to there.
 * Token t of request r is in page page_table[r * page_table_stride + t / page_size], at offset
 * t % page_size. Entries past the request's last page must not be read. kv_lens[r] = 0: the rows see
 * nothing; out is 0 and lse is -infinity.
 *
 * The arrays are on the host. Those of `device` have the same names and contents in the memory of the device and are
 * what a captured graph reads, since a replay has other lengths; NULL on the CPU. A batch that is planned for capture
 * has host arrays of lengths that say nothing, or NULL. */
typedef struct ww_device_arrays {
  const int32_t* q_indptr;
  const int32_t* kv_lens;
  const int32_t* page_table;
  const int32_t* positions;
  const uint32_t* tree_mask;
} ww_device_arrays;

typedef struct ww_forward_batch {
  uint32_t struct_size;
  int32_t mode;                /* WW_MODE_... */
  int32_t num_requests;
  int32_t num_rows;
  int32_t max_q_len;
  int32_t max_kv_len;
  int32_t page_size;
  int32_t page_table_stride;
  const int32_t* q_indptr;     /* [num_requests + 1] */
  const int32_t* kv_lens;      /* [num_requests] */
  const int32_t* page_table;   /* [num_requests, page_table_stride] */
  const int32_t* positions;    /* [num_rows]; NULL unless there is a tree mask */
  const uint32_t* tree_mask;   /* NULL, or [num_rows, tree_mask_words]: bit j of row i says that row i sees
                                * row j of its request; the tokens before the rows are seen by all */
  int32_t tree_mask_words;
  int32_t causal;              /* 0: rows also see tokens after their own (window_right) */
  void* stream;                /* NULL on the CPU */
  ww_device_arrays device;
} ww_forward_batch;

/* One layer. q and out are [num_rows, num_q_heads, dim] with the heads dense: f32 on the CPU, of the model's type on a
 * device. k and v are [pages, page_size, num_kv_heads, dim] with any strides but the last; fp4 tensors have
 * uint8 elements, two values each. Query head h reads KV head h / (num_q_heads / num_kv_heads).
 * Value = stored value * k_scales[head] (if not NULL) * block scale (fp4).
 *
 * WW_KIND_MLA, absorbed: num_kv_heads is 1; a token's row of k is its latent of v_head_dim values and then its rotated
 * key, head_dim in all (512 + 64 for DeepSeek V3); v is the first v_head_dim values of the same rows, in the same
 * memory. q is [latent | rotated] likewise, and out is in the latent space: what stands before and after (the
 * projections of q and of out) is the model's. */
typedef struct ww_attention_call {
  uint32_t struct_size;
  uint32_t kind;                 /* one of WW_KIND_... */
  int32_t layer;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;              /* of q and k */
  int32_t v_head_dim;
  float scale;                   /* of q.k */
  float logit_softcap;           /* s = cap * tanh(s / cap); 0: off */
  int32_t window_left;           /* a row at position p sees tokens from p - window_left on; -1: from the first */
  int32_t window_right;          /* and up to p + window_right: 0 in causal attention; -1: to the request's last */
  ww_kv_format kv_format;
  const float* sinks;            /* [num_q_heads], one more logit in the softmax's sum, or NULL */
  const float* k_scales;         /* [num_kv_heads] or NULL */
  const float* v_scales;
  const uint8_t* k_block_scales; /* fp4: e4m3; of element i of k: k_block_scales[i / 16] */
  const uint8_t* v_block_scales;
  ww_tensor q;
  ww_tensor k;                   /* shape[0]: one past the batch's largest page; 0 where the host does not know it */
  ww_tensor v;
  ww_tensor out;
  float* lse_ln;                 /* [num_rows, num_q_heads], natural logarithm, or NULL */
} ww_attention_call;

/* What create gets. parallel_for(host, count, body, arg) calls body(arg, begin, end, member) on the
 * server's threads until [0, count) is done, and returns then; members count from 0 to threads - 1, one
 * at a time each. body must not call it again. */
typedef void (*ww_parallel_body)(void* arg, int64_t begin, int64_t end, int32_t member);
typedef struct ww_plugin_host {
  uint32_t struct_size;
  int32_t threads;
  int32_t max_context_len;       /* tokens; 0: not known */
  int32_t page_size;             /* of the batches to come */
  uint32_t device;               /* the WW_RUNS_ON_... that this backend is for */
  void* host;
  void (*parallel_for)(void* host, int64_t count, ww_parallel_body body, void* arg);
} ww_plugin_host;

/* Where a function that fails leaves its message. */
typedef struct ww_plugin_error {
  char* text;
  size_t capacity;               /* with the ending 0 */
} ww_plugin_error;

typedef struct ww_graph_limits {
  uint32_t struct_size;
  int32_t max_batch_size;
  int32_t max_rows;
  int32_t max_pages_per_request;
} ww_graph_limits;

/* ---- The table ---- */

typedef struct ww_backend_table {
  uint32_t struct_size;
  uint32_t abi_version;          /* WW_PLUGIN_ABI_VERSION */
  const ww_backend_caps* caps;
  ww_status (*create)(const ww_plugin_host* host, void** backend, ww_plugin_error* error);
  void (*destroy)(void* backend);
  ww_status (*init_forward_metadata)(void* backend, const ww_forward_batch* batch, ww_plugin_error* error);
  ww_status (*forward_extend)(void* backend, const ww_forward_batch* batch, const ww_attention_call* call,
                              ww_plugin_error* error);
  ww_status (*forward_decode)(void* backend, const ww_forward_batch* batch, const ww_attention_call* call,
                              ww_plugin_error* error);
  /* Graphs of GPUs: all three, or all NULL. */
  ww_status (*init_cuda_graph_state)(void* backend, const ww_graph_limits* limits, ww_plugin_error* error);
  ww_status (*init_forward_metadata_capture_cuda_graph)(void* backend, const ww_forward_batch* batch,
                                                        ww_plugin_error* error);
  ww_status (*init_forward_metadata_replay_cuda_graph)(void* backend, const ww_forward_batch* batch,
                                                       ww_plugin_error* error);
} ww_backend_table;

/* The one function a plug-in exports. `host_abi_version` is the WW_PLUGIN_ABI_VERSION that the program
 * was built with. The table lives as long as the library is loaded. NULL: no table for this version. */
WW_API const ww_backend_table* ww_attention_plugin(uint32_t host_abi_version);

#ifdef __cplusplus
}
#endif

#endif /* WARPWEAVE_PLUGIN_H_ */
