// Plans of PagedCudaBackend within graphs, and how long plans are kept.
#include <array>
#include <span>

#include "attention/cuda/paged_backend.h"
#include "device/cuda/cuda_check.h"

namespace warpweave::cuda {

void PagedCudaBackend::forget_plans() {
  for (DecodePlan& plan : decode_plans_) plan.made = false;
  forget_other_plans();
}

void PagedCudaBackend::forget_other_plans() {
  for (ExtendPlan& plan : extend_plans_) plan.made = false;
  for (ShortPlan& plan : short_plans_) plan.made = false;
  for (FixedPlan& plan : fixed_decode_plans_) plan.made = false;
  for (FixedPlan& plan : fixed_extend_plans_) plan.made = false;
  tree_key_ = {};
}

Status PagedCudaBackend::init_cuda_graph_state(const GraphLimits& limits) {
  WW_RETURN_IF_ERROR(prepare());
  graph_tokens_ = limits.max_tokens;
  graph_requests_ = limits.max_batch_size;
  return {};
}

// What the last forward of the same batch planned. The first layer's attention then begins as early as the others'.
Status PagedCudaBackend::plan_again(const ForwardBatch& batch) {
  std::array<DecodePlanCall, kMaxPlans> calls;
  size_t count = 0;
  for (DecodePlan& plan : decode_plans_) {
    const PlanInput& in = plan.input;
    const bool same = in.kv_lens == batch.device.kv_lens && in.q_indptr == batch.device.q_indptr &&
                      in.num_requests == batch.num_reqs;
    plan.made &= same;
    if (plan.made) calls[count++] = {in, plan.workers.as<DecodeWorker>(), plan.key.num_workers};
  }
  if (count == 0) return {};
  const auto stream = static_cast<cudaStream_t>(batch.device.stream);
  return cuda_status(launch_decode_plans(std::span(calls).first(count), stream), "decode plan");
}

Status PagedCudaBackend::init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch) {
  WW_RETURN_IF_ERROR(prepare());
  capturing_ = true;
  forget_other_plans();
  return plan_again(batch);
}

// The graph holds its own plan launches.
Status PagedCudaBackend::init_forward_metadata_replay_cuda_graph(const ForwardBatch&) { return {}; }

}  // namespace warpweave::cuda
