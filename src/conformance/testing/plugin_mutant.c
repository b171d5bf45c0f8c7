/* The example plug-in with one thing wrong with it, chosen by MUTANT: what loading or the short
 * conformance run must find. plugin_check_test.cc lists them. */
#define ww_attention_plugin good_plugin
#include "../../../examples/plugin/online_softmax.c"
#undef ww_attention_plugin

enum {
  VERSION = 1, NO_TABLE, NO_DECODE, HALF_GRAPHS, SMALL_STRUCT, NAMELESS, RESERVED_NAME, UNKNOWN_PHASE, NO_DTYPE,
  TREES_WITHOUT_MASK, NEGATIVE_PAGE, CREATE_FAILS, PLAN_FAILS, IGNORES_WINDOW, IGNORES_SINKS, IGNORES_SOFTCAP,
  CLAIMS_F16, CLAIMS_TREES, CLAIMS_NON_CAUSAL, CLAIMS_FP8, LSE_IN_BITS, BATCH_DEPENDENT, NO_LSE, WINDOW_OFF_BY_ONE,
  FORWARD_FAILS, OLD_VERSION, KINDLESS, UNKNOWN_KIND, ONLY_MLA, TWO_DEVICES, ONLY_NPU, RIGHT_WINDOW, ONLY_CUDA,
  UNKNOWN_GPU
};

static ww_status create_fails(const ww_plugin_host* host, void** backend, ww_plugin_error* error) {
  (void)host;
  (void)backend;
  snprintf(error->text, error->capacity, "no such accelerator");
  return WW_UNSUPPORTED;
}

static ww_status plan_fails(void* backend, const ww_forward_batch* batch, ww_plugin_error* error) {
  (void)backend;
  (void)batch;
  snprintf(error->text, error->capacity, "planning gave up");
  return WW_INTERNAL;
}

static ww_status forward_wrongly(void* backend, const ww_forward_batch* batch, const ww_attention_call* right,
                                 ww_plugin_error* error) {
  ww_attention_call call = *right;
  ww_status status;
  int64_t i;
  if (MUTANT == FORWARD_FAILS && call.num_q_heads > call.num_kv_heads) {
    snprintf(error->text, error->capacity, "the kernel gave up");
    return WW_INTERNAL;
  }
  if (MUTANT == IGNORES_WINDOW) call.window_left = -1;
  if (MUTANT == WINDOW_OFF_BY_ONE && call.window_left >= 0) call.window_left += 1;
  if (MUTANT == IGNORES_SINKS) call.sinks = NULL;
  if (MUTANT == IGNORES_SOFTCAP) call.logit_softcap = 0;
  if (MUTANT == NO_LSE) call.lse_ln = NULL;
  if (MUTANT == CLAIMS_FP8) call.kv_format = WW_KV_F32, call.k.strides[0] = call.k.strides[1] = 0;
  if (MUTANT == CLAIMS_FP8) call.k.strides[2] = 0, call.v.strides[0] = call.v.strides[1] = call.v.strides[2] = 0;
  status = forward(backend, batch, &call, error);
  if (MUTANT == BATCH_DEPENDENT && batch->num_requests > 1) ((float*)call.out.data)[0] *= 1 + 0x1p-23f;
  if (MUTANT == LSE_IN_BITS && call.lse_ln != NULL) {
    for (i = 0; i < (int64_t)batch->num_rows * call.num_q_heads; ++i) call.lse_ln[i] *= 1.442695f;
  }
  return status;
}

const ww_backend_table* ww_attention_plugin(uint32_t host_abi_version) {
  static ww_backend_caps wrong_caps;
  static ww_backend_table wrong;
  if (MUTANT == NO_TABLE) return NULL;
  wrong_caps = *good_plugin(host_abi_version)->caps;
  wrong = *good_plugin(host_abi_version);
  wrong.caps = &wrong_caps;
  wrong.forward_extend = wrong.forward_decode = forward_wrongly;
  wrong_caps.name = MUTANT == NAMELESS ? "" : MUTANT == RESERVED_NAME ? "reference" : MUTANT_NAME;
  if (MUTANT == VERSION) wrong.abi_version = WW_PLUGIN_ABI_VERSION + 1;
  if (MUTANT == OLD_VERSION) wrong.abi_version = 1;
  if (MUTANT == KINDLESS) wrong_caps.kinds = 0;
  if (MUTANT == UNKNOWN_KIND) wrong_caps.kinds |= 16;
  if (MUTANT == ONLY_MLA) wrong_caps.kinds = WW_KIND_MLA;
  if (MUTANT == TWO_DEVICES) wrong_caps.devices = WW_RUNS_ON_CPU | WW_RUNS_ON_CUDA;
  if (MUTANT == ONLY_NPU) wrong_caps.devices = WW_RUNS_ON_NPU;
  if (MUTANT == RIGHT_WINDOW) wrong_caps.right_window = 1;
  if (MUTANT == ONLY_CUDA || MUTANT == UNKNOWN_GPU) wrong_caps.devices = WW_RUNS_ON_CUDA;
  if (MUTANT == ONLY_CUDA) wrong_caps.compute_capabilities.count = 1, wrong_caps.compute_capabilities.values[0] = 75;
  if (MUTANT == UNKNOWN_GPU) wrong_caps.compute_capabilities.count = 1, wrong_caps.compute_capabilities.values[0] = 53;
  if (MUTANT == NO_DECODE) wrong.forward_decode = NULL;
  if (MUTANT == HALF_GRAPHS) wrong.init_forward_metadata_capture_cuda_graph = plan_fails;
  if (MUTANT == SMALL_STRUCT) wrong.struct_size = 16;
  if (MUTANT == UNKNOWN_PHASE) wrong_caps.phases = 8;
  if (MUTANT == NO_DTYPE) wrong_caps.model_dtypes = 0;
  if (MUTANT == TREES_WITHOUT_MASK) wrong_caps.spec = WW_SPEC_TREE;
  if (MUTANT == NEGATIVE_PAGE) wrong_caps.page_sizes.count = 1, wrong_caps.page_sizes.values[0] = -16;
  if (MUTANT == CREATE_FAILS) wrong.create = create_fails;
  if (MUTANT == PLAN_FAILS) wrong.init_forward_metadata = plan_fails;
  if (MUTANT == CLAIMS_F16) wrong_caps.kv_formats |= WW_KV_BIT(WW_KV_F16), wrong_caps.model_dtypes |= WW_MODEL_F16;
  if (MUTANT == CLAIMS_TREES) wrong_caps.custom_mask = 1, wrong_caps.spec = wrong_caps.spec_paged = WW_SPEC_TREE;
  if (MUTANT == CLAIMS_NON_CAUSAL) wrong_caps.non_causal = 1;
  if (MUTANT == CLAIMS_FP8) wrong_caps.kv_formats = WW_KV_BIT(WW_KV_FP8_E4M3);
  return &wrong;
}
