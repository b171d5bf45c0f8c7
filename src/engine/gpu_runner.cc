#include "engine/gpu_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include <fmt/format.h>

#include "base/log.h"
#include "device/cuda/copy.h"
#include "device/cuda/graph.h"
#include "ops/elementwise.h"
#include "sample/cuda/gpu_sampler.h"

namespace warpweave {
namespace {

using gpu::PageTableRun;
using gpu::SampleRowParams;

constexpr int kTuningForwards = 2;

double us_since(SteadyClock::time_point& last) {
  const auto now = SteadyClock::now();
  return std::chrono::duration<double, std::micro>(now - std::exchange(last, now)).count();
}
// Prefill sizes for which the GEMMs are tuned: by steps where prompts and chunks are common, then
// doubling.
constexpr int kTunedStep = 128, kTunedSteps = 16;
std::vector<int> tuned_prefill_sizes(int largest) {
  std::vector<int> sizes;
  for (int tokens = kTunedStep; tokens <= std::min(largest, kTunedStep * kTunedSteps); tokens += kTunedStep) {
    sizes.push_back(tokens);
  }
  for (int tokens = 2 * kTunedStep * kTunedSteps; tokens <= largest; tokens *= 2) sizes.push_back(tokens);
  return sizes;
}

}  // namespace

Result<std::unique_ptr<GpuRunner>> GpuRunner::create(GpuParts parts, const GpuRunnerOptions& options) {
  std::unique_ptr<GpuRunner> out(new GpuRunner(std::move(parts), options));
  WW_RETURN_IF_ERROR(out->reserve());
  auto started = SteadyClock::now();
  const auto elapsed_s = [&] { return std::chrono::duration<double>(SteadyClock::now() - started).count(); };
  for (int tokens : tuned_prefill_sizes(options.prefill_tokens)) WW_RETURN_IF_ERROR(out->tune_prefill(tokens));
  LOG_DEBUG("GEMMs of prefill tuned in {:.2f} s", elapsed_s());
  started = SteadyClock::now();
  const std::vector<GraphShape> wanted = out->first_graphs();
  for (const GraphShape& shape : wanted) {
    if (elapsed_s() > options.graph_budget_s) break;
    WW_ASSIGN_OR_RETURN(const cudaGraphExec_t graph, out->graph_for(shape, out->flights_[0]));
    if (graph == nullptr) break;
  }
  if (!wanted.empty()) {
    LOG_INFO("CUDA graphs: {} of {} batch sizes{}{}{} captured in {:.2f} s, the others when first used",
             out->graphs_.size(), wanted.size(), options.max_adapters > 0 ? ", with and without adapters," : "",
             out->takes_places() ? ", with and without position_ids," : "",
             options.may_guess_nothing ? ", followed by the draft model and not," : "", elapsed_s());
  }
  return out;
}

// Of decode steps, the smallest first.
std::vector<GpuRunner::GraphShape> GpuRunner::first_graphs() const {
  std::vector<GraphShape> out;
  for (const int batch_size : options_.graph_batch_sizes) {
    const GraphShape usual = {.requests = batch_size, .keeps_hidden = has_head()};
    std::vector<GraphShape> kinds = {usual};
    if (options_.max_adapters > 0) kinds.emplace_back(usual).adapters = true;
    if (takes_places()) kinds.emplace_back(usual).placed = true;
    for (GraphShape kind : kinds) {
      out.push_back(kind);
      kind.keeps_hidden = false;
      if (has_head() && options_.may_guess_nothing) out.push_back(kind);
    }
  }
  return out;
}

GpuRunner::GpuRunner(GpuParts parts, const GpuRunnerOptions& options)
    : parts_(std::move(parts)), options_(options), sampler_(*parts_.team) {
  if (options_.acceptance_dice) walk_.use_dice(*options_.acceptance_dice);
}

GpuRunner::~GpuRunner() { (void)wait_for_stream(stream(), "stopping"); }

// Whether rows may stand at three positions (EngineInfo::takes_position_ids).
bool GpuRunner::takes_places() const {
  return parts_.model->config().takes_rope_positions() && options_.max_proposals == 0;
}

StepShape GpuRunner::shape_of(int tokens, int requests, int logits_rows, int samples) const {
  return {.tokens = tokens, .requests = requests, .logits_rows = logits_rows, .samples = samples,
          .groups = parts_.cache->shape().num_groups(), .states = parts_.states != nullptr};
}

Status GpuRunner::reserve() {
  const size_t requests = options_.max_requests;
  const int groups = parts_.cache->shape().num_groups();
  const size_t samples = requests * (1 + options_.max_proposals);
  const int mask_words = options_.max_proposals > 0 ? (options_.max_proposals + 32) / 32 : 0;
  StepShape largest =
      shape_of(options_.max_tokens, options_.max_requests, options_.max_tokens, static_cast<int>(samples));
  largest.mask_words = mask_words;
  largest.proposals = options_.max_proposals > 0;
  largest.max_adapters = options_.max_adapters;
  largest.placed = takes_places();
  if (parts_.states != nullptr) {
    largest.checkpoints =
        static_cast<int>(linear_attn_most_checkpoints(options_.max_tokens, options_.max_requests));
  }
  WW_ASSIGN_OR_RETURN(arrays_, DeviceBuffer::allocate(largest.size_bytes(), "a step's arrays"));
  WW_ASSIGN_OR_RETURN(page_table_, DeviceBuffer::allocate(groups * requests * options_.max_pages_per_request *
                                                         sizeof(int32_t), "page tables"));
  WW_ASSIGN_OR_RETURN(sampled_, DeviceBuffer::allocate(2 * samples * sizeof(int32_t), "sampled tokens"));
  WW_ASSIGN_OR_RETURN(logits_, DeviceBuffer::allocate(requests * parts_.model->config().vocab_size * sizeof(float),
                                                      "logits"));
  WW_ASSIGN_OR_RETURN(sample_maxima_, DeviceBuffer::allocate(samples * sizeof(gpu::SharedMaximum), "sampling"));
  WW_RETURN_IF_ERROR(edited_rows_.reserve(options_.max_requests, parts_.model->config().vocab_size));
  // Rows that no step has filled yet must still be page ids.
  WW_RETURN_IF_ERROR(fill_now(page_table_.as<void>(), 0, page_table_.size_bytes(), "clearing page tables"));
  WW_RETURN_IF_ERROR(fill_now(sampled_.as<void>(), 0, sampled_.size_bytes(), "clearing sampled tokens"));
  WW_RETURN_IF_ERROR(fill_now(sample_maxima_.as<void>(), 0, sample_maxima_.size_bytes(), "sampling"));
  table_rows_.resize(requests);
  WW_ASSIGN_OR_RETURN(expert_load_, GpuExpertLoad::create(*parts_.model));
  if (parts_.states != nullptr && options_.max_proposals > 0) {
    WW_ASSIGN_OR_RETURN(accepted_, DeviceBuffer::allocate(requests * sizeof(int32_t), "accepted proposals"));
    WW_ASSIGN_OR_RETURN(host_accepted_, PinnedBuffer::allocate(requests * sizeof(int32_t), "accepted proposals"));
  }
  if (parts_.draft_model != nullptr) {
    parts_.draft_model->set_page_table(page_table_.as<int32_t>() +
                                       parts_.draft_group * requests * options_.max_pages_per_request);
  }
  for (Flight& flight : flights_) {
    WW_ASSIGN_OR_RETURN(flight.staging, PinnedBuffer::allocate(largest.size_bytes(), "a step's arrays"));
    WW_ASSIGN_OR_RETURN(flight.sampled, PinnedBuffer::allocate(2 * samples * sizeof(int32_t), "sampled tokens"));
    for (CudaEvent* event : {&flight.begin, &flight.end, &flight.draft_begin, &flight.followed}) {
      WW_ASSIGN_OR_RETURN(*event, create_timed_event());
    }
  }
  WW_ASSIGN_OR_RETURN(last_end_, create_timed_event());
  WW_ASSIGN_OR_RETURN(last_followed_, create_timed_event());
  if (options_.graph_batch_sizes.empty()) return {};
  GraphLimits limits;
  limits.max_batch_size = limits.max_tokens = options_.graph_batch_sizes.back();
  if (options_.max_proposals > 0) limits.max_tokens = std::max(limits.max_tokens, kMostGraphRows);
  limits.max_pages_per_request = options_.max_pages_per_request;
  return parts_.attention->init_cuda_graph_state(limits);
}

void GpuRunner::launch(DeviceStep* step) {
  Flight& flight = flights_[next_flight_];
  next_flight_ ^= 1;
  finish(flight);
  const Flight& other = flights_[next_flight_];
  flight.follows = other.step != nullptr && !other.step->done;
  step->done = false;
  flight.step = step;
  try {
    step->status = launch_step(*step, flight);
  } catch (...) {  // memory, where a mask is made above all
    step->status = caught_step_failure();
  }
  if (!step->status.ok()) {
    step->done = true;
    (void)wait_for_stream(stream(), "a failed step");
    table_rows_.assign(table_rows_.size(), {});
    step->sampled.assign(step->sample_rows.size(), {});
    step->sampled_ids.assign(step->sample_rows.size(), 0);
  }
}

void GpuRunner::wait(DeviceStep* step) {
  for (Flight& flight : flights_) {
    if (flight.step == step) finish(flight);
  }
}

// Counts must include every token before they are used or replaced. The draft model is shown the step before while the
// page tables are still that step's, and recurrent states are committed with its arrays.
bool GpuRunner::waits_for_others(const DeviceStep& step) const {
  if (parts_.drafter != nullptr && !step.proposals.empty()) return true;
  if (samples_on_host(step) || !step.resumed.empty()) return true;
  return std::any_of(flights_.begin(), flights_.end(), [&](const Flight& other) {
    if (other.step == nullptr || other.step == &step) return false;
    return is_followed(*other.step) || (parts_.states != nullptr && !other.step->proposals.empty());
  });
}

size_t GpuRunner::num_graphs() const {
  return graphs_.size() + (parts_.draft_model != nullptr ? parts_.draft_model->num_graphs() : 0);
}

void GpuRunner::finish_others(const Flight& flight) {
  for (Flight& other : flights_) {
    if (&other != &flight) finish(other);
  }
}

Status GpuRunner::launch_step(DeviceStep& step, Flight& flight) {
  if (waits_for_others(step)) {
    finish_others(flight);
    flight.follows = false;
  }
  for (auto& [state, output_ids] : step.resumed) state->reset_output(output_ids);
  // Which rows are edited is asked once: a minimum of tokens may be reached with the step that is still running.
  collect_edited_rows(step);
  flight.on_host = samples_on_host(step);
  const int64_t page_size = parts_.cache->shape().page_size;
  for (const PageCopy& copy : step.copies) {
    WW_RETURN_IF_ERROR(parts_.cache->copy_tokens(copy.src_page * page_size, copy.dst_page * page_size,
                                                 copy.num_tokens, stream()));
  }
  if (parts_.states != nullptr) WW_RETURN_IF_ERROR(parts_.states->copy(step.state_loads, stream()));

  const size_t graphs = num_graphs();
  step.draft_us = 0;
  flight.drafts_ahead = flight.follows_ahead = false;
  if (parts_.drafter != nullptr) WW_RETURN_IF_ERROR(draft(step, flight));
  const GraphShape graph_shape = graph_shape_for(step);
  cudaGraphExec_t graph = nullptr;
  if (graph_shape.requests > 0) {
    WW_ASSIGN_OR_RETURN(graph, graph_for(graph_shape, flight));
  }
  const StepShape shape = graph != nullptr ? shape_of_graph(graph_shape) : shape_of_step(step);
  WW_RETURN_IF_ERROR(record_event(flight.begin.get(), stream(), "a step"));
  auto clock = SteadyClock::now();
  if (!flight.drafts_ahead) WW_RETURN_IF_ERROR(upload(&step, shape, flight, flight.batch));
  const ForwardBatch& batch = flight.batch;
  flight.tree_parents = tree_parents(shape);
  flight.staging_us = us_since(clock);
  WW_ASSIGN_OR_RETURN(float* const logits, logits_memory(shape.logits_rows));
  if (graph != nullptr) {
    WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata_replay_cuda_graph(batch));
    flight.metadata_us = us_since(clock);
    WW_RETURN_IF_ERROR(launch_graph(graph, stream(), "launching a graph"));
  } else {
    clock = SteadyClock::now();
    WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata(batch));
    flight.metadata_us = us_since(clock);
    WW_RETURN_IF_ERROR(bring_inputs(step, flight));
    WW_RETURN_IF_ERROR(forward(batch, shape, logits, {has_head() && is_followed(step), flight.inputs}));
  }
  if (parts_.states != nullptr) WW_RETURN_IF_ERROR(parts_.states->copy(step.state_saves, stream()));
  flight.enqueue_us = us_since(clock);
  flight.edited = !edited_.empty();
  if (flight.edited) {
    finish_others(flight);
    auto* const maxima = sample_maxima_.as<gpu::SharedMaximum>();
    WW_RETURN_IF_ERROR(
        edited_rows_.launch({edited_, logits, sampled_.as<int32_t>(), maxima, parts_.team.get()}, stream()));
  }
  WW_RETURN_IF_ERROR(read_back(step, flight, logits));
  if (graph != nullptr) WW_RETURN_IF_ERROR(follow_ahead(step, flight, graph_shape));
  step.first_of_shape = num_graphs() != graphs;
  return {};
}

