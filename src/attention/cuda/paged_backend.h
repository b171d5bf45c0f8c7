// What the CUDA backends share: reading a batch's device arrays, device-made plans, workspace, graphs.
// A backend is this class with its Caps and its KernelFamily.
//
// Plans are launched on the batch's stream by the first layer that needs them (one per window and
// kernel) and reused by the other layers; inside a capture they become part of the graph, so that a
// replay plans for itself and costs the host nothing. Decode plans that the trial run before a capture asked for are
// made at once before its first layer, so that no layer waits for them. Memory is allocated at creation and, outside
// graphs, when a larger batch than before arrives. One stream at a time, as AttentionBackend says.
// Requests of one query token go to the split-KV decode kernel even in a mixed batch, others there to the tiled
// kernel; batches of short requests (drafts) to the decode kernel of several rows, or to a family's own kernel for
// them.
//
// K and V on small pages are copied for prefill where the copies are read often enough (ExtendCopies), into
// memory that grows as batches need it, to at most 768 MiB; without it, and inside graphs, whose lengths are not
// known, they are read from the pages.
//
// With BackendContext::deterministic the decode kernel computes every row, prefill included, with fixed
// splits (attention_params.h): the bits of a row depend on its own Q and KV alone, and a tree's rows are requests of
// their own (tree_requests.h).
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "attention/cuda/kernel_family.h"
#include "attention/cuda/mixed_order.h"
#include "attention/cuda/plan.h"
#include "device/cuda/memory.h"

namespace warpweave::cuda {

class PagedCudaBackend : public AttentionBackend {
 public:
  PagedCudaBackend(const Caps& caps, const KernelFamily& kernels, const BackendContext& context)
      : caps_(caps), kernels_(kernels), deterministic_(context.deterministic) {}

  const Caps& caps() const override { return caps_; }
  Status init_forward_metadata(const ForwardBatch& batch) override;
  Status forward_extend(const ForwardBatch& batch, const AttentionCall& call) override;
  Status forward_decode(const ForwardBatch& batch, const AttentionCall& call) override;
  Status init_cuda_graph_state(const GraphLimits& limits) override;
  Status init_forward_metadata_capture_cuda_graph(const ForwardBatch& batch) override;
  Status init_forward_metadata_replay_cuda_graph(const ForwardBatch& batch) override;
  bool captures_verification() const override { return caps_.graph_capture && !deterministic_; }
  Status plan_together(std::span<const ForwardBatch* const> batches) override;

 private:
  // Where a batch's lengths stand, by which it is told from others.
  struct PlannedBatch {
    const int32_t *kv_lens = nullptr, *q_indptr = nullptr;
    int num_requests = 0;
    bool operator==(const PlannedBatch&) const = default;
  };
  // Plans of this forward: made or not, for what, and the memory they are made in.
  struct DecodeKey {
    int window_left = 0, num_kv_heads = 0, num_workers = 0, q_len = 0;
    PlannedBatch batch;
    bool operator==(const DecodeKey&) const = default;
  };
  struct DecodePlan {
    bool made = false;
    DecodeKey key;
    PlanInput input;  // of the last plan made here
    DeviceBuffer workers;
  };
  struct ExtendKey {
    int window_left = 0, tile_rows = 0, rows_per_token = 0, decode_q_len = 0, num_kv_heads = 0;
    bool tiles_in_turn = false;
    int copy_blocks = 0;
    bool copied_before = false;
    bool operator==(const ExtendKey&) const = default;
  };
  struct ExtendPlan {
    bool made = false;
    ExtendKey key;
    DeviceBuffer items;  // behind their header
    DeviceBuffer copy_lists;
  };
  struct ShortKey {
    int window_left = 0, units = 0, tile_rows = 0, q_len = 0;
    bool operator==(const ShortKey&) const = default;
  };
  struct ShortPlan {
    bool made = false;
    ShortKey key;
    DeviceBuffer workers;
  };
  struct FixedKey {
    int window_left = 0, num_kv_heads = 0, num_workers = 0, tokens_per_piece = 0, max_cut_units = 0;
    bool operator==(const FixedKey&) const = default;
  };
  struct FixedPlan {
    bool made = false;
    FixedKey key;
    DeviceBuffer workers, pieces, unit_ends;
  };
  struct TreeKey {
    const int32_t* page_table = nullptr;
    int page_places = 0;
    bool operator==(const TreeKey&) const = default;
  };
  static constexpr int kMaxPlans = 4;  // different windows or shapes among a model's layers

