#include "engine/gpu_runner.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "base/log.h"
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
// Prefill sizes for which the products are tuned: by steps where prompts and chunks are common, then
// doubling.
constexpr int kTunedStep = 128, kTunedSteps = 16;
constexpr int kHostLogprobRows = 64;  // logits rows on the host at a time

template <typename T>
std::span<T> array_at(std::byte* block, size_t offset, int count) {
  return {reinterpret_cast<T*>(block + offset), static_cast<size_t>(count)};
}

template <typename T>
const T* device_array(const DeviceBuffer& block, size_t offset) {
  return reinterpret_cast<const T*>(block.as<std::byte>() + offset);
}

SampleRowParams sample_params(const SampleRow& row, bool on_host) {
  SampleRowParams out;
  if (on_host) return out;
  const SamplingParams& params = row.state->params();
  out.logits_row = row.logits_row;
  out.temperature = params.temperature;
  out.top_k = params.top_k;
  out.top_p = params.top_p;
  out.min_p = params.min_p;
  if (params.temperature > 0) out.draw = uniform_draw(row.state->seed(), row.position);
  return out;
}

std::vector<int> tuned_prefill_sizes(int largest) {
  std::vector<int> sizes;
  for (int tokens = kTunedStep; tokens <= std::min(largest, kTunedStep * kTunedSteps); tokens += kTunedStep) {
    sizes.push_back(tokens);
  }
  for (int tokens = 2 * kTunedStep * kTunedSteps; tokens <= largest; tokens *= 2) sizes.push_back(tokens);
  return sizes;
}

bool row_wants_host(const SampleRow& row) { return row.want_logprobs || row.state->needs_logit_edit(); }

}  // namespace

Result<std::unique_ptr<GpuRunner>> GpuRunner::create(GpuParts parts, const GpuRunnerOptions& options) {
  std::unique_ptr<GpuRunner> out(new GpuRunner(std::move(parts), options));
  WW_RETURN_IF_ERROR(out->reserve());
  auto started = SteadyClock::now();
  const auto elapsed_s = [&] { return std::chrono::duration<double>(SteadyClock::now() - started).count(); };
  for (int tokens : tuned_prefill_sizes(options.prefill_tokens)) WW_RETURN_IF_ERROR(out->tune_prefill(tokens));
  LOG_DEBUG("products of prefill tuned in {:.2f} s", elapsed_s());
  started = SteadyClock::now();
  for (int batch_size : options.graph_batch_sizes) {
    if (elapsed_s() > options.graph_budget_s) break;
    WW_ASSIGN_OR_RETURN(const cudaGraphExec_t graph, out->graph_for(batch_size, out->flights_[0]));
    if (graph == nullptr) break;
  }
  if (!options.graph_batch_sizes.empty()) {
    LOG_INFO("CUDA graphs: {} of {} batch sizes captured in {:.2f} s, the others when first used",
             out->graphs_.size(), options.graph_batch_sizes.size(), elapsed_s());
  }
  return out;
}

GpuRunner::GpuRunner(GpuParts parts, const GpuRunnerOptions& options)
    : parts_(std::move(parts)), options_(options), sampler_(*parts_.team) {}

GpuRunner::~GpuRunner() { cudaStreamSynchronize(stream()); }

