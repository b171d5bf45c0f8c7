// A draft model on a GPU: passes only enqueue, on the target's stream and behind its work; what they choose, the next
// pass reads from the GPU's memory, and the host in take_choices(). The passes of chains, and those of trees, run as
// one CUDA graph, one per number of passes and batch size of a list, where the attention backend plans by the batch's
// device arrays alone (AttentionBackend::captures_verification). So does the pass of a head that follows a step which
// verified chains: the GPU itself finds out what was accepted, and the next chains begin with what that pass chose.
// Only for builds with GPU kernels.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "attention/backend.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "model/draft_head.h"
#include "model/gpu_decoder.h"
#include "model/gpu_kv_cache.h"
#include "spec/cuda/draft_kernels.h"
#include "spec/draft_model.h"
#include "spec/draft_options.h"
#include "spec/gpu_head_copy.h"

namespace warpweave {

struct GpuDraftParts {
  std::unique_ptr<GpuDecoder> model;
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<GpuKvCache> cache;
  std::optional<DraftHeadKind> kind;  // unset: a model of its own
  std::vector<int32_t> tokens;  // of a head: what each column of its logits stands for; empty: every token in order
  GpuHeadCopy head;             // of a head without an own one, where it does not read the target's itself
};

struct GpuDraftLimits {
  DraftOptions options;
  int max_requests = 0;         // of a step
  int max_tokens = 0;           // of a step, and rows of a pass
  int max_level_rows = 0;       // rows of a pass that choices are made for
  int max_kept_rows = 0;
  int max_pages_per_request = 0;
  std::vector<int> graph_batch_sizes = {};  // ascending; empty: no graphs
};

// Rows of a step that a head follows without the host.
inline constexpr int kMostFollowedRows = 512;

// A step that verifies chains of `q_len` rows of each request, as it stands in the GPU's memory, padded.
struct VerifiedChains {
  int requests = 0;                    // with padding
  int q_len = 0;
  const int32_t* input_ids = nullptr;  // [requests, q_len]
  const int32_t* sampled = nullptr;    // [requests, q_len]
  const int32_t* positions = nullptr;  // [requests, q_len]
  const int32_t* kv_slots = nullptr;   // [requests, q_len] in the pages that the draft model's K/V follow
  const int32_t* q_indptr = nullptr;
  const int32_t* kv_lens = nullptr;
};

class GpuDraftModel : public DraftModel {
 public:
  // `target`, whose embedding, head and hidden states a draft head reads, outlives this. Errors: `resource_exhausted`.
  static Result<std::unique_ptr<GpuDraftModel>> create(GpuDraftParts parts, const GpuDraftLimits& limits,
                                                       GpuDecoder& target, cudaStream_t stream);

  // Where the rows of the target's page tables stand on the GPU, [rows, max_pages_per_request], of the group whose
  // pages the draft model's K/V follow. Before the first pass; they are read in the stream's order.
  void set_page_table(const int32_t* table) { target_table_ = table; }

  size_t num_graphs() const { return chain_graphs_.size() + follow_graphs_.size(); }

  // After run_chain_ahead(): writes the guesses to `ids` [requests, q_len], but the first row of each request, and to
  // `copy`.
  Status place_guesses(int requests, int q_len, int32_t* ids, int32_t* copy);
  // Whether follow() can be called for a step of that shape.
  bool follows(int requests, int q_len) const;
  // The pass of a head over what a step verified, behind that step's forward. By request of the step: where its last
  // hidden state is kept, and how many of its rows count; negative: as many as are right. Leaves a choice for each.
  Status follow(const VerifiedChains& chains, std::span<const int32_t> keep, std::span<const int32_t> accepted);