StepShape GpuRunner::shape_of_step(const DeviceStep& step) const {
  const ForwardBatch& built = step.builder.batch();
  StepShape shape = shape_of(built.num_tokens, built.num_reqs, static_cast<int>(built.logits_rows.size()),
                             static_cast<int>(step.sample_rows.size()));
  shape.mask_words = built.tree_mask_words;
  if (!built.adapters.empty()) shape.max_adapters = options_.max_adapters;
  shape.placed = !built.rope_positions.empty();
  shape.proposals = !step.proposals.empty();
  shape.checkpoints = static_cast<int>(built.state_checkpoints.slots.size());
  if (shape.proposals) shape.samples = shape.logits_rows;
  return shape;
}

// The draft model's guesses in place of the room that was kept for them.
Status GpuRunner::draft(DeviceStep& step, Flight& flight) {
  WW_RETURN_IF_ERROR(parts_.draft_model->copy_pages(step.copies));
  if (step.proposals.empty()) return {};
  WW_ASSIGN_OR_RETURN(flight.drafts_ahead, draft_ahead(step, flight));
  if (flight.drafts_ahead) return {};
  auto begun = SteadyClock::now();
  ForwardBatch batch;
  WW_RETURN_IF_ERROR(upload(&step, shape_of_step(step), flight, batch));  // its passes read the page tables
  WW_RETURN_IF_ERROR(parts_.drafter->draft(step.builder, step.draft_rows, step.proposals));
  WW_RETURN_IF_ERROR(wait_for_stream(stream(), "a draft on the GPU"));  // the staging is filled anew
  step.builder.replace_proposals(step.proposals);
  step.draft_us = us_since(begun);
  return {};
}