Status GpuRunner::reserve() {
  const size_t requests = options_.max_requests;
  const int groups = parts_.cache->shape().num_groups();
  const StepShape largest = {options_.max_tokens, options_.max_requests, options_.max_tokens, options_.max_requests,
                             groups};
  WW_ASSIGN_OR_RETURN(arrays_, DeviceBuffer::allocate(largest.size_bytes(), "a step's arrays"));
  WW_ASSIGN_OR_RETURN(page_table_, DeviceBuffer::allocate(groups * requests * options_.max_pages_per_request *
                                                         sizeof(int32_t), "page tables"));
  WW_ASSIGN_OR_RETURN(sampled_, DeviceBuffer::allocate(requests * sizeof(int32_t), "sampled tokens"));
  WW_ASSIGN_OR_RETURN(logits_, DeviceBuffer::allocate(requests * parts_.model->config().vocab_size * sizeof(float),
                                                      "logits"));
  // Rows that no step has filled yet must still be page ids.
  WW_CUDA_RETURN_IF_ERROR(cudaMemset(page_table_.as<void>(), 0, page_table_.size_bytes()), "clearing page tables");
  WW_CUDA_RETURN_IF_ERROR(cudaMemset(sampled_.as<void>(), 0, sampled_.size_bytes()), "clearing sampled tokens");
  table_rows_.resize(requests);
  for (Flight& flight : flights_) {
    WW_ASSIGN_OR_RETURN(flight.staging, PinnedBuffer::allocate(largest.size_bytes(), "a step's arrays"));
    WW_ASSIGN_OR_RETURN(flight.sampled, PinnedBuffer::allocate(requests * sizeof(int32_t), "sampled tokens"));
    WW_CUDA_RETURN_IF_ERROR(cudaEventCreate(flight.begin.out()), "an event");
    WW_CUDA_RETURN_IF_ERROR(cudaEventCreate(flight.end.out()), "an event");
  }
  WW_CUDA_RETURN_IF_ERROR(cudaEventCreate(last_end_.out()), "an event");
  if (options_.graph_batch_sizes.empty()) return {};
  GraphLimits limits;
  limits.max_batch_size = limits.max_tokens = options_.graph_batch_sizes.back();
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
  step->status = launch_step(*step, flight);
  if (!step->status.ok()) {
    cudaStreamSynchronize(stream());
    table_rows_.assign(table_rows_.size(), {});
    step->sampled.assign(step->sample_rows.size(), {});
    step->sampled_ids.assign(step->sample_rows.size(), 0);
    step->done = true;
  }
}

void GpuRunner::wait(DeviceStep* step) {
  for (Flight& flight : flights_) {
    if (flight.step == step) finish(flight);
  }
}

// Takes over what a step sampled on the GPU. Steps finish in the order of their launch.
void GpuRunner::finish(Flight& flight) {
  DeviceStep* const step = std::exchange(flight.step, nullptr);
  if (step == nullptr || step->done) return;
  step->status = cuda_status(cudaEventSynchronize(flight.end.get()), "a step on the GPU");
  step->sampled.assign(step->sample_rows.size(), {});
  step->sampled_ids.assign(step->sample_rows.size(), 0);
  for (size_t i = 0; step->status.ok() && i < step->sample_rows.size(); ++i) {
    step->sampled_ids[i] = step->sampled[i].token_id = flight.sampled.as<int32_t>()[i];
    step->sample_rows[i].state->add_output(step->sampled_ids[i]);
  }
  float gap_ms = 0, run_ms = 0;
  if (flight.follows && cudaEventElapsedTime(&gap_ms, last_end_.get(), flight.begin.get()) == cudaSuccess) {
    step->overhead_us = gap_ms * 1000.0;
  }
  if (cudaEventElapsedTime(&run_ms, flight.begin.get(), flight.end.get()) == cudaSuccess) {
    step->device_us = run_ms * 1000.0;
  }
  if (spdlog::should_log(spdlog::level::debug)) {
    const ForwardBatch& batch = step->builder.batch();
    LOG_DEBUG("step: {} requests, {} tokens, {:.3f} ms on the GPU, idle before {:.1f} us{}; host: staging {:.1f} us, "
              "attention metadata {:.1f}, enqueueing {:.1f}", batch.num_reqs, batch.num_tokens, run_ms, gap_ms * 1000,
              flight.follows ? "" : " (not measured)", flight.staging_us, flight.metadata_us, flight.enqueue_us);
  }
  std::swap(last_end_, flight.end);  // this flight's is recorded anew at its next launch
  step->done = true;
}

bool GpuRunner::wants_host(const DeviceStep& step) const {
  return !step.input_logprobs.empty() ||
         std::any_of(step.sample_rows.begin(), step.sample_rows.end(), row_wants_host);
}

