/* The C interface of Warpweave's attention: context, workspace, plan, run.
 *
 *   ww_context_create    threads; one per process is enough
 *   ww_workspace_create  scratch memory; plans whose runs do not overlap may share one
 *   ww_plan_create       what stays: heads, dims, formats, mask rules; chooses the backend
 *   ww_plan_batch        once per forward: lengths and page tables, on the host
 *   ww_plan_run          once per layer: reads q and the KV pages, writes out (and lse)
 *
 * Rules of the whole interface
 * - Stable: functions keep their meaning, structs only grow at their end. The first field of every
 *   struct is struct_size; start from the WW_..._INIT values, which set it. A library that is older
 *   than the header refuses fields it does not know unless they are zero.
 * - Tensors are borrowed for the call and never freed. ww_tensor has the layout of DLPack's DLTensor,
 *   so `(const ww_tensor*)&managed->dl_tensor` is one; strides count elements, NULL means compact
 *   row-major. All tensors of a plan are on its device; one that is elsewhere is refused by name.
 * - ww_plan_run allocates no memory and synchronises with no device (on a GPU the first run of a batch
 *   larger than all before may). The arrays of ww_batch are copied by ww_plan_batch and may go away
 *   after it.
 * - lse is the natural logarithm of the softmax's denominator (lse_ln). A row that sees no token has
 *   out = 0 and lse_ln = -infinity.
 * - A context runs one call at a time; calls from other threads wait. Plans and workspaces of one
 *   context may be used from any thread, each by one at a time.
 * - Every failing function returns its code and leaves a message for people in ww_last_error(), which
 *   is the calling thread's and lives until its next failing call.
 */
#ifndef WARPWEAVE_C_H_
#define WARPWEAVE_C_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WW_ABI_VERSION 1

#if defined(__GNUC__)
#define WW_API __attribute__((visibility("default")))
#else
#define WW_API
#endif

/* ---- Results ---- */

typedef int32_t ww_status;
enum {
  WW_OK = 0,
  WW_INVALID_ARGUMENT = 1,   /* breaks a rule; the message names the field and the rule */
  WW_NOT_FOUND = 2,          /* an unknown backend or file */
  WW_UNSUPPORTED = 3,        /* known, but not by this backend or build; says what to use */
  WW_RESOURCE_EXHAUSTED = 4, /* no memory, or a fixed workspace is too small */
  WW_DATA_LOSS = 5,          /* a file lies about itself */
  WW_INTERNAL = 6            /* a bug of the library */
};

WW_API uint32_t ww_abi_version(void);       /* of the library: compare with WW_ABI_VERSION */
WW_API const char* ww_last_error(void);     /* "" before the first failure */

/* ---- Tensors: DLPack's DLDataType, DLDevice and DLTensor ---- */

typedef struct ww_dtype {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} ww_dtype;

typedef struct ww_device {
  int32_t device_type;
  int32_t device_id;
} ww_device;

typedef struct ww_tensor {
  void* data;
  ww_device device;
  int32_t ndim;
  ww_dtype dtype;
  int64_t* shape;
  int64_t* strides;     /* in elements; NULL: compact */
  uint64_t byte_offset; /* of the first element from `data` */
} ww_tensor;

/* Codes of ww_dtype and ww_device that mean something here; the numbers are DLPack's. */
enum {
  WW_DTYPE_INT = 0,
  WW_DTYPE_UINT = 1,
  WW_DTYPE_FLOAT = 2,
  WW_DTYPE_BFLOAT = 4,
  WW_DTYPE_FLOAT8_E4M3FN = 10,
  WW_DTYPE_FLOAT8_E5M2 = 12,
  WW_DTYPE_FLOAT4_E2M1FN = 17
};
enum { WW_DEVICE_CPU = 1, WW_DEVICE_CUDA = 2, WW_DEVICE_CUDA_HOST = 3 };

/* ---- KV cache ---- */

/* How K and V are stored. bf16, f16 and f32 are the tensor's own dtype. fp8 tensors may also be uint8.
 * fp4 (NVFP4): uint8 tensors of head_dim / 2 bytes, the even element in the low four bits, and one
 * e4m3 scale for 16 elements along the head dim.
 * fp8_ds_mla and fp4_mla: of latent plans with head_dim 576 and v_head_dim 512, uint8 tensors (ds: or e4m3) of whole
 * tokens, 656 and 416 bytes: 512 codes (two fp4 a byte, the even one low), their scales (4 f32 that are powers of two
 * from 2^-32 to 2^7; 32 e4m3), then 64 bf16 values. docs/kv-formats.md. */
