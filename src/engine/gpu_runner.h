// Runs steps on a GPU: launch() enqueues a whole step and returns; the GPU goes from step to step
// without the host in between. Sampled tokens stay in GPU memory, where the next step's embedding
// reads them; one small copy brings them to the host for wait().
//
// Decode steps run as CUDA graphs, one per batch size of a list, padded up to it; padding rows have
// kv_slots -1 and kv_lens 0, so they write and read no K/V, and take another row's experts. Graphs also run steps that
// verify equally many proposals of each request, where AttentionBackend::captures_verification says so.
//
// Where rows are edited before they are sampled (grammars, penalties), or log-probabilities are wanted, launch()
// enqueues the forward, then waits for the step before, whose tokens they depend on, and prepares their sampling while
// the forward runs. A step that verifies proposals of such rows is sampled on the host and waited for in launch(); so
// are log-probabilities of prompts. launch() waits for a draft model's guesses, too, but for chains of a head, which go
// into the step on the GPU, and for a step whose rows the draft model is to be shown when it is done. A step that
// verifies chains of a head is followed by the head's pass over its rows, for which the host is not needed: while that
// runs, wait() returns and the next step is made. With recurrent layers it waits for a step with proposals: what their
// states are committed with is overwritten by the next step.
// One thread calls everything but expert_load().
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "attention/backend.h"
#include "base/threads.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "engine/device_runner.h"
#include "engine/gpu_edited_rows.h"
#include "engine/step_arrays.h"
#include "engine/verify.h"
#include "lora/gpu_adapters.h"
#include "model/gpu_decoder.h"
#include "model/gpu_expert_load.h"
#include "model/gpu_kv_cache.h"
#include "sample/sampler.h"
#include "spec/drafter.h"
#include "spec/gpu_draft_model.h"

namespace warpweave {

struct GpuParts {
  std::unique_ptr<GpuDecoder> model;
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<GpuKvCache> cache;
  std::unique_ptr<GpuStateCache> states;  // of recurrent layers; null: the model has none
  std::unique_ptr<ThreadTeam> team;  // host sampling
  std::unique_ptr<Drafter> drafter;  // null: no draft model
  std::shared_ptr<GpuAdapters> adapters;  // the adapters that the model's layers read; null: none are served
  GpuDraftModel* draft_model = nullptr;  // the drafter's
  int draft_group = 0;               // the cache group whose page table the draft model's K/V use
  CudaStream stream;
};

struct GpuRunnerOptions {
  int max_requests = 0;
  int max_tokens = 0;                  // of one step
  int max_pages_per_request = 0;
  int context_len = 0;
  int max_proposals = 0;               // of one request in a step
  int max_adapters = 0;                // of one step's requests
  int prefill_tokens = 0;              // of a full prefill step: the GEMMs are tuned for it
  std::vector<int> graph_batch_sizes = {};  // ascending; empty: no graphs
  bool may_guess_nothing = false;      // --speculative-adaptive: a draft head does not follow all steps
  std::optional<double> acceptance_dice;  // for benchmarks: see VerifyWalk::use_dice()
  double graph_budget_s = 2;           // for captures at start; other batch sizes are captured when first met
};

// Of a graph with proposals: larger steps take the GPU longer than the host takes to launch their kernels.
inline constexpr int kMostGraphRows = 512;

class GpuRunner : public DeviceRunner {
 public:
  // Captures graphs; the weights are there, and nothing runs yet.
  static Result<std::unique_ptr<GpuRunner>> create(GpuParts parts, const GpuRunnerOptions& options);
  ~GpuRunner() override;

  void launch(DeviceStep* step) override;
  void wait(DeviceStep* step) override;
  std::vector<ExpertLayerLoad> expert_load() const override {
    return expert_load_ != nullptr ? expert_load_->summary() : std::vector<ExpertLayerLoad>();
  }

 private:
  // A launched step, until it is finished.
  struct Flight {
    DeviceStep* step = nullptr;
    PinnedBuffer staging;        // what upload_step reads
    PinnedBuffer sampled;        // [2 * max_samples] ids on their way back
    PinnedBuffer brought;        // rows that requests bring in place of embeddings, as large as a step ever needed
    std::vector<InputRows> inputs;  // of the step, in `brought`
    CudaEvent begin, end;        // timed: between steps the GPU is idle
    CudaEvent draft_begin;       // timed: of chains that the host does not see before they are verified
    CudaEvent followed;          // timed: the end of a head's pass behind the step
    bool drafts_ahead = false;   // the step's guesses are read with what was sampled
    bool follows_ahead = false;  // that pass was launched with the step
    bool follows = false;        // the step before was still running at launch
    ForwardBatch batch;          // as it was uploaded: what recurrent states are committed with
    bool edited = false;         // some of its rows are edited before they are sampled, or scored
    bool on_host = false;        // its proposals are verified on the host
    const int32_t* tree_parents = nullptr;
    double staging_us = 0, metadata_us = 0, enqueue_us = 0;  // of the host, for the log
  };
  // What steps a graph runs: up to `requests` requests of q_len rows each.
  struct GraphShape {
    int requests = 0;            // 0: none, the step runs without a graph
    int q_len = 1;               // above 1: verifies proposals
    int mask_words = 0;          // words of a row of the tree mask; 0: chains
    bool adapters = false;       // some requests have one
    bool placed = false;         // some rows stand at three positions
    bool keeps_hidden = false;   // a draft head is shown what comes of it
    auto operator<=>(const GraphShape&) const = default;
  };
  // What a row of the device's page tables holds now.
  struct TableRow {
    RequestId id = kNoRequest;
    uint32_t pages_version = 0;
    int num_pages = 0;
    std::array<int, kMaxCacheGroups> num_blank{};
  };