Status GpuRunner::launch_step(DeviceStep& step, Flight& flight) {
  // Counts must include every token before they are used or replaced.
  if (wants_host(step) || !step.resumed.empty()) {
    for (Flight& other : flights_) {
      if (&other != &flight) finish(other);
    }
    flight.follows = false;
  }
  for (auto& [state, output_ids] : step.resumed) state->reset_output(output_ids);
  const bool on_host = wants_host(step);
  const int64_t page_size = parts_.cache->shape().page_size;
  for (const PageCopy& copy : step.copies) {
    WW_RETURN_IF_ERROR(parts_.cache->copy_tokens(copy.src_page * page_size, copy.dst_page * page_size,
                                                 copy.num_tokens, stream()));
  }

  const ForwardBatch& built = step.builder.batch();
  const int graph_size = graph_size_for(step);
  cudaGraphExec_t graph = nullptr;
  if (graph_size > 0) {
    WW_ASSIGN_OR_RETURN(graph, graph_for(graph_size, flight));
  }
  StepShape shape = {built.num_tokens, built.num_reqs, static_cast<int>(built.logits_rows.size()),
                     static_cast<int>(step.sample_rows.size()), parts_.cache->shape().num_groups()};
  if (graph != nullptr) shape = {graph_size, graph_size, graph_size, graph_size, shape.groups};
  WW_CUDA_RETURN_IF_ERROR(cudaEventRecord(flight.begin.get(), stream()), "a step");
  ForwardBatch batch;
  auto clock = SteadyClock::now();
  WW_RETURN_IF_ERROR(upload(&step, shape, flight, batch));
  flight.staging_us = us_since(clock);
  float* logits = logits_.as<float>();
  if (graph != nullptr) {
    WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata_replay_cuda_graph(batch));
    flight.metadata_us = us_since(clock);
    WW_CUDA_RETURN_IF_ERROR(cudaGraphLaunch(graph, stream()), "launching a graph");
  } else {
    WW_ASSIGN_OR_RETURN(logits, logits_memory(shape.logits_rows));
    clock = SteadyClock::now();
    WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata(batch));
    flight.metadata_us = us_since(clock);
    WW_RETURN_IF_ERROR(forward(batch, shape, logits));
  }
  flight.enqueue_us = us_since(clock);
  WW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(flight.sampled.as<void>(), sampled_.as<void>(),
                                          step.sample_rows.size() * sizeof(int32_t), cudaMemcpyDeviceToHost, stream()),
                          "reading sampled tokens");
  WW_CUDA_RETURN_IF_ERROR(cudaEventRecord(flight.end.get(), stream()), "a step");
  return on_host ? sample_on_host(step, flight, logits) : Status();
}

// The forward and the sampling of a step, enqueued.
Status GpuRunner::forward(const ForwardBatch& batch, const StepShape& shape, float* logits) {
  const GpuFutureTokens futures = {device_array<int32_t>(arrays_, shape.futures()), sampled_.as<int32_t>()};
  WW_RETURN_IF_ERROR(parts_.model->forward(batch, *parts_.cache, *parts_.attention, futures, logits));
  gpu::sample_rows(device_array<SampleRowParams>(arrays_, shape.sample_rows()), shape.samples, logits,
                   parts_.model->config().vocab_size, sampled_.as<int32_t>(), stream());
  return cuda_status(cudaPeekAtLastError(), "sampling");
}

// What changes in the device's page tables: pages at the end, and blanks at the beginning.
void GpuRunner::collect_page_runs(const DeviceStep& step) {
  const BatchBuilder& builder = step.builder;
  const KvCacheShape& cache = parts_.cache->shape();
  const std::vector<int32_t> blanks(options_.max_pages_per_request * cache.grouped(), cache.blank_page());
  for (int i = 0; i < builder.batch().num_reqs; ++i) {
    const StepRow& row = step.step->rows[i];
    TableRow& known = table_rows_[i];
    if (known.id != row.id || known.pages_version != row.pages_version) known = {row.id, row.pages_version, 0, {}};
    for (int g = 0; g < cache.num_groups(); ++g) {
      const int table_row = g * options_.max_requests + i, num_blank = builder.num_blank(i, g);
      if (num_blank > known.num_blank[g]) {
        add_page_run(table_row, known.num_blank[g], std::span(blanks).first(num_blank - known.num_blank[g]));
      }
      known.num_blank[g] = num_blank;
      const int first = std::max(std::min(known.num_pages, row.num_pages), num_blank);
      if (first < row.num_pages) {
        add_page_run(table_row, first, {builder.pages_of(i, g) + first, static_cast<size_t>(row.num_pages - first)});
      }
    }
    known.num_pages = row.num_pages;
  }
}

