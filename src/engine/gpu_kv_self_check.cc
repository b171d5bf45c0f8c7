#include "engine/gpu_kv_self_check.h"

#include <cuda_runtime_api.h>

#include <numeric>
#include <optional>

#include "attention/registry.h"
#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "model/recurrent.h"

namespace warpweave {
namespace {

KvFormat format_of(DType dtype) {
  return dtype == DType::f32 ? KvFormat::f32 : dtype == DType::f16 ? KvFormat::f16 : KvFormat::bf16;
}

// The backend that runs every head dim, window and sink on this GPU.
Result<std::unique_ptr<AttentionBackend>> plain_backend(const GpuKvCheckSetup& setup) {
  for (const BackendRegistration& backend : built_backends()) {
    if (backend.caps->name != "torch_native" || !backend.caps->archs.has(setup.arch)) continue;
    return backend.create({.team = setup.team, .max_context_len = setup.max_tokens, .page_size = 1});
  }
  return Status::unsupported("no torch_native for this GPU", "--kv-cache-dtype");
}

// Host arrays of a forward and their places on the device.
struct Arrays {
  std::vector<int32_t> ids, order, q_indptr, kv_lens, last_row, state_slot = {0}, no_state = {kNoStateSlot};
  DeviceBuffer memory;
  size_t used = 0;
  Status failure;  // of the first copy that failed

  const int32_t* put(const std::vector<int32_t>& values) {
    auto* const at = memory.as<int32_t>() + used;
    const Status copied = copy_now(at, values.data(), values.size() * sizeof(int32_t), "the KV format check");
    if (failure.ok()) failure = copied;
    used += (values.size() + 63) / 64 * 64;  // 256 bytes
    return at;
  }
};

Result<ForwardBatch> make_batch(const ModelConfig& config, int tokens, void* stream, Arrays& arrays) {
  arrays.ids = kv_check_prompt(config, tokens);
  arrays.order.resize(tokens);
  std::iota(arrays.order.begin(), arrays.order.end(), 0);
  arrays.q_indptr = {0, tokens};
  arrays.kv_lens = {tokens};
  arrays.last_row = {tokens - 1};
  WW_ASSIGN_OR_RETURN(arrays.memory, DeviceBuffer::allocate(size_t{10} * 256 * sizeof(int32_t), "the KV format check"));
  ForwardBatch batch;
  batch.mode = ForwardMode::extend;
  batch.num_reqs = 1;
  batch.num_tokens = batch.max_q_len = batch.max_kv_len = tokens;
  batch.input_ids = arrays.ids;
  batch.positions = batch.kv_slots = batch.page_table = arrays.order;
  batch.q_indptr = arrays.q_indptr;
  batch.kv_lens = arrays.kv_lens;
  batch.page_table_stride = tokens;
  batch.logits_rows = arrays.last_row;
  batch.device.stream = stream;
  batch.device.input_ids = arrays.put(arrays.ids);
  batch.device.positions = batch.device.kv_slots = batch.device.page_table = arrays.put(arrays.order);
  batch.device.q_indptr = arrays.put(arrays.q_indptr);
  batch.device.kv_lens = arrays.put(arrays.kv_lens);
  batch.device.logits_rows = arrays.put(arrays.last_row);
  batch.device.state_slots = arrays.put(arrays.state_slot);
  batch.device.initial_state_slots = arrays.put(arrays.no_state);
  WW_RETURN_IF_ERROR(arrays.failure);
  return batch;
}

// Both pools have one layout.
Status download(const GpuKvCache& from, KvCache& to) {
  const KvCacheShape& shape = from.shape();
  const size_t bytes = static_cast<size_t>(shape.num_pages) * shape.page_size * shape.num_kv_heads * shape.k_head_dim *
                       kv_format_bits(shape.format) / 8;
  const auto copy = [&](const KvPoolView& device, const KvPoolView& host) {
    return copy_now(const_cast<void*>(host.data), device.data, bytes, "the KV format check");
  };
  for (int layer = 0; layer < shape.model_layers(); ++layer) {
    if (!shape.keeps(layer)) continue;
    WW_RETURN_IF_ERROR(copy(from.k(layer), to.k(layer)));
    if (shape.v_head_dim > 0) WW_RETURN_IF_ERROR(copy(from.v(layer), to.v(layer)));  // else V is part of K
  }
  return {};
}

}  // namespace

Result<KvSelfCheck> check_gpu_kv_format(GpuDecoder& model, KvFormat format, const GpuKvCheckSetup& setup) {
  const ModelConfig& config = model.config();
  const int tokens = kv_check_tokens(setup.max_tokens);
  const KvCacheShape shape = kv_check_shape(config, tokens, format_of(setup.dtype));
  WW_ASSIGN_OR_RETURN(auto attention, plain_backend(setup));
  WW_ASSIGN_OR_RETURN(GpuKvCache cache, GpuKvCache::create(shape));
  WW_ASSIGN_OR_RETURN(const DeviceBuffer logits,
                      DeviceBuffer::allocate(sizeof(float) * config.vocab_size, "the KV format check"));
  Arrays arrays;
  WW_ASSIGN_OR_RETURN(const ForwardBatch batch, make_batch(config, tokens, setup.stream, arrays));
  std::optional<GpuStateCache> states;
  if (config.has_recurrent_layers()) {
    WW_ASSIGN_OR_RETURN(states, GpuStateCache::create(state_cache_shape(config, 1, setup.state_dtype)));
  }
  WW_RETURN_IF_ERROR(attention->init_forward_metadata(batch));
  WW_RETURN_IF_ERROR(model.forward({.batch = batch,
                                    .cache = cache,
                                    .attention = *attention,
                                    .logits = logits.as<float>(),
                                    .states = states ? &*states : nullptr}));
  WW_RETURN_IF_ERROR(wait_for_stream(static_cast<cudaStream_t>(setup.stream), "the KV format check"));
  WW_ASSIGN_OR_RETURN(KvCache exact, KvCache::create(shape));
  WW_RETURN_IF_ERROR(download(cache, exact));
  return round_kv(exact, format);
}

}  // namespace warpweave