typedef int32_t ww_kv_format;
enum {
  WW_KV_F32 = 0,
  WW_KV_BF16 = 1,
  WW_KV_F16 = 2,
  WW_KV_FP8_E4M3 = 3,
  WW_KV_FP8_E5M2 = 4,
  WW_KV_FP4_E2M1 = 5,
  WW_KV_FP8_DS_MLA = 6,
  WW_KV_FP4_MLA = 7
};

/* The order of a page's dimensions. Strides are the tensor's, so packed or sliced caches work. */
typedef int32_t ww_kv_layout;
enum {
  WW_KV_NHD = 0, /* [pages, page_size, num_kv_heads, dim]; without pages [tokens, num_kv_heads, dim] */
  WW_KV_HND = 1  /* [pages, num_kv_heads, page_size, dim]; without pages [num_kv_heads, tokens, dim] */
};

typedef struct ww_kv_cache {
  uint32_t struct_size;
  ww_kv_format format;
  ww_kv_layout layout;
  const ww_tensor* k;              /* the last dimension is contiguous */
  const ww_tensor* v;              /* NULL where the plan is latent */
  const ww_tensor* k_scales;       /* fp8, fp4: f32, [1] or [num_kv_heads]; NULL: 1. value = stored * scale */
  const ww_tensor* v_scales;
  const ww_tensor* k_block_scales; /* fp4: e4m3 or uint8, the shape of k with dim / 16 at the end */
  const ww_tensor* v_block_scales;
} ww_kv_cache;
#define WW_KV_CACHE_INIT \
  { sizeof(ww_kv_cache), WW_KV_BF16, WW_KV_NHD, NULL, NULL, NULL, NULL, NULL, NULL }

/* ---- Context and workspace ---- */

typedef struct ww_context ww_context;
typedef struct ww_context_options {
  uint32_t struct_size;
  int32_t threads;      /* 0: one per usable CPU */
} ww_context_options;
#define WW_CONTEXT_OPTIONS_INIT { sizeof(ww_context_options), 0 }

WW_API ww_status ww_context_create(const ww_context_options* options, ww_context** context);
/* After every plan and workspace of the context. NULL is allowed, as in all destroy functions. */
WW_API void ww_context_destroy(ww_context* context);

/* `bytes` > 0: never grows, and ww_plan_batch fails with WW_RESOURCE_EXHAUSTED, naming the bytes it
 * needs, when that is too little. 0: ww_plan_batch grows it. */
typedef struct ww_workspace ww_workspace;
WW_API ww_status ww_workspace_create(ww_context* context, size_t bytes, ww_workspace** workspace);
WW_API void ww_workspace_destroy(ww_workspace* workspace);

/* ---- Plan ---- */

typedef struct ww_plan_options {
  uint32_t struct_size;
  int32_t num_q_heads;     /* a multiple of num_kv_heads */
  int32_t num_kv_heads;
  int32_t head_dim;        /* of q and k */
  int32_t v_head_dim;      /* 0: head_dim */
  int32_t page_size;       /* tokens of a page; 0: each batch says, or has no pages (kv_indptr) */
  ww_kv_format kv_format;
  ww_dtype q_dtype;        /* of q and out: f32, f16 or bf16 */
  float scale;             /* of q.k; 0: 1 / sqrt(head_dim) */
  float logit_softcap;     /* s = cap * tanh(s / cap); 0: off */
  int32_t causal;          /* row i of a request stands at position kv_len - q_len + i */
  int32_t window_left;     /* a row sees this many tokens before its own; -1: all */
  int32_t window_right;    /* after its own; -1: all. Causal: 0 or -1, which then mean the same */
  int32_t use_sinks;       /* ww_run_args.sinks will be given */
  int32_t use_tree_mask;   /* ww_batch.tree_mask will be given */
  int32_t deterministic;   /* equal bits for any batch composition and chunking */
  const char* backend;     /* NULL, "" or "auto": chosen and explained */
  ww_device device;        /* where it runs: {0, 0} or WW_DEVICE_CPU, or WW_DEVICE_CUDA, the first GPU */
  /* For runs in CUDA graphs; 0: off. Every batch then has the shape of the first (requests, rows, longest
   * request), page tables of this width and its arrays in the same places, so that a replay sees the batch
   * planned last. */
  int32_t max_pages_per_request;
  /* Latent attention (MLA, DeepSeek), absorbed: all query heads meet one row a token, [latent | rope], of head_dim
   * values, of which the first v_head_dim are V. num_kv_heads is 1, ww_kv_cache.v and its scales are NULL, and scale
   * must be given: it is that of the heads before absorption. */
  int32_t latent;
} ww_plan_options;
#define WW_PLAN_OPTIONS_INIT                                                             \
  {                                                                                      \
    sizeof(ww_plan_options), 0, 0, 0, 0, 0, WW_KV_BF16, {WW_DTYPE_FLOAT, 32, 1}, 0.0f,   \
        0.0f, 1, -1, -1, 0, 0, 0, NULL, {0, 0}, 0, 0                                             \
  }

