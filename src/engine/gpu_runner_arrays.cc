// A step's arrays on their way to the GPU.
#include <algorithm>
#include <cstring>

#include "engine/gpu_runner.h"
#include "ops/lora.h"
#include "sample/cuda/gpu_sampler.h"

namespace warpweave {
namespace {

using gpu::PageTableRun;
using gpu::SampleRowParams;

template <typename T>
std::span<T> array_at(std::byte* block, size_t offset, int count) {
  return {reinterpret_cast<T*>(block + offset), static_cast<size_t>(count)};
}

}  // namespace

// What changes in the device's page tables: pages at the end, and blanks at the beginning.
void GpuRunner::collect_page_runs(const DeviceStep& step) {
  const BatchBuilder& builder = step.builder;
  const KvCacheShape& cache = parts_.cache->shape();
  for (int i = 0; i < builder.batch().num_reqs; ++i) {
    const StepRow& row = step.step->rows[i];
    TableRow& known = table_rows_[i];
    if (known.id != row.id || known.pages_version != row.pages_version) known = {row.id, row.pages_version, 0, {}};
    for (int g = 0; g < cache.num_groups(); ++g) {
      const int table_row = g * options_.max_requests + i, num_blank = builder.num_blank(i, g);
      if (num_blank > known.num_blank[g]) {
        add_page_run(table_row, known.num_blank[g], num_blank - known.num_blank[g]);
        run_values_.insert(run_values_.end(), num_blank - known.num_blank[g], cache.blank_page());
      }
      known.num_blank[g] = num_blank;
      const int first = std::max(std::min(known.num_pages, row.num_pages), num_blank);
      if (first < row.num_pages) {
        add_page_run(table_row, first, row.num_pages - first);
        const int32_t* const pages = builder.pages_of(i, g);
        run_values_.insert(run_values_.end(), pages + first, pages + row.num_pages);
      }
    }
    known.num_pages = row.num_pages;
  }
}

// Its pages are to be appended to run_values_.
void GpuRunner::add_page_run(int table_row, int first, int num_pages) {
  runs_.push_back({table_row, first, num_pages, static_cast<int32_t>(run_values_.size())});
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
  // Padding: requests of as many rows as the others have, which see nothing.
  const auto put = [](std::span<const int32_t> from, std::span<int32_t> to, int32_t padding) {
    std::copy(from.begin(), from.end(), to.begin());
    std::fill(to.begin() + from.size(), to.end(), padding);
  };
  const ForwardBatch none;
  const ForwardBatch& built = step != nullptr ? step->builder.batch() : none;
  put(built.input_ids, input_ids, 0);
  put(built.positions, positions, 0);
  if (shape.placed) {
    const auto places = array_at<int32_t>(block, shape.rope_positions(), 3 * shape.tokens);
    const size_t rows = built.rope_positions.size() / 3;
    for (size_t axis = 0; axis < 3; ++axis) {
      put(built.rope_positions.subspan(axis * rows, rows), places.subspan(axis * shape.tokens, shape.tokens), 0);
    }
    batch.rope_positions = places;
  }
  put({}, futures, -1);
  put(built.kv_lens, kv_lens, 0);
  put(built.q_indptr, q_indptr, 0);
  const auto tree_mask = array_at<uint32_t>(block, shape.tree_mask(), shape.tokens * shape.mask_words);
  std::copy(built.tree_mask.begin(), built.tree_mask.end(), tree_mask.begin());
  std::fill(tree_mask.begin() + built.tree_mask.size(), tree_mask.end(), 0);
  for (size_t i = std::max<size_t>(built.q_indptr.size(), 1); i < q_indptr.size(); ++i) {
    q_indptr[i] = q_indptr[i - 1] + shape.tokens / shape.requests;
  }
  if (step == nullptr) {  // a trial: equal rows would draw less power than real ones, and run faster
    for (int i = 0; i < shape.tokens; ++i) input_ids[i] = i % parts_.model->config().vocab_size;
  }
  // A prefill: sees page 0 again and again.
  if (step == nullptr && shape.requests == 1 && shape.tokens > 1 && !shape.proposals) {
    kv_lens[0] = shape.tokens;
  }
  if (shape.states) fill_states(built, shape, block);
  if (shape.has_parents()) put(built.tree_parents, array_at<int32_t>(block, shape.tree_parents(), shape.tokens), -1);
  put(built.logits_rows, logits_rows, 0);
  for (size_t i = built.logits_rows.size(); i < logits_rows.size(); ++i) logits_rows[i] = static_cast<int32_t>(i);
  if (shape.max_adapters > 0) fill_lora(built, shape, block);
  std::fill(samples.begin(), samples.end(), SampleRowParams{});
  if (step != nullptr) {
    for (const FutureToken& future : step->builder.futures()) futures[future.token_row] = future.sample_slot;
    fill_samples(*step, samples, array_at<int32_t>(block, shape.guesses(), shape.proposals ? shape.tokens : 0));
  }

  batch.input_ids = input_ids;
  batch.positions = positions;
  batch.q_indptr = q_indptr;
  batch.kv_lens = kv_lens;
  batch.logits_rows = logits_rows;
  batch.tree_mask = tree_mask;
  batch.state_checkpoints = built.state_checkpoints;
}

// Padding has no slot; a request whose rows begin at position 0 starts from nothing.
void GpuRunner::fill_states(const ForwardBatch& built, const StepShape& shape, std::byte* block) const {
  const auto slots = array_at<int32_t>(block, shape.state_slots(), shape.requests);
  const auto initial = array_at<int32_t>(block, shape.initial_state_slots(), shape.requests);
  std::fill(slots.begin(), slots.end(), kNoStateSlot);
  std::copy(built.state_slots.begin(), built.state_slots.end(), slots.begin());
  std::copy(slots.begin(), slots.end(), initial.begin());
  for (int r = 0; r < built.num_reqs; ++r) {
    if (built.q_len(r) > 0 && built.positions[built.q_indptr[r]] == 0) initial[r] = kNoStateSlot;
  }
  if (shape.checkpoints == 0) return;
  const StateCheckpointArrays& from = built.state_checkpoints;
  const auto indptr = array_at<int32_t>(block, shape.checkpoint_indptr(), shape.requests + 1);
  std::copy(from.indptr.begin(), from.indptr.end(), indptr.begin());
  std::fill(indptr.begin() + from.indptr.size(), indptr.end(), from.indptr.back());
  std::copy(from.tokens.begin(), from.tokens.end(),
            array_at<int32_t>(block, shape.checkpoint_tokens(), shape.checkpoints).begin());
  std::copy(from.slots.begin(), from.slots.end(),
            array_at<int32_t>(block, shape.checkpoint_slots(), shape.checkpoints).begin());
}

// Which rows have which adapter, of all rows and of those whose logits are wanted.
void GpuRunner::fill_lora(const ForwardBatch& built, const StepShape& shape, std::byte* block) {
  lora_slots_.assign(shape.tokens + shape.logits_rows, -1);
  for (size_t r = 0; r < built.adapters.size(); ++r) {
    if (built.adapters[r] == nullptr) continue;
    std::fill(lora_slots_.begin() + built.q_indptr[r], lora_slots_.begin() + built.q_indptr[r + 1],
              built.adapters[r]->on_device->slot);
  }
  const std::span<int32_t> of_rows = std::span(lora_slots_).first(shape.tokens),
                           of_logits = std::span(lora_slots_).subspan(shape.tokens);
  for (size_t i = 0; i < built.logits_rows.size(); ++i) of_logits[i] = of_rows[built.logits_rows[i]];
  fill_lora_tiles(of_rows, array_at<LoraTile>(block, shape.lora_tiles(), shape.num_lora_tiles()),
                  array_at<int32_t>(block, shape.lora_places(), shape.tokens));
  fill_lora_tiles(of_logits, array_at<LoraTile>(block, shape.logits_lora_tiles(), shape.num_logits_lora_tiles()),
                  array_at<int32_t>(block, shape.logits_lora_places(), shape.logits_rows));
}

// What the GPU samples: each request's row, or with proposals each of its nodes. The host takes the others.
void GpuRunner::fill_samples(const DeviceStep& step, std::span<SampleRowParams> samples, std::span<int32_t> guesses) {
  int num_guesses = 0;
  for (size_t row = 0; row < step.sample_slots.size(); ++row) {
    const int slot = step.sample_slots[row];
    if (slot < 0 || gpu::EditPacker::takes(step.sample_rows[slot])) continue;
    const SampleRow& sample = step.sample_rows[slot];
    if (step.proposals.empty()) {
      samples[slot] = gpu::sample_params(sample, sample.logits_row, 0);
      continue;
    }
    for (int node = 0; node <= step.proposals[row].size(); ++node) {
      const int logits_row = sample.logits_row + node;
      SampleRowParams& params = samples[logits_row];
      params = gpu::sample_params(sample, logits_row, step.proposals[row].depth(node));
      if (sample.accept.lossless()) continue;
      step.proposals[row].children(node, children_);
      std::copy(children_.begin(), children_.end(), guesses.begin() + num_guesses);
      params.guesses = num_guesses;
      params.num_guesses = static_cast<int32_t>(children_.size());
      num_guesses += params.num_guesses;
    }
  }
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
               : shape.proposals                ? ForwardMode::target_verify
               : shape.tokens == shape.requests ? ForwardMode::decode
                                                : ForwardMode::extend;
  batch.num_reqs = shape.requests;
  batch.num_tokens = shape.tokens;
  batch.max_q_len = step != nullptr ? step->builder.batch().max_q_len : shape.tokens / shape.requests;
  if (shape.mask_words > 0) {
    batch.tree_mask_words = shape.mask_words;
    batch.device.tree_mask = device_array<uint32_t>(arrays_, shape.tree_mask());
  }
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
  if (shape.max_adapters > 0) {
    batch.device.lora_tiles = {device_array<LoraTile>(arrays_, shape.lora_tiles()), shape.num_lora_tiles(),
                               device_array<int32_t>(arrays_, shape.lora_places())};
    batch.device.logits_lora_tiles = {device_array<LoraTile>(arrays_, shape.logits_lora_tiles()),
                                      shape.num_logits_lora_tiles(),
                                      device_array<int32_t>(arrays_, shape.logits_lora_places())};
  }
  if (shape.states) {
    batch.device.state_slots = device_array<int32_t>(arrays_, shape.state_slots());
    batch.device.initial_state_slots = device_array<int32_t>(arrays_, shape.initial_state_slots());
  }
  if (shape.checkpoints > 0) {
    batch.device.checkpoint_indptr = device_array<int32_t>(arrays_, shape.checkpoint_indptr());
    batch.device.checkpoint_tokens = device_array<int32_t>(arrays_, shape.checkpoint_tokens());
    batch.device.checkpoint_slots = device_array<int32_t>(arrays_, shape.checkpoint_slots());
  }
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
  return launch_status("uploading a step");
}

}  // namespace warpweave
