// Plans of PagedCudaBackend within graphs, and how long plans are kept.
#include <algorithm>
#include <array>
#include <span>

#include "attention/cuda/paged_backend.h"
#include "device/cuda/cuda_check.h"

namespace warpweave::cuda {

void PagedCudaBackend::forget_plans() {
  for (DecodePlan& plan : decode_plans_) plan.made = false;
  together_.clear();
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

// What the last forwards of these batches planned. The first layer's attention then begins as early as the others'.
Status PagedCudaBackend::plan_again(std::span<const PlannedBatch> batches, cudaStream_t stream) {
  std::array<DecodePlanCall, kMostDecodePlans> calls;
  size_t count = 0;
  for (DecodePlan& plan : decode_plans_) {
    plan.made &= std::find(batches.begin(), batches.end(), plan.key.batch) != batches.end();
    if (plan.made) calls[count++] = {plan.input, plan.workers.as<DecodeWorker>(), plan.key.num_workers};
  }
  if (count == 0) return {};
  return cuda_status(launch_decode_plans(std::span(calls).first(count), stream), "decode plan");
}

Status PagedCudaBackend::plan_together(std::span<const ForwardBatch* const> batches) {
  WW_RETURN_IF_ERROR(prepare());
  together_.clear();
  for (const ForwardBatch* batch : batches) together_.push_back(planned_batch(*batch));
  return batches.empty() ? Status() : plan_again(together_, static_cast<cudaStream_t>(batches.front()->device.stream));
}

Status PagedCudaBackend::init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch) {
  WW_RETURN_IF_ERROR(prepare());
  capturing_ = true;
  forget_other_plans();
  const PlannedBatch announced = planned_batch(batch);
  if (std::find(together_.begin(), together_.end(), announced) != together_.end()) return {};
  together_.clear();
  return plan_again({&announced, 1}, static_cast<cudaStream_t>(batch.device.stream));
}

// The graph holds its own plan launches.
Status PagedCudaBackend::init_forward_metadata_replay_cuda_graph(const ForwardBatch&) { return {}; }

}  // namespace warpweave::cuda