typedef struct ww_plan ww_plan;
WW_API ww_status ww_plan_create(ww_workspace* workspace, const ww_plan_options* options,
                                ww_plan** plan);
WW_API void ww_plan_destroy(ww_plan* plan);
/* Which backend runs each phase and why, one reason a line. Lives as long as the plan. */
WW_API const char* ww_plan_explain(const ww_plan* plan);

/* Where each request's rows and tokens are. Request r has the query rows [q_indptr[r],
 * q_indptr[r + 1]) and sees kv_lens[r] tokens, which include those of its own rows. Exactly one way
 * says where the tokens stand:
 *   page_table                  dense: row r holds the page ids of request r
 *   page_indptr, page_indices   CSR: page ids [page_indptr[r], page_indptr[r + 1])
 *   kv_indptr                   no pages, for plans with page_size 0: tokens from kv_indptr[r] on;
 *                               kv_lens NULL: up to kv_indptr[r + 1]
 * Entries past a request's last page are not read. A causal request with more rows than tokens is
 * aligned at the end: its first rows see nothing. */
typedef struct ww_batch {
  uint32_t struct_size;
  int32_t num_requests;
  const int32_t* q_indptr;      /* [num_requests + 1], from 0 */
  const int32_t* kv_lens;       /* [num_requests] */
  const int32_t* page_table;    /* [num_requests, page_table_stride] */
  int64_t page_table_stride;
  const int32_t* page_indptr;   /* [num_requests + 1], from 0 */
  const int32_t* page_indices;
  const int32_t* kv_indptr;     /* [num_requests + 1] */
  /* Tree attention: [rows, tree_mask_words]; bit j of row i: row i of a request sees its row j. All
   * rows see the tokens before the request's own rows. */
  const uint32_t* tree_mask;
  int32_t tree_mask_words;      /* >= ceil(longest q_len / 32) */
  int32_t page_size;            /* of the tables; 0: the plan's, which must not be 0 then */
  void* stream;                 /* of a GPU (a CUstream): where the arrays are copied */
} ww_batch;
#define WW_BATCH_INIT \
  { sizeof(ww_batch), 0, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL, 0, 0, NULL }

WW_API ww_status ww_plan_batch(ww_plan* plan, const ww_batch* batch);
/* Of its workspace, for the batch planned last. */
WW_API size_t ww_plan_workspace_bytes(const ww_plan* plan);

/* ---- Run ----
 * On a GPU q and out have the plan's q_dtype (f16 or bf16), rows a constant stride apart with their heads
 * dense, and starts and strides that are multiples of 16 bytes; lse_ln is dense; k and v have equal
 * strides; scales are one per head. A run on another stream than the batch's waits for the batch's arrays;
 * runs of one plan must not overlap. A failed launch is reported by the next ww_plan_batch.
 * A run may be captured into a CUDA graph; its first capture must come after a run outside of one, which
 * allocates. Replays read the arrays of the batch planned last, if the plan has max_pages_per_request;
 * otherwise only until the next ww_plan_batch. Plan and replay on one stream. */

typedef struct ww_run_args {
  uint32_t struct_size;
  const ww_tensor* q;      /* [rows, num_q_heads, head_dim] or [batch, rows, num_q_heads, head_dim] */
  const ww_kv_cache* kv;
  const ww_tensor* sinks;  /* f32 [num_q_heads]: one more logit per head in the softmax's sum */
  const ww_tensor* out;    /* as q, with v_head_dim; written */
  const ww_tensor* lse_ln; /* f32 [rows, num_q_heads] or [batch, rows, num_q_heads], or NULL; written */
  void* stream;            /* a CUstream; NULL on the CPU, or the GPU's default stream */
} ww_run_args;
#define WW_RUN_ARGS_INIT { sizeof(ww_run_args), NULL, NULL, NULL, NULL, NULL, NULL }

WW_API ww_status ww_plan_run(ww_plan* plan, const ww_run_args* args);

/* ---- Beside attention ---- */

/* Stores new K and V in the cache, converted to its format; all on the CPU or all on a GPU. slots[i] is page *
 * page_size + offset of row i (the token's index without pages); -1 skips the row. */
typedef struct ww_append_args {
  uint32_t struct_size;
  const ww_tensor* k_new;  /* f32, f16 or bf16 [rows, num_kv_heads, dim] */
  const ww_tensor* v_new;
  const int64_t* slots;    /* [rows], on the host */
  const ww_kv_cache* kv;   /* written */
  void* stream;
} ww_append_args;
#define WW_APPEND_ARGS_INIT { sizeof(ww_append_args), NULL, NULL, NULL, NULL, NULL }
WW_API ww_status ww_append_kv(ww_context* context, const ww_append_args* args);