  int page_size() const override { return parts_.cache->shape().page_size; }
  int max_rows() const override { return limits_.max_tokens; }
  size_t weight_bytes() const override { return parts_.model->weight_bytes(); }
  size_t cache_bytes() const override { return parts_.cache->size_bytes(); }
  Status copy_pages(std::span<const PageCopy> copies) override;
  Status run(const DraftPass& pass, const BatchBuilder& step) override;
  Status run_chain(std::span<const DraftPass> passes, const BatchBuilder& step) override;
  Result<bool> run_chain_ahead(std::span<const DraftPass> passes, const BatchBuilder& step) override;
  Result<bool> run_trees(const TreeDraft& trees, const BatchBuilder& step) override;
  void forget_choices() override;
  Result<std::span<const DraftChoice>> take_choices() override;

  // Of an array among those of a pass.
  static constexpr size_t aligned(size_t size_bytes) { return (size_bytes + 15) / 16 * 16; }
  // Where a kept hidden state stands on the GPU: [hidden] of the target's dtype.
  const void* kept(int row) const;

 private:
  // Arrays on their way to the GPU; its memory is the host's again when `read` has passed.
  struct Staging {
    PinnedBuffer memory;
    CudaEvent read;
  };
  // Where they stand there.
  struct Arrays {
    const int32_t* input_ids = nullptr;
    const int32_t* choice_slots = nullptr;   // of input_ids, as EmbeddingCall reads choices
    const int32_t* requests = nullptr;
    const int32_t* features = nullptr;
    const int32_t* keep = nullptr;
    bool reads_target = false;
  };
  // Chains that a graph drafts, or trees.
  struct ChainShape {
    int requests = 0;            // padded; 0: none, the passes run one by one
    int passes = 0;
    int topk = 1;                // above 1: trees
    auto operator<=>(const ChainShape&) const = default;
  };
  struct ChainPass {
    ForwardBatch batch;
    Arrays arrays;
  };
  // A step that a graph follows.
  struct FollowShape {
    int requests = 0;
    int q_len = 0;
    const int32_t* kv_lens = nullptr;  // shapes of equal sizes may have their arrays elsewhere
    auto operator<=>(const FollowShape&) const = default;
  };

  static constexpr int kWordsOfChoice = sizeof(DraftChoice) / sizeof(int32_t);

  GpuDraftModel(GpuDraftParts parts, const GpuDraftLimits& limits, GpuDecoder& target, cudaStream_t stream)
      : parts_(std::move(parts)), limits_(limits), target_(target), stream_(stream) {}
  Status reserve();
  Status reserve_rows();
  Status reserve_tokens();
  bool has_own_head() const { return parts_.kind == DraftHeadKind::eagle3 && parts_.model->has_head(); }
  int64_t head_columns() const;
  // Stages an array; where it will stand on the GPU.
  template <typename T>
  const T* put(std::span<const T> values) {
    const size_t at = filled_bytes_;
    filled_bytes_ += aligned(values.size_bytes());
    if (!values.empty()) std::memcpy(filled_->memory.as<std::byte>() + at, values.data(), values.size_bytes());
    return reinterpret_cast<const T*>(arrays_.as<std::byte>() + at);
  }
  // Where there is room among the staged arrays for what the GPU itself writes.
  int32_t* leave_room(int count) {
    const size_t at = filled_bytes_;
    filled_bytes_ += aligned(count * sizeof(int32_t));
    return arrays_.as<int32_t>() + at / sizeof(int32_t);
  }
  Status start_upload();
  Status finish_upload();
  Status upload(const DraftPass& pass, ForwardBatch& batch, Arrays& arrays);
  Status make_head_rows(int64_t rows, const Arrays& arrays);
  Status multiply_fc(int64_t rows);
  GpuDecoder& head_owner() { return has_own_head() ? *parts_.model : target_; }
  CopiedHead head_copy();
  Status choose(const ForwardBatch& batch, const Arrays& arrays, int topk, DraftChoice* out);
  Result<HeadRows> forward_head(const ForwardBatch& batch, const Arrays& arrays);
  HeadRows keep_rows(int64_t wanted, const Arrays& arrays);
  Status forward_standalone(const ForwardBatch& batch, const Arrays& arrays);
  // gpu_draft_chain.cc
  Status reserve_chains();
  size_t chain_bytes() const;
  ChainShape chain_shape_for(std::span<const DraftPass> passes) const;
  Result<bool> run_chain_at_once(std::span<const DraftPass> passes);
  void put_chain_tokens(std::span<const DraftPass> passes, size_t pass, const ChainShape& shape, Arrays& arrays);
  void stage_chain(std::span<const DraftPass> passes, const ChainShape& shape);
  const int32_t* put_padded(std::span<const int32_t> values, int count, int32_t padding);
  Status enqueue_chain(const ChainShape& shape);
  Status launch_drafts(cudaGraphExec_t graph, const ChainShape& shape, int requests);
  // gpu_draft_follow.cc
  void stage_following(const VerifiedChains& chains, std::span<const int32_t> keep, std::span<const int32_t> accepted);
  Status enqueue_following();
  Result<cudaGraphExec_t> follow_graph(const FollowShape& shape);
  // gpu_draft_tree.cc
  size_t tree_bytes() const;
  Status reserve_trees();
  ChainShape tree_shape_for(const TreeDraft& trees) const;
  void stage_trees(const TreeDraft& trees, const ChainShape& shape);
  void stage_tree_pass(const TreeDraft& trees, const ChainShape& shape, int pass);
  Status enqueue_trees(const ChainShape& shape);
  Status capture_chain(const ChainShape& shape);
  Result<cudaGraphExec_t> chain_graph(const ChainShape& shape);
  DraftChoice* chain_choices() const { return choices_.as<DraftChoice>() + max_choices_; }