const int32_t* GpuRunner::tree_parents(const StepShape& shape) const {
  return shape.has_parents() ? device_array<int32_t>(arrays_, shape.tree_parents()) : nullptr;
}

// The step's brought rows, scaled as embeddings are, where the GPU copies them from.
Status GpuRunner::bring_inputs(const DeviceStep& step, Flight& flight) const {
  flight.inputs.clear();
  size_t count = 0;
  for (const InputRows& rows : step.inputs) count += rows.values.size();
  if (flight.brought.size_bytes() < count * sizeof(float)) {
    WW_ASSIGN_OR_RETURN(flight.brought, PinnedBuffer::allocate(count * sizeof(float), "rows of input_embeds"));
  }
  const float scale = parts_.model->embedding_scale();
  float* to = flight.brought.as<float>();
  for (const InputRows& rows : step.inputs) {
    std::transform(rows.values.begin(), rows.values.end(), to, [scale](float x) { return x * scale; });
    flight.inputs.push_back({rows.row, {to, rows.values.size()}});
    to += rows.values.size();
  }
  return {};
}

Status GpuRunner::run_model(const ForwardBatch& batch, const StepShape& shape, float* logits,
                            const ForwardExtras& extras) {
  const int32_t* const rope_positions =
      shape.placed ? device_array<int32_t>(arrays_, shape.rope_positions()) : nullptr;
  const GpuFutureTokens futures = {device_array<int32_t>(arrays_, shape.futures()), sampled_.as<int32_t>()};
  return parts_.model->forward({.batch = batch,
                                .cache = *parts_.cache,
                                .attention = *parts_.attention,
                                .futures = futures,
                                .logits = logits,
                                .keep_hidden = extras.keeps_hidden,
                                .inputs = extras.inputs,
                                .states = parts_.states.get(),
                                .tree_parents = tree_parents(shape),
                                .rope_positions = rope_positions});
}

