#include "model/gpu_expert_load.h"

#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "model/expert_load.h"

namespace warpweave {

Result<std::unique_ptr<GpuExpertLoad>> GpuExpertLoad::create(const GpuDecoder& model) {
  const GpuExperts* const experts = model.experts();
  if (experts == nullptr || experts->load() == nullptr) return std::unique_ptr<GpuExpertLoad>();
  std::unique_ptr<GpuExpertLoad> out(new GpuExpertLoad(model));
  WW_ASSIGN_OR_RETURN(out->stream_, create_stream());
  const size_t counters = model.spec().layers.size() * static_cast<size_t>(experts->experts_counted());
  WW_ASSIGN_OR_RETURN(out->counts_, PinnedBuffer::allocate(counters * sizeof(uint64_t), "the load of experts"));
  return out;
}

std::vector<ExpertLayerLoad> GpuExpertLoad::summary() {
  std::lock_guard lock(mutex_);
  const GpuExperts& experts = *model_.experts();
  constexpr const char* kWhat = "the load of experts";
  if (!copy_async(counts_.as<void>(), experts.load(), counts_.size_bytes(), stream_.get(), kWhat).ok() ||
      !wait_for_stream(stream_.get(), kWhat).ok()) {
    return {};
  }
  const uint64_t* const counts = counts_.as<uint64_t>();
  return summarize_expert_load(static_cast<int>(model_.spec().layers.size()), model_.spec().router.num_experts,
                               [&](int layer, int e) { return counts[layer * experts.experts_counted() + e]; });
}

}  // namespace warpweave
