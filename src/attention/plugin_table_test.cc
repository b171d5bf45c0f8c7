// What a plug-in is given, field by field, on the CPU and on a GPU (whose pointers are only passed on), and what
// becomes of the errors it returns.
#include "attention/plugin_table.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "base/threads.h"

namespace warpweave {
namespace {

// What the functions of the table below were called with; `failing` returns an error.
struct Seen {
  uint32_t device = 0;
  ww_forward_batch batch{};
  ww_attention_call call{};
  const int32_t* table = nullptr;    // of the forward
  std::vector<int64_t> k_shape, q_strides;
  bool decoded = false, failing = false;
} seen;

ww_status create(const ww_plugin_host* host, void** backend, ww_plugin_error*) {
  seen.device = host->device;
  *backend = nullptr;
  return WW_OK;
}
void destroy(void*) {}
ww_status plan(void*, const ww_forward_batch* batch, ww_plugin_error*) {
  seen.batch = *batch;
  return WW_OK;
}
ww_status forward(const ww_forward_batch* batch, const ww_attention_call* call, bool decode, ww_plugin_error* error) {
  seen.table = batch->page_table;
  seen.call = *call;
  seen.decoded = decode;
  seen.k_shape.assign(call->k.shape, call->k.shape + call->k.ndim);
  seen.q_strides.assign(call->q.strides, call->q.strides + call->q.ndim);
  if (!seen.failing) return WW_OK;
  std::snprintf(error->text, error->capacity, "no room for %d heads", call->num_q_heads);
  return WW_RESOURCE_EXHAUSTED;
}
ww_status extend(void*, const ww_forward_batch* batch, const ww_attention_call* call, ww_plugin_error* error) {
  return forward(batch, call, false, error);
}
ww_status decode(void*, const ww_forward_batch* batch, const ww_attention_call* call, ww_plugin_error* error) {
  return forward(batch, call, true, error);
}

struct Fixture {
  explicit Fixture(uint32_t device) {
    caps.struct_size = sizeof caps;
    caps.kinds = WW_KIND_MHA | WW_KIND_MLA;
    caps.phases = WW_PHASE_PREFILL | WW_PHASE_DECODE;
    caps.devices = device;
    caps.model_dtypes = WW_MODEL_BF16;
    caps.kv_formats = WW_KV_BIT(WW_KV_BF16);
    caps.non_causal = 1;
    caps.compute_capabilities = {2, 0, {90, 120}};
    caps.name = "seeing";
    table.struct_size = sizeof table;
    table.abi_version = WW_PLUGIN_ABI_VERSION;
    table.caps = &caps;
    table.create = create;
    table.destroy = destroy;
    table.init_forward_metadata = plan;
    table.forward_extend = extend;
    table.forward_decode = decode;
    auto read = read_plugin_table(&table);
    EXPECT_TRUE(read.ok()) << read.status().message();
    plugin = std::move(read).value();
    backend = create_plugin_backend(plugin, {.team = &team, .max_context_len = 64, .page_size = 4});
    batch.mode = ForwardMode::extend;
    batch.num_reqs = 1;
    batch.num_tokens = batch.max_q_len = 2;
    batch.max_kv_len = 6;
    batch.page_size = 4;
    batch.q_indptr = q_indptr;
    batch.kv_lens = kv_lens;
    batch.page_table = pages;
    batch.page_table_stride = 2;
    call.layer = 3;
    call.num_q_heads = 4;
    call.num_kv_heads = 2;
    call.head_dim = call.v_head_dim = 16;
    call.window_left = 5;
    call.q_token_stride = 128;
    call.out_token_stride = 64;
    call.k.format = call.v.format = KvFormat::bf16;
    call.k.page_stride = 4 * 32;
    call.k.token_stride = 32;
    call.k.head_stride = 16;
    seen = {};
  }