/* Attention over the union of disjoint sets of tokens, from the results over each of them: e.g. a
 * shared prefix and the rest. All on one device, and f32: outs [rows, states, heads, dim], lses_ln [rows, states,
 * heads], out [rows, heads, dim]; lse_ln [rows, heads] or NULL. */
typedef struct ww_merge_args {
  uint32_t struct_size;
  const ww_tensor* outs;
  const ww_tensor* lses_ln;
  const ww_tensor* out;
  const ww_tensor* lse_ln;
  void* stream;
} ww_merge_args;
#define WW_MERGE_ARGS_INIT { sizeof(ww_merge_args), NULL, NULL, NULL, NULL, NULL }
WW_API ww_status ww_merge_states(ww_context* context, const ww_merge_args* args);

/* ---- Linear attention: layers whose cache is a state of fixed size ----
 *
 * The gated delta rule (GDN) and Kimi delta attention (KDA). Per v head a state S [v_dim, k_dim]; one token, with the
 * decay exp(g), a scalar in GDN and a value per channel of k in KDA:
 *   S = S diag(exp(g));  S = S + beta (v - S k) k^T;  out = scale S q
 * v head h reads q and k head h / (v_heads / k_heads). k_dim and v_dim are multiples of 16, at most 256. */
typedef int32_t ww_linear_kind;
enum { WW_LINEAR_GDN = 0,
       WW_LINEAR_KDA = 1 };

typedef struct ww_linear_args {
  uint32_t struct_size;
  ww_linear_kind kind;
  const ww_tensor* q;    /* [tokens, k_heads, k_dim]: f32, bf16 or f16, as k and v */
  const ww_tensor* k;    /* [tokens, k_heads, k_dim] */
  const ww_tensor* v;    /* [tokens, v_heads, v_dim] */
  const ww_tensor* g;    /* f32, <= 0: GDN [tokens, v_heads], KDA [tokens, v_heads, k_dim] */
  const ww_tensor* beta; /* f32 [tokens, v_heads] */
  /* In place of g and beta, the gates of a layer: g = -exp(a_log) softplus(a + dt_bias), beta = sigmoid(b). */
  const ww_tensor* a;       /* of g's shape: f32, bf16 or f16 */
  const ww_tensor* b;       /* [tokens, v_heads]: f32, bf16 or f16 */
  const ww_tensor* a_log;   /* f32 [v_heads] */
  const ww_tensor* dt_bias; /* f32, GDN [v_heads], KDA [v_heads, k_dim]; NULL: 0 */
  const ww_tensor* state;   /* [slots, v_heads, v_dim, k_dim], f32 or bf16, heads dense: read, then written */
  const ww_tensor* out;     /* [tokens, v_heads, v_dim]: f32, bf16 or f16; heads v_dim apart */
  int32_t num_requests;
  const int32_t* q_indptr; /* [num_requests + 1] on the host, ascending; NULL: a token each */
  const int32_t* slots;    /* [num_requests] on the host, none twice; NULL: request r has slot r */
  int32_t from_zeros;      /* 1: the states begin as zeros, whatever the slots hold */
  int32_t l2norm;          /* 1: q and k are divided by sqrt(sum of squares + l2norm_eps), per head */
  float l2norm_eps;        /* 0: 1e-6 */
  float scale;             /* 0: 1 / sqrt(k_dim) */
  int32_t exact;           /* 1: on a GPU, token by token in f32; 0: prompts by chunks, 16-bit MMA (f32 if q is) */
  void* stream;            /* of a GPU (a CUstream) */
  int32_t deterministic;   /* 1: a request's bits are the same in any batch; 0: what is fastest for the batch */
} ww_linear_args;
#define WW_LINEAR_ARGS_INIT                                                                                           \
  {                                                                                                                   \
    sizeof(ww_linear_args), WW_LINEAR_GDN, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL, \
        NULL, 0, 0, 0.0f, 0.0f, 0, NULL, 0                                                                            \
  }
/* Scratch memory stays with the context; on a GPU it is taken for the call, from the stream's pool. */
WW_API ww_status ww_linear_attention(ww_context* context, const ww_linear_args* args);

/* Adds an attention backend from a shared library (see plugin.h), which ww_plan_options.backend may
 * then name. `name` (may be NULL) receives its name, which lives to the process's end. */
WW_API ww_status ww_load_backend_plugin(const char* path, const char** name);

/* The backends this library can run: `index` from 0; NULL past the last. */
WW_API const char* ww_backend_name(int32_t index);

#ifdef __cplusplus
}
#endif

#endif /* WARPWEAVE_C_H_ */
