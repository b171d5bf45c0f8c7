#include "engine/gpu_compile_ahead.h"

#include <optional>

#include "kv/kv_memory_map.h"
#include "model/gpu_kv_cache.h"
#include "model/build_decoder.h"
#include "model/dual_chunk.h"
#include "model/layers/attention_call.h"

namespace warpweave {
namespace {

// Rows of a request in one batch: decode, short and long prompts. Kernels differ by the rows that share K and V, which
// are these times the query heads of a KV head.
constexpr int kLengths[] = {1, 2, 8, 32, 1 << 16};

// A KV cache's views before there is memory.
struct PlannedCache {
  KvMemoryMap map;
  KvPoolView k(int layer) const { return map.view(layer, 0, nullptr); }
  KvPoolView v(int layer) const { return map.view(layer, 1, nullptr); }
};

// What the first layer with attention asks; the others differ in windows alone. nullopt: no layer keeps K and V.
Result<std::optional<AttentionCall>> planned_call(const DeviceSetup& setup) {
  const ModelConfig& config = setup.bundle.config;
  WW_ASSIGN_OR_RETURN(const FamilyTraits traits, family_traits(config));
  const DecoderSpec spec = decoder_spec(config, traits);
  KvCacheShape shape = kv_cache_shape(setup);
  shape.num_pages = 1;
  WW_ASSIGN_OR_RETURN(const KvMemoryMap map, KvMemoryMap::create(shape, GpuKvCache::kAlignBytes));
  for (int layer = 0; layer < shape.model_layers(); ++layer) {
    if (!shape.keeps(layer)) continue;
    AttentionCall call = spec.latent.num_heads > 0
                             ? latent_attention_call(spec.latent, PlannedCache{map}, layer)
                             : attention_call(spec.attention, spec.layers[layer], PlannedCache{map}, layer);
    call.q_dtype = call.out_dtype = setup.plan.dtype;
    return std::optional(call);
  }
  return std::optional<AttentionCall>();
}

}  // namespace

std::vector<std::future<void>> compile_attention_ahead(const DeviceSetup& setup, AttentionBackend& backend) {
  std::vector<std::future<void>> out;
  const auto call = planned_call(setup);
  if (!call.ok() || !*call) return out;  // a bad model is refused where it is built
  const ModelConfig& config = setup.bundle.config;
  const auto dual_chunk = dual_chunk_in_use(config, setup.plan.context_len);
  for (const int length : kLengths) {
    out.push_back(std::async(std::launch::async, [&backend, length, dual_chunk, shape = **call]() mutable {
      DualChunkQueries forms;
      if (dual_chunk) {
        forms = {nullptr, nullptr, int64_t{shape.num_q_heads} * shape.head_dim, DualChunkRope(*dual_chunk).chunk_len()};
        shape.dual_chunk = &forms;
      }
      static_cast<void>(backend.compile(shape, length));
    }));
  }
  return out;
}

}  // namespace warpweave