  ww_backend_caps caps{};
  ww_backend_table table{};
  PluginTable plugin;
  ThreadTeam team{1};
  std::unique_ptr<AttentionBackend> backend;
  const int32_t q_indptr[2] = {0, 2}, kv_lens[1] = {6}, pages[2] = {7, 2};
  ForwardBatch batch;
  AttentionCall call;
};

TEST(PluginTable, CallsOnTheCpuHaveHostTensorsAndBounds) {
  Fixture f(WW_RUNS_ON_CPU);
  EXPECT_TRUE(f.plugin.caps.archs.has(DeviceArch::cpu_x86_64));
  EXPECT_FALSE(f.plugin.caps.archs.has(DeviceArch::sm_90));
  ASSERT_TRUE(f.backend->init_forward_metadata(f.batch).ok());
  ASSERT_TRUE(f.backend->forward_extend(f.batch, f.call).ok());
  EXPECT_EQ(seen.call.kind, static_cast<uint32_t>(WW_KIND_MHA));
  EXPECT_EQ(seen.call.layer, 3);
  EXPECT_EQ(seen.call.window_left, 5);
  EXPECT_EQ(seen.call.window_right, 0);
  EXPECT_EQ(seen.call.q.device.device_type, WW_DEVICE_CPU);
  EXPECT_EQ(seen.call.q.dtype.bits, 32);
  EXPECT_EQ(seen.k_shape, (std::vector<int64_t>{8, 4, 2, 16}));  // pages up to 7
  EXPECT_EQ(seen.q_strides, (std::vector<int64_t>{128, 16, 1}));
  EXPECT_EQ(seen.batch.device.kv_lens, nullptr);
  f.batch.causal = false;
  ASSERT_TRUE(f.backend->init_forward_metadata(f.batch).ok());
  ASSERT_TRUE(f.backend->forward_extend(f.batch, f.call).ok());
  EXPECT_EQ(seen.batch.causal, 0);
  EXPECT_EQ(seen.call.window_right, -1);
}

TEST(PluginTable, LayersMayStandOnOtherPagesThanThePlanSaw) {
  Fixture f(WW_RUNS_ON_CPU);
  ASSERT_TRUE(f.backend->init_forward_metadata(f.batch).ok());
  const int32_t other_pages[2] = {0, 11};
  ForwardBatch of_group = f.batch;
  of_group.page_table = other_pages;
  ASSERT_TRUE(f.backend->forward_extend(of_group, f.call).ok());
  EXPECT_EQ(seen.table, other_pages);
  EXPECT_EQ(seen.k_shape[0], 12);
  ASSERT_TRUE(f.backend->forward_extend(f.batch, f.call).ok());
  EXPECT_EQ(seen.table, f.pages);
  EXPECT_EQ(seen.k_shape[0], 8);
}

TEST(PluginTable, CallsOnAGpuHaveItsArraysAndStream) {
  Fixture f(WW_RUNS_ON_CUDA);
  EXPECT_TRUE(f.plugin.caps.archs.has(DeviceArch::sm_90) && f.plugin.caps.archs.has(DeviceArch::sm_120));
  EXPECT_FALSE(f.plugin.caps.archs.has(DeviceArch::sm_80) || f.plugin.caps.archs.has(DeviceArch::cpu_x86_64));
  int stream = 0;
  const int32_t device_lens[1] = {6}, device_table[2] = {7, 2};
  f.batch.mode = ForwardMode::decode;
  f.batch.device.stream = &stream;
  f.batch.device.kv_lens = device_lens;
  f.batch.device.page_table = device_table;
  f.batch.q_indptr = f.batch.kv_lens = f.batch.page_table = {};  // as a captured batch may have them
  f.call.q_dtype = f.call.out_dtype = DType::bf16;
  ASSERT_TRUE(f.backend->init_forward_metadata(f.batch).ok());
  ASSERT_TRUE(f.backend->forward_decode(f.batch, f.call).ok());
  EXPECT_TRUE(seen.decoded);
  EXPECT_EQ(seen.batch.stream, &stream);
  EXPECT_EQ(seen.batch.device.kv_lens, device_lens);
  EXPECT_EQ(seen.batch.device.page_table, device_table);
  EXPECT_EQ(seen.call.k.device.device_type, WW_DEVICE_CUDA);
  EXPECT_EQ(seen.call.out.dtype.code, WW_DTYPE_BFLOAT);
  EXPECT_EQ(seen.call.out.dtype.bits, 16);
  EXPECT_EQ(seen.k_shape[0], 0);
}

TEST(PluginTable, CreateIsToldTheDevice) {
  Fixture f(WW_RUNS_ON_CUDA);
  ASSERT_NE(create_plugin_backend(f.plugin, {.team = &f.team}), nullptr);
  EXPECT_EQ(seen.device, static_cast<uint32_t>(WW_RUNS_ON_CUDA));
}

TEST(PluginTable, BytesThatHaveNoMeaningYetAreZero) {
  Fixture f(WW_RUNS_ON_CPU);
  f.caps.reserved[3] = 1;
  const auto read = read_plugin_table(&f.table);
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.status().message().find("caps.reserved"), std::string::npos);
}

TEST(PluginTable, ErrorsOfAForwardAreItsStatus) {
  Fixture f(WW_RUNS_ON_CPU);
  ASSERT_TRUE(f.backend->init_forward_metadata(f.batch).ok());
  seen.failing = true;
  const Status status = f.backend->forward_decode(f.batch, f.call);
  EXPECT_EQ(status.code(), StatusCode::resource_exhausted);
  EXPECT_EQ(status.message(), "attention backend seeing: no room for 4 heads");
  seen.failing = false;
  EXPECT_TRUE(f.backend->forward_decode(f.batch, f.call).ok());
}

}  // namespace
}  // namespace warpweave