void GpuRunner::add_page_run(int table_row, int first, std::span<const int32_t> pages) {
  runs_.push_back({table_row, first, static_cast<int>(pages.size()), static_cast<int32_t>(run_values_.size())});
  run_values_.insert(run_values_.end(), pages.begin(), pages.end());
}

// The step's arrays in the given shape, padded; all padding without a step. `block` holds
// shape.size_bytes(); the host arrays of `batch` are set to what stands there.
void GpuRunner::fill_arrays(const DeviceStep* step, const StepShape& shape, std::byte* block, ForwardBatch& batch) {
  const auto input_ids = array_at<int32_t>(block, shape.input_ids(), shape.tokens);
  const auto positions = array_at<int32_t>(block, shape.positions(), shape.tokens);
  const auto futures = array_at<int32_t>(block, shape.futures(), shape.tokens);
  const auto q_indptr = array_at<int32_t>(block, shape.q_indptr(), shape.requests + 1);
  const auto kv_lens = array_at<int32_t>(block, shape.kv_lens(), shape.requests);
  const auto logits_rows = array_at<int32_t>(block, shape.wanted_rows(), shape.logits_rows);
  const auto samples = array_at<SampleRowParams>(block, shape.sample_rows(), shape.samples);
  // Padding: a request of one row that sees nothing.
  const auto put = [](std::span<const int32_t> from, std::span<int32_t> to, int32_t padding) {
    std::copy(from.begin(), from.end(), to.begin());
    std::fill(to.begin() + from.size(), to.end(), padding);
  };
  const ForwardBatch none;
  const ForwardBatch& built = step != nullptr ? step->builder.batch() : none;
  put(built.input_ids, input_ids, 0);
  put(built.positions, positions, 0);
  put({}, futures, -1);
  put(built.kv_lens, kv_lens, 0);
  put(built.q_indptr, q_indptr, 0);
  for (size_t i = std::max<size_t>(built.q_indptr.size(), 1); i < q_indptr.size(); ++i) {
    q_indptr[i] = q_indptr[i - 1] + 1;
  }
  if (step == nullptr) {  // a trial: equal rows would draw less power than real ones, and run faster
    for (int i = 0; i < shape.tokens; ++i) input_ids[i] = i % parts_.model->config().vocab_size;
  }
  if (step == nullptr && shape.requests == 1 && shape.tokens > 1) {  // a prefill: sees page 0 again and again
    q_indptr[1] = kv_lens[0] = shape.tokens;
  }
  put(built.logits_rows, logits_rows, 0);
  for (size_t i = built.logits_rows.size(); i < logits_rows.size(); ++i) logits_rows[i] = static_cast<int32_t>(i);
  std::fill(samples.begin(), samples.end(), SampleRowParams{});
  if (step != nullptr) {
    for (const FutureToken& future : step->builder.futures()) futures[future.token_row] = future.sample_slot;
    for (size_t i = 0; i < step->sample_rows.size(); ++i) {
      samples[i] = sample_params(step->sample_rows[i], row_wants_host(step->sample_rows[i]));
    }
  }

  batch.input_ids = input_ids;
  batch.positions = positions;
  batch.q_indptr = q_indptr;
  batch.kv_lens = kv_lens;
  batch.logits_rows = logits_rows;
}