// The forward and the sampling of a step, enqueued.
Status GpuRunner::forward(const ForwardBatch& batch, const StepShape& shape, float* logits,
                          const ForwardExtras& extras) {
  WW_RETURN_IF_ERROR(run_model(batch, shape, logits, extras));
  gpu::sample_rows({.rows = device_array<SampleRowParams>(arrays_, shape.sample_rows()),
                    .num_rows = shape.samples,
                    .guesses = device_array<int32_t>(arrays_, shape.guesses()),
                    .logits = logits,
                    .vocab_size = parts_.model->config().vocab_size,
                    .out = sampled_.as<int32_t>(),
                    .maxima = sample_maxima_.as<gpu::SharedMaximum>()},
                   stream());
  return launch_status("sampling");
}

// The smallest graph that holds the step: of decode, or of proposals that are as many for every request. Brought rows
// are placed by copies that no graph has.
GpuRunner::GraphShape GpuRunner::graph_shape_for(const DeviceStep& step) const {
  const ForwardBatch& batch = step.builder.batch();
  const bool verifies = batch.mode == ForwardMode::target_verify && parts_.attention->captures_verification();
  if ((batch.mode != ForwardMode::decode && !verifies) ||
      static_cast<int>(batch.logits_rows.size()) != batch.num_tokens ||
      batch.num_tokens != batch.num_reqs * batch.max_q_len || !step.inputs.empty()) {
    return {};
  }
  const auto& sizes = options_.graph_batch_sizes;
  const auto size = std::lower_bound(sizes.begin(), sizes.end(), batch.num_reqs);
  if (size == sizes.end()) return {};
  const GraphShape out = {*size, batch.max_q_len, batch.tree_mask_words, !batch.adapters.empty(),
                          !batch.rope_positions.empty(), has_head() && is_followed(step)};
  const int rows = out.requests * out.q_len;
  return verifies && rows > std::min(kMostGraphRows, options_.max_tokens) ? GraphShape{} : out;
}

