#include "attention/backends/intel_amx/backend.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <limits>
#include <vector>

#include "attention/backends/intel_amx/caps.h"
#include "attention/backends/intel_amx/plan.h"
#include "attention/backends/intel_amx/tile.h"
#include "attention/batch_check.h"
#include "attention/registry.h"
#include "attention/tree_texts.h"
#include "base/threads.h"

namespace warpweave::intel_amx {
namespace {

struct TierKernels {
  const KernelSet* f32;   // any pool format
  const KernelSet* bf16;  // formats whose values are exact in bf16
};

TierKernels kernels_of(CpuTier tier) {
#if defined(__x86_64__)
  // The bf16 kernels look fp8 up by VBMI, which one CPU with AVX512-BF16 lacks (Cooper Lake).
  if (tier >= CpuTier::avx512_bf16 && !__builtin_cpu_supports("avx512vbmi")) tier = CpuTier::avx512;
  switch (tier) {
    case CpuTier::amx_bf16: return {&kAvx512Kernels, &kAmxBf16Kernels};
    case CpuTier::avx512_bf16: return {&kAvx512Kernels, &kAvx512Bf16Kernels};
    case CpuTier::avx512: return {&kAvx512Kernels, &kAvx512Kernels};
    case CpuTier::avx2: return {&kAvx2Kernels, &kAvx2Kernels};
    case CpuTier::scalar: break;
  }
#endif
  return {&kScalarKernels, &kScalarKernels};
}

class IntelAmxBackend : public AttentionBackend {
 public:
  IntelAmxBackend(const BackendContext& context, CpuTier tier, const Caps& caps)
      : caps_(caps), team_(context.team), kernels_(kernels_of(tier)), runners_(team_->size()) {
    shape_.threads = team_->size();
  }

  const Caps& caps() const override { return caps_; }

  Status init_forward_metadata(const ForwardBatch& batch) override {
    WW_RETURN_IF_ERROR(check_batch(batch));
    for (GroupPlan& known : plans_) known.made = false;
    plan_of(batch);  // most models have one cache group
    return {};
  }

  Status reserve(const ForwardBatch& batch, const AttentionCall& shape) override {
    const LayerShape layer = layer_shape(batch, shape);
    plan_for(batch, layer);
    for (TileRunner& runner : runners_) runner.reserve(layer);
    return {};
  }

  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override {
    forward(batch, call);
    return {};
  }
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override {
    forward(batch, call);
    return {};
  }

 private:
  LayerShape layer_shape(const ForwardBatch& batch, const AttentionCall& call) const {
    const bool exact_in_bf16 = call.k.format != KvFormat::f32 && call.k.format != KvFormat::f16;
    return {exact_in_bf16 ? *kernels_.bf16 : *kernels_.f32, batch, call};
  }
  void forward(const ForwardBatch& batch, const AttentionCall& call);
  const Plan& plan_of(const ForwardBatch& batch);
  const Plan& plan_for(const ForwardBatch& batch, const LayerShape& shape);

  // Layers of different cache groups stand on different pages, and so share other beginnings.
  struct GroupPlan {
    bool made = false;
    const int32_t* page_table = nullptr;
    Plan plan;
  };

  const Caps& caps_;
  ThreadTeam* team_;
  TierKernels kernels_;
  PlanShape shape_;  // as of the last call: layers of one model rarely differ
  std::vector<GroupPlan> plans_;  // of this forward, and memory for the next ones
  std::vector<TileRunner> runners_;
  AlignedBuffer partials_;
};

const Plan& IntelAmxBackend::plan_of(const ForwardBatch& batch) {
  const int32_t* const pages = batch.page_table.data();
  auto place = std::find_if(plans_.begin(), plans_.end(), [&](const GroupPlan& known) {
    return !known.made || known.page_table == pages;
  });
  if (place == plans_.end()) place = plans_.emplace(plans_.end());
  if (!place->made || place->plan.shape() != shape_) place->plan.init(batch, shape_);
  place->made = true;
  place->page_table = pages;
  return place->plan;
}

const Plan& IntelAmxBackend::plan_for(const ForwardBatch& batch, const LayerShape& shape) {
  shape_.group = shape.group;
  shape_.kv_heads = shape.call->num_kv_heads;
  shape_.tile_rows = shape.kernels->tile_rows;
  shape_.group_rows = shape.kernels->group_rows;
  const Plan& plan = plan_of(batch);
  const size_t rows = static_cast<size_t>(plan.partial_rows()) * shape_.kv_heads;
  partials_.reserve(rows * (shape.padded_v_dim + 2));
  return plan;
}

void IntelAmxBackend::forward(const ForwardBatch& batch, const AttentionCall& call) {
  const LayerShape shape = layer_shape(batch, call);
  const Plan& plan = plan_for(batch, shape);
  clear_empty_requests(batch, call);

  const int64_t items = static_cast<int64_t>(plan.items().size());
  if (items == 0) return;
  const int kv_heads = call.num_kv_heads;
  const Partials partials = {partials_.floats(), plan.partial_rows(), kv_heads, shape.padded_v_dim};
  std::atomic<int64_t> next{0};
  team_->run([&](int member, int) {
    TileRunner& runner = runners_[member];
    runner.reserve(shape);
    shape.kernels->enter();
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < items;) {
      runner.run(shape, plan, plan.items()[i], partials);
    }
    shape.kernels->leave();
  });
  if (plan.merges().empty()) return;
  const int64_t merges = static_cast<int64_t>(plan.merges().size()) * kv_heads;
  next.store(0, std::memory_order_relaxed);
  team_->run([&](int member, int) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < merges;) {
      runners_[member].merge(shape, plan.merges()[i / kv_heads], static_cast<int>(i % kv_heads),
                             partials);
    }
  });
}

}  // namespace

std::unique_ptr<AttentionBackend> create_for_tier(const BackendContext& context, CpuTier tier, AttentionKind kind) {
  const Caps& caps = kind == AttentionKind::mla ? kMlaCaps : kCaps;
  return with_trees_as_texts(std::make_unique<IntelAmxBackend>(context, tier, caps), context);
}

std::unique_ptr<AttentionBackend> create(const BackendContext& context) {
  return create_for_tier(context, cpu_info().tier);
}

std::unique_ptr<AttentionBackend> create_mla(const BackendContext& context) {
  return create_for_tier(context, cpu_info().tier, AttentionKind::mla);
}

}  // namespace warpweave::intel_amx

namespace warpweave {
WW_REGISTER_ATTENTION_BACKEND(intel_amx, intel_amx::kCaps, intel_amx::create)
WW_REGISTER_ATTENTION_BACKEND(intel_amx_mla, intel_amx::kMlaCaps, intel_amx::create_mla)
}