// Slots and page tables of every cache group, as `groups_`.
void GpuRunner::fill_groups(const DeviceStep* step, const StepShape& shape, std::byte* block) {
  groups_.clear();
  const size_t table_size = static_cast<size_t>(options_.max_requests) * options_.max_pages_per_request;
  for (int g = 0; g < shape.groups; ++g) {
    const auto kv_slots = array_at<int32_t>(block, shape.kv_slots(g), shape.tokens);
    const auto built = step != nullptr ? step->builder.kv_slots(g) : std::span<const int32_t>();
    std::copy(built.begin(), built.end(), kv_slots.begin());
    std::fill(kv_slots.begin() + built.size(), kv_slots.end(), -1);
    groups_.push_back({kv_slots, {}, device_array<int32_t>(arrays_, shape.kv_slots(g)),
                       page_table_.as<int32_t>() + g * table_size});
  }
}

// The rest of what `batch` says: its sizes, and where its arrays are on the GPU.
void GpuRunner::describe(const DeviceStep* step, const StepShape& shape, ForwardBatch& batch) const {
  batch.mode = step != nullptr                     ? step->builder.batch().mode
               : shape.tokens == shape.requests ? ForwardMode::decode
                                                : ForwardMode::extend;
  batch.num_reqs = shape.requests;
  batch.num_tokens = shape.tokens;
  batch.max_q_len = step != nullptr ? step->builder.batch().max_q_len : shape.tokens - shape.requests + 1;
  batch.max_kv_len = step != nullptr ? step->builder.batch().max_kv_len : options_.context_len;
  batch.page_size = parts_.cache->shape().page_size;
  batch.page_table_stride = options_.max_pages_per_request;
  batch.device.stream = stream();
  batch.device.input_ids = device_array<int32_t>(arrays_, shape.input_ids());
  batch.device.positions = device_array<int32_t>(arrays_, shape.positions());
  batch.kv_slots = groups_[0].kv_slots;
  batch.device.kv_slots = groups_[0].device_kv_slots;
  batch.device.q_indptr = device_array<int32_t>(arrays_, shape.q_indptr());
  batch.device.kv_lens = device_array<int32_t>(arrays_, shape.kv_lens());
  batch.device.logits_rows = device_array<int32_t>(arrays_, shape.wanted_rows());
  batch.device.page_table = groups_[0].device_page_table;
  if (shape.groups > 1) batch.groups = groups_;
}

// Stages the step's arrays and enqueues their way to the GPU; `batch` describes both sides.
Status GpuRunner::upload(const DeviceStep* step, const StepShape& shape, Flight& flight, ForwardBatch& batch) {
  runs_.clear();
  run_values_.clear();
  if (step != nullptr) collect_page_runs(*step);
  const size_t arrays_bytes = shape.size_bytes(), runs_bytes = runs_.size() * sizeof(PageTableRun);
  const size_t needed = arrays_bytes + runs_bytes + run_values_.size() * sizeof(int32_t);
  if (needed > flight.staging.size_bytes()) {
    WW_ASSIGN_OR_RETURN(flight.staging, PinnedBuffer::allocate(needed + needed / 2, "a step's arrays"));
  }
  std::byte* const block = flight.staging.as<std::byte>();
  std::memcpy(block + arrays_bytes, runs_.data(), runs_bytes);
  std::memcpy(block + arrays_bytes + runs_bytes, run_values_.data(), run_values_.size() * sizeof(int32_t));
  batch = {};
  fill_arrays(step, shape, block, batch);
  fill_groups(step, shape, block);
  describe(step, shape, batch);

  gpu::StepUpload up;
  up.host_arrays = block;
  up.arrays = arrays_.as<void>();
  up.size_bytes = static_cast<int64_t>(arrays_bytes);
  up.runs = reinterpret_cast<const PageTableRun*>(block + arrays_bytes);
  up.num_runs = static_cast<int>(runs_.size());
  up.values = reinterpret_cast<const int32_t*>(block + arrays_bytes + runs_bytes);
  up.table = page_table_.as<int32_t>();
  up.table_stride = options_.max_pages_per_request;
  gpu::upload_step(up, stream());
  return cuda_status(cudaPeekAtLastError(), "uploading a step");
}

