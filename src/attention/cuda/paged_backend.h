// What the CUDA backends share: reading a batch's device arrays, device-made plans, workspace, graphs.
// A backend is this class with its Caps and its KernelFamily.
//
// Plans are launched on the batch's stream by the first layer that needs them (one per window and
// kernel) and reused by the other layers; inside a capture they become part of the graph, so that a
// replay plans for itself and costs the host nothing. Memory is allocated at creation and, outside
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
// splits (attention_params.h): the bits of a row depend on its own Q and KV alone.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <vector>

#include "attention/backend.h"
#include "attention/cuda/attention_params.h"
#include "attention/cuda/mixed_order.h"
#include "attention/cuda/plan.h"
#include "attention/cuda/split_work.h"
#include "device/cuda/memory.h"

namespace warpweave::cuda {

enum class ElementType { bf16, f16 };
enum class KvType { same16, e4m3, e5m2, e2m1 };  // same16: K and V are of the element type

struct KernelShape {
  ElementType element = ElementType::bf16;
  KvType kv = KvType::same16;
  int head_dim = 128;
  bool head_pairs =
      false;  // kv heads are even in number, a token's stand side by side, pairs at multiples of their size
};

// What a decode launch of `rows` rows a request (query tokens * group) takes; rows 0: not run.
struct DecodeLayout {
  int rows = 0;         // of a partial result
  int ctas_per_sm = 0;  // workers = this * SMs
  int heads = 1;        // neighbouring kv heads that the plan counts as one
};

// How a tiled launch cuts rows; tile_rows 0: not run.
struct ExtendLayout {
  int tile_rows = 0;
  int rows_per_token = 1;  // group: the q heads of a kv head share a tile; 1: a tile is of one q head
  bool fp8_products = false;  // Caps::fp8_products apply
  bool pairs = false;         // a request's last tile, if of few tokens, is of two q heads
  bool tiles_in_turn = false;  // PlanInput
  bool side_by_side = false;  // ExtendWorklist::q_ready is heeded, on any number of SMs
  bool after_decode = false;  // ExtendWorklist::beside_predecessor is heeded
  // Where ExtendCopies are worth it: the tile_rows with them, 0: it takes none. Tiles are then not taken in turn, nor
  // launched under decode.
  int copied_tile_rows = 0;
  int min_copy_reads = 0;  // how often a block must be read, by tiles of q heads, to make up for copying it
  bool copied_before = false;  // by a kernel before the tiles' (ExtendCopies::ready is null)
};

struct DecodeLaunch {
  int rows = 0;            // a request: query tokens * group
  bool multi_row = false;  // requests may have more than one query token
  DecodeWorkspace work;
  int num_workers = 0;
};

struct ExtendLaunch {
  ExtendLayout layout;
  ExtendWorklist work;
  int max_items = 0;       // entries that the worklist may have
  int num_sms = 0;         // that it takes
};

// How a launch for short requests cuts rows; tile_rows 0: not run.
struct ShortLayout {
  int tile_rows = 0;
  int ctas_per_sm = 0;  // workers = this * SMs
  int tile_tokens = 64;  // of K and V
};

// The kernels of one backend. Layout functions are pure.
struct KernelFamily {
  DecodeLayout (*decode_layout)(const KernelShape& shape, int rows, bool multi_row);
  cudaError_t (*decode)(const KernelShape& shape, const AttentionParams& p, const DecodeLaunch& launch,
                        cudaStream_t stream);
  ExtendLayout (*extend_layout)(const KernelShape& shape, const AttentionParams& p, int max_q_len);
  cudaError_t (*extend)(const KernelShape& shape, const AttentionParams& p, const ExtendLaunch& launch,
                        cudaStream_t stream);
  // Requests of up to p.decode_q_len query tokens, split over KV (split_work.h); null: the family has no such kernel.
  ShortLayout (*short_layout)(const KernelShape& shape, const AttentionParams& p, int num_sms) = nullptr;
  cudaError_t (*short_extend)(const KernelShape& shape, const AttentionParams& p, const SplitWork& work,
                              cudaStream_t stream) = nullptr;
  size_t (*short_workspace_bytes)(int num_sms) = nullptr;  // of any layout
};

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

 private:
  // Plans of this forward: made or not, for what, and the memory they are made in.
  struct DecodeKey {
    int window_left = 0, num_kv_heads = 0, num_workers = 0, q_len = 0;
    bool operator==(const DecodeKey&) const = default;
  };
  struct DecodePlan {
    bool made = false;
    DecodeKey key;
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
  static constexpr int kMaxPlans = 4;  // different windows or shapes among a model's layers

  // A decode kernel whose plan is made, or being made.
  struct PlannedDecode {
    KernelShape shape;
    AttentionParams params;
    DecodeLaunch launch;
  };

  Status prepare();
  void forget_plans();
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
  Status run_fixed(const ForwardBatch& batch, KernelShape shape, AttentionParams p, int q_len);
  // Whether there is no error.

  const Caps& caps_;
  const KernelFamily& kernels_;
  const bool deterministic_;
  int num_sms_ = 0;
  bool dependent_launch_ = false;
  DeviceBuffer partial_out_, partial_max_sum_, counters_;
  DeviceBuffer short_workspace_;  // SplitWork, without its workers
  DeviceBuffer q_ready_;  // DecodeWorkspace::q_ready
  int32_t q_epoch_ = 0;
  std::array<DecodePlan, kMaxPlans> decode_plans_;
  std::array<ExtendPlan, kMaxPlans> extend_plans_;
  std::array<ShortPlan, kMaxPlans> short_plans_;
  DeviceBuffer copies_;  // of K and V, of the layer at work
  bool capturing_ = false;
  // Apart for decode steps, whose memory graphs may hold.
  std::array<FixedPlan, kMaxPlans> fixed_decode_plans_, fixed_extend_plans_;
  std::vector<DeviceBuffer> outgrown_;  // memory that graphs may still use
  int graph_tokens_ = 0, graph_requests_ = 0;  // what captured batches may hold
};

}  // namespace warpweave::cuda