  GpuDraftParts parts_;
  GpuDraftLimits limits_;
  GpuDecoder& target_;
  const cudaStream_t stream_;
  const int32_t* target_table_ = nullptr;

  std::array<Staging, 4> staging_;
  int next_staging_ = 0;
  Staging* filled_ = nullptr;
  size_t filled_bytes_ = 0;
  std::vector<int32_t> choice_slots_;
  DeviceBuffer arrays_;               // of a pass
  DeviceBuffer page_table_;           // of a pass whose requests are not the step's first ones
  DeviceBuffer inputs_;               // of a head: [max_tokens, columns of fc]
  DeviceBuffer beside_;               // EAGLE3: [max_tokens, 2 * hidden], what its attention reads
  DeviceBuffer last_rows_;            // EAGLE: [max_level_rows, hidden]
  DeviceBuffer kept_;                 // of a head: [max_kept_rows, hidden]
  DeviceBuffer tokens_;               // with parts_.tokens: these
  DeviceBuffer logits_;               // [max_level_rows, head_columns()]
  DeviceBuffer top_parts_;            // with topk 1
  DeviceBuffer choices_;  // [max_choices], and behind them those of a chain's graph: [passes, padded requests]
  PinnedBuffer host_choices_;
  CudaEvent chosen_;
  int max_choices_ = 0;
  int num_choices_ = 0;               // that are not taken yet
  std::map<ChainShape, CudaGraphExec> chain_graphs_;  // null: could not be captured
  std::vector<ChainPass> chain_;      // as it was staged last
  std::vector<int32_t> padded_, zeros_, counting_;    // counting_: 0, 1, 2, ...
  // Of trees: what their graphs make of the choices, and the host's part of a batch.
  DeviceBuffer tree_nodes_, tree_ids_, tree_features_, tree_mask_;
  const DraftChoice* tree_first_ = nullptr;           // of those that were staged last
  const int32_t *tree_first_features_ = nullptr, *tree_requests_ = nullptr;
  std::vector<std::vector<int32_t>> tree_q_indptr_, tree_logits_rows_;  // by pass
  std::vector<DraftChoice> padded_first_;
  ChainShape ahead_;                  // by a graph, and not placed yet
  // Of a step that is followed, as it was staged last.
  gpu::FollowChainsCall follow_;
  ChainPass following_;
  std::vector<int32_t> follow_q_indptr_;
  std::map<FollowShape, CudaGraphExec> follow_graphs_;  // null: could not be captured
  ChainShape drafted_;                // by a graph, and not taken yet
  int drafted_requests_ = 0;          // of those
};

}  // namespace warpweave