// The smallest graph that holds a decode step, or 0: it runs without one.
int GpuRunner::graph_size_for(const DeviceStep& step) const {
  const ForwardBatch& batch = step.builder.batch();
  if (batch.mode != ForwardMode::decode || static_cast<int>(batch.logits_rows.size()) != batch.num_tokens) return 0;
  const auto& sizes = options_.graph_batch_sizes;
  const auto size = std::lower_bound(sizes.begin(), sizes.end(), batch.num_reqs);
  return size == sizes.end() ? 0 : *size;
}

Result<cudaGraphExec_t> GpuRunner::graph_for(int batch_size, Flight& flight) {
  if (const auto found = graphs_.find(batch_size); found != graphs_.end()) return found->second.get();
  const Status captured = capture(batch_size, flight);
  if (!captured.ok()) {
    cudaGetLastError();
    LOG_WARN("no CUDA graph for batch size {}, its steps run without: {}", batch_size, captured.message());
    graphs_[batch_size];
  }
  return graphs_[batch_size].get();
}

// One prefill of padding, whose layers try the products' algorithms.
Status GpuRunner::tune_prefill(int tokens) {
  const StepShape shape = {tokens, 1, 1, 1, parts_.cache->shape().num_groups()};
  Flight& flight = flights_[0];
  ForwardBatch batch;
  WW_RETURN_IF_ERROR(upload(nullptr, shape, flight, batch));
  const GpuFutureTokens futures = {device_array<int32_t>(arrays_, shape.futures()), sampled_.as<int32_t>()};
  parts_.model->gemm().start_tuning();
  WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata(batch));
  WW_RETURN_IF_ERROR(parts_.model->forward(batch, *parts_.cache, *parts_.attention, futures, logits_.as<float>()));
  parts_.model->gemm().stop_tuning();
  return cuda_status(cudaStreamSynchronize(stream()), "a trial run");
}

// First runs the batch for real, all padding, while the products try their algorithms: what is
// loaded or allocated on first use must not happen inside a capture.
Status GpuRunner::capture(int batch_size, Flight& flight) {
  const StepShape shape = {batch_size, batch_size, batch_size, batch_size, parts_.cache->shape().num_groups()};
  ForwardBatch batch;
  WW_RETURN_IF_ERROR(upload(nullptr, shape, flight, batch));
  const GpuFutureTokens futures = {device_array<int32_t>(arrays_, shape.futures()), sampled_.as<int32_t>()};
  parts_.model->gemm().start_tuning();
  for (int i = 0; i < kTuningForwards; ++i) {
    WW_RETURN_IF_ERROR(parts_.attention->init_forward_metadata_capture_cuda_graph(batch));
    WW_RETURN_IF_ERROR(parts_.model->forward(batch, *parts_.cache, *parts_.attention, futures, logits_.as<float>()));
  }
  parts_.model->gemm().stop_tuning();
  WW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream()), "a trial run");

  CudaGraph graph;
  WW_CUDA_RETURN_IF_ERROR(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed), "capturing a graph");
  Status status = parts_.attention->init_forward_metadata_capture_cuda_graph(batch);
  if (status.ok()) status = forward(batch, shape, logits_.as<float>());
  const cudaError_t ended = cudaStreamEndCapture(stream(), graph.out());
  WW_RETURN_IF_ERROR(status);
  WW_CUDA_RETURN_IF_ERROR(ended, "capturing a graph");
  CudaGraphExec exec;
  WW_CUDA_RETURN_IF_ERROR(cudaGraphInstantiate(exec.out(), graph.get(), 0), "instantiating a graph");
  WW_CUDA_RETURN_IF_ERROR(cudaGraphUpload(exec.get(), stream()), "uploading a graph");
  graphs_[batch_size] = std::move(exec);
  return {};
}