  // A decode kernel whose plan is made, or being made.
  struct PlannedDecode {
    KernelShape shape;
    AttentionParams params;
    DecodeLaunch launch;
  };

  Status prepare();
  void forget_plans();
  void forget_other_plans();  // all but those of decode
  static PlannedBatch planned_batch(const ForwardBatch& batch) {
    return {batch.device.kv_lens, batch.device.q_indptr, batch.num_reqs};
  }
  Status plan_again(std::span<const PlannedBatch> batches, cudaStream_t stream);
  Status forward_mixed(const ForwardBatch& batch, const KernelShape& shape, AttentionParams p);
  SmShares shares_of(const ForwardBatch& batch, const KernelShape& shape, const AttentionParams& p,
                     const ExtendLayout& layout) const;
  Result<PlannedDecode> plan_decode(const ForwardBatch& batch, KernelShape shape, AttentionParams p, int q_len,
                                    int num_sms);
  Status launch_decode(const ForwardBatch& batch, const PlannedDecode& planned);
  Status run_extend(const ForwardBatch& batch, const KernelShape& shape, const AttentionParams& p,
                    ExtendLayout layout, const SmShares& shares);
  Result<int> copy_blocks(const ForwardBatch& batch, const KernelShape& shape, const AttentionParams& p,
                          const ExtendLayout& layout);
  ExtendCopies copies_of(const ExtendPlan& plan, const KernelShape& shape, const AttentionParams& p) const;
  Status run_short(const ForwardBatch& batch, const KernelShape& shape, const AttentionParams& p,
                   const ShortLayout& layout);
  Status retire(DeviceBuffer& memory, cudaStream_t stream);
  Status reserve_fixed(FixedPlan& plan, int pieces);
  struct FixedRows {
    int q_len = 1;       // the most of a request
    bool decode = true;  // of a decode step, whose plan a graph may hold
  };
  Status run_fixed(const ForwardBatch& batch, KernelShape shape, AttentionParams p, const FixedRows& requests);
  Status run_fixed_tree(const ForwardBatch& batch, const KernelShape& shape, const AttentionParams& p);

  const Caps& caps_;
  const KernelFamily& kernels_;
  const bool deterministic_;
  int num_sms_ = 0;
  bool dependent_launch_ = false;
  DeviceBuffer partial_out_, partial_max_sum_, counters_;
  DeviceBuffer short_workspace_, short_cuts_;  // SplitWork, without its workers
  DeviceBuffer q_ready_;  // DecodeWorkspace::q_ready
  int32_t q_epoch_ = 0;
  std::array<DecodePlan, kMostDecodePlans> decode_plans_;  // of several batches where these are planned together
  std::vector<PlannedBatch> together_;                     // of plan_together(), until another one is announced
  std::array<ExtendPlan, kMaxPlans> extend_plans_;
  std::array<ShortPlan, kMaxPlans> short_plans_;
  DeviceBuffer copies_;  // of K and V, of the layer at work
  bool capturing_ = false;
  // Apart for decode steps, whose memory graphs may hold.
  std::array<FixedPlan, kMaxPlans> fixed_decode_plans_, fixed_extend_plans_;
  DeviceBuffer tree_requests_;          // TreeRequests
  TreeKey tree_key_;                    // of what they are in this forward, of all nodes; page_table null: of nothing
  std::vector<DeviceBuffer> outgrown_;  // memory that graphs may still use
  int graph_tokens_ = 0, graph_requests_ = 0;  // what captured batches may hold
};

// What a name registers. Both outlive the backend.
template <const Caps& kCaps, const KernelFamily& kKernels>
std::unique_ptr<AttentionBackend> create_paged(const BackendContext& context) {
  return std::make_unique<PagedCudaBackend>(kCaps, kKernels, context);
}

}  // namespace warpweave::cuda