  GpuRunner(GpuParts parts, const GpuRunnerOptions& options);
  Status reserve();
  Status launch_step(DeviceStep& step, Flight& flight);
  Status draft(DeviceStep& step, Flight& flight);
  Status observe(const DeviceStep& step, const Flight& flight);
  void measure(DeviceStep& step, Flight& flight);
  // gpu_runner_ahead.cc
  Result<bool> draft_ahead(DeviceStep& step, Flight& flight);
  Status follow_ahead(const DeviceStep& step, Flight& flight, const GraphShape& graph);
  static void take_guesses(DeviceStep& step, const Flight& flight);
  bool follows_as_accepted(const DeviceStep& step, const Flight& flight) const;
  StepShape shape_of_step(const DeviceStep& step) const;
  static bool samples_on_host(const DeviceStep& step);
  bool waits_for_others(const DeviceStep& step) const;
  bool takes_places() const;
  size_t num_graphs() const;
  void finish_others(const Flight& flight);
  StepShape shape_of(int tokens, int requests, int logits_rows, int samples) const;
  void fill_lora(const ForwardBatch& built, const StepShape& shape, std::byte* block);
  void fill_states(const ForwardBatch& built, const StepShape& shape, std::byte* block) const;
  void fill_arrays(const DeviceStep* step, const StepShape& shape, std::byte* block, ForwardBatch& batch);
  void describe(const DeviceStep* step, const StepShape& shape, ForwardBatch& batch) const;
  Status upload(const DeviceStep* step, const StepShape& shape, Flight& flight, ForwardBatch& batch);
  void collect_page_runs(const DeviceStep& step);
  void add_page_run(int table_row, int first, int num_pages);
  void fill_groups(const DeviceStep* step, const StepShape& shape, std::byte* block);
  const int32_t* tree_parents(const StepShape& shape) const;
  Status bring_inputs(const DeviceStep& step, Flight& flight) const;
  // What a forward does besides what the batch says.
  struct ForwardExtras {
    bool keeps_hidden = false;
    std::span<const InputRows> inputs = {};
  };
  Status run_model(const ForwardBatch& batch, const StepShape& shape, float* logits, const ForwardExtras& extras);
  Status forward(const ForwardBatch& batch, const StepShape& shape, float* logits, const ForwardExtras& extras);
  std::vector<GraphShape> first_graphs() const;
  // Whether a draft head reads the rows of the target, if at all.
  bool has_head() const { return parts_.drafter != nullptr && parts_.drafter->options().eagle; }
  GraphShape graph_shape_for(const DeviceStep& step) const;
  StepShape shape_of_graph(const GraphShape& graph) const;
  Result<cudaGraphExec_t> graph_for(const GraphShape& shape, Flight& flight);
  Status capture(const GraphShape& shape, Flight& flight);
  Status tune_prefill(int tokens);
  Result<float*> logits_memory(int rows);
  void collect_edited_rows(const DeviceStep& step);
  Status read_back(DeviceStep& step, Flight& flight, const float* logits);
  Status verify_on_host(DeviceStep& step, const Flight& flight, const float* logits);
  Result<std::vector<float>> read_logits(std::span<const int> rows, const float* logits) const;
  Status compute_input_logprobs(DeviceStep& step, const float* logits);
  void fill_samples(const DeviceStep& step, std::span<gpu::SampleRowParams> samples, std::span<int32_t> guesses);
  void finish(Flight& flight);
  Status take_sampled(DeviceStep& step, const Flight& flight);
  Status take_verified(DeviceStep& step, const Flight& flight);
  Status keep_accepted(const DeviceStep& step, const Flight& flight);
  cudaStream_t stream() const { return parts_.stream.get(); }

  GpuParts parts_;
  GpuRunnerOptions options_;
  std::unique_ptr<GpuExpertLoad> expert_load_;  // null: there are no experts
  Sampler sampler_;
  GpuEditedRows edited_rows_;
  std::vector<gpu::EditedSample> edited_;  // of the step at hand
  VerifyWalk walk_;
  std::vector<ObservedRow> observed_;
  std::array<Flight, 2> flights_;
  int next_flight_ = 0;
  CudaEvent last_end_;                // of the step before, for the gap
  CudaEvent last_followed_;           // likewise, if last_followed_ahead_
  bool last_followed_ahead_ = false;

  DeviceBuffer arrays_;               // a step's arrays, see StepShape
  DeviceBuffer page_table_;           // [groups, max_requests, max_pages_per_request]
  std::vector<TableRow> table_rows_;
  DeviceBuffer sampled_;              // [max_samples] by sample slot; with proposals by logits row, then their ids
  DeviceBuffer sample_maxima_;        // [max_samples] gpu::SharedMaximum
  DeviceBuffer logits_;               // [max_requests, vocab]
  DeviceBuffer accepted_;  // [max_requests] with recurrent layers and proposals: the last accepted node of each
  PinnedBuffer host_accepted_;
  DeviceBuffer large_logits_;         // for steps that want more rows (prompt logprobs, proposals)
  std::map<GraphShape, CudaGraphExec> graphs_;  // null: could not be captured
  std::vector<gpu::PageTableRun> runs_;
  std::vector<int32_t> run_values_;
  std::vector<int32_t> children_;   // of a node of proposals
  std::vector<int32_t> told_;       // by row, for a head's pass: how many nodes count
  std::vector<int32_t> lora_slots_;  // by row, then by row of logits
  std::vector<CacheGroupArrays> groups_;  // of the batch at hand
};

}  // namespace warpweave