Result<float*> GpuRunner::logits_memory(int rows) {
  if (rows <= options_.max_requests) return logits_.as<float>();
  const size_t needed = sizeof(float) * rows * static_cast<size_t>(parts_.model->config().vocab_size);
  if (needed > large_logits_.size_bytes()) {
    WW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream()), "waiting for a step");
    large_logits_ = DeviceBuffer();
    WW_ASSIGN_OR_RETURN(large_logits_, DeviceBuffer::allocate(needed, "logits of prompt tokens; lower "
                                                              "--chunked-prefill-size or --mem-fraction-static"));
  }
  return large_logits_.as<float>();
}

Status GpuRunner::sample_on_host(DeviceStep& step, Flight& flight, const float* logits) {
  const int vocab_size = parts_.model->config().vocab_size;
  WW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream()), "a step on the GPU");
  std::vector<SampleRow> rows;
  std::vector<size_t> slots;
  step.sampled.assign(step.sample_rows.size(), {});
  for (size_t i = 0; i < step.sample_rows.size(); ++i) {
    const SampleRow& row = step.sample_rows[i];
    if (row_wants_host(row)) {
      rows.push_back(row);
      rows.back().logits_row = static_cast<int>(slots.size());
      slots.push_back(i);
    } else {
      step.sampled[i].token_id = flight.sampled.as<int32_t>()[i];
      row.state->add_output(step.sampled[i].token_id);
    }
  }
  std::vector<float> values(slots.size() * vocab_size);
  for (size_t i = 0; i < slots.size(); ++i) {
    const float* from = logits + int64_t{step.sample_rows[slots[i]].logits_row} * vocab_size;
    WW_CUDA_RETURN_IF_ERROR(cudaMemcpy(values.data() + i * vocab_size, from, vocab_size * sizeof(float),
                                       cudaMemcpyDeviceToHost),
                            "reading logits");
  }
  std::vector<RowBest> best(slots.size());
  for (size_t i = 0; i < slots.size(); ++i) {
    const float* row = values.data() + i * vocab_size;
    const int64_t top = argmax(row, vocab_size);
    best[i] = {row[top], static_cast<int32_t>(top)};
  }
  std::vector<SampledRow> sampled(slots.size());
  sampler_.sample(rows, {.values = values, .best = best, .vocab_size = vocab_size}, sampled);
  for (size_t i = 0; i < slots.size(); ++i) step.sampled[slots[i]] = std::move(sampled[i]);
  WW_RETURN_IF_ERROR(compute_input_logprobs(step, logits));

  step.sampled_ids.clear();
  for (const SampledRow& row : step.sampled) step.sampled_ids.push_back(row.token_id);
  std::copy(step.sampled_ids.begin(), step.sampled_ids.end(), flight.sampled.as<int32_t>());
  WW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(sampled_.as<void>(), flight.sampled.as<void>(),
                                          step.sampled_ids.size() * sizeof(int32_t), cudaMemcpyHostToDevice, stream()),
                          "writing sampled tokens");
  step.done = true;
  return {};
}

Status GpuRunner::compute_input_logprobs(DeviceStep& step, const float* logits) {
  const size_t vocab_size = parts_.model->config().vocab_size;
  std::vector<float> values;
  for (size_t first = 0; first < step.input_logprobs.size(); first += kHostLogprobRows) {
    const size_t count = std::min<size_t>(kHostLogprobRows, step.input_logprobs.size() - first);
    values.resize(count * vocab_size);
    for (size_t i = 0; i < count; ++i) {
      const float* from = logits + step.input_logprobs[first + i].logits_row * vocab_size;
      WW_CUDA_RETURN_IF_ERROR(cudaMemcpy(values.data() + i * vocab_size, from, vocab_size * sizeof(float),
                                         cudaMemcpyDeviceToHost),
                              "reading logits");
    }
    parts_.team->parallel_for(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        InputLogprob& task = step.input_logprobs[first + i];
        const GenerateRequest& request = task.request->request;
        task.result = row_logprobs({values.data() + i * vocab_size, vocab_size}, task.token_id,
                                   request.top_logprobs_num, request.token_ids_logprob);
      }
    });
  }
  return {};
}

}  // namespace warpweave