StepShape GpuRunner::shape_of_graph(const GraphShape& graph) const {
  const int rows = graph.requests * graph.q_len;
  StepShape out = shape_of(rows, graph.requests, rows, rows);
  out.mask_words = graph.mask_words;
  if (graph.adapters) out.max_adapters = options_.max_adapters;
  out.placed = graph.placed;
  out.proposals = graph.q_len > 1;
  return out;
}

Result<cudaGraphExec_t> GpuRunner::graph_for(const GraphShape& shape, Flight& flight) {
  if (const auto found = graphs_.find(shape); found != graphs_.end()) return found->second.get();
  const Status captured = capture(shape, flight);
  if (!captured.ok()) {
    forget_cuda_failure();
    LOG_WARN("no CUDA graph for batch size {}{}{}{}, its steps run without: {}", shape.requests,
             shape.q_len > 1 ? fmt::format(" with {} rows a request", shape.q_len) : "",
             shape.adapters ? " with adapters" : "", shape.placed ? " with position_ids" : "", captured.message());
    graphs_[shape];
  }
  return graphs_[shape].get();
}

// One prefill of padding, whose layers try the GEMMs' algorithms.
Status GpuRunner::tune_prefill(int tokens) {
  const StepShape shape = shape_of(tokens, 1, 1, 1);
  Flight& flight = flights_[0];
  ForwardBatch batch;
  WW_RETURN_IF_ERROR(upload(nullptr, shape, flight, batch));
  parts_.model->gemm().start_tuning();
  WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata(batch));
  WW_RETURN_IF_ERROR(run_model(batch, shape, logits_.as<float>(), {.keeps_hidden = has_head()}));
  parts_.model->gemm().stop_tuning();
  return wait_for_stream(stream(), "a trial run");
}

// First runs the batch for real, all padding, while the GEMMs try their algorithms: what is
// loaded or allocated on first use must not happen inside a capture.
Status GpuRunner::capture(const GraphShape& graph_shape, Flight& flight) {
  const StepShape shape = shape_of_graph(graph_shape);
  const ForwardExtras extras = {.keeps_hidden = graph_shape.keeps_hidden};
  WW_ASSIGN_OR_RETURN(float* const logits, logits_memory(shape.logits_rows));
  ForwardBatch batch;
  WW_RETURN_IF_ERROR(upload(nullptr, shape, flight, batch));
  parts_.model->gemm().start_tuning();
  for (int i = 0; i < kTuningForwards; ++i) {
    WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata_capture_cuda_graph(batch));
    WW_RETURN_IF_ERROR(run_model(batch, shape, logits, extras));
  }
  parts_.model->gemm().stop_tuning();
  WW_RETURN_IF_ERROR(wait_for_stream(stream(), "a trial run"));

  WW_ASSIGN_OR_RETURN(CudaGraphExec exec, capture_graph(stream(), "capturing a graph", [&] {
    const Status planned = parts_.attention->init_forward_metadata_capture_cuda_graph(batch);
    return planned.ok() ? forward(batch, shape, logits, extras) : planned;
  }));
  WW_RETURN_IF_ERROR(upload_graph(exec.get(), stream(), "uploading a graph"));
  graphs_[graph_shape] = std::move(exec);
  return {};
}

}  // namespace warpweave
