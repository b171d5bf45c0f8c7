#include <algorithm>
#include <numeric>
#include <random>

#include "attention/registry.h"
#include "base/threads.h"
#include "cli/gpu_times.h"
#include "cli/measure_latent.h"
#include "device/cuda/copy.h"
#include "device/cuda/memory.h"
#include "device/cuda/stream.h"
#include "model/gpu_decoder.h"
#include "model/gpu_kv_cache.h"
#include "model/gpu_weights.h"
#include "model/weight_source.h"

namespace warpweave {
namespace {

// As a server's steps by default, on which it depends how much of a prefix is expanded at a time.
constexpr int kStepTokens = 16384;
constexpr int kMaxRepeats = 15;
constexpr int kFillTokens = 512;  // of a request that fills its part of the pool

// One layer of the model, whose feed-forward and vocabulary are small: what both forms share weighs little.
ModelConfig one_layer(const ModelConfig& config, int positions) {
  ModelConfig out = config;
  out.num_layers = 1;
  out.num_experts = out.experts_per_token = out.shared_expert_intermediate_size = 0;
  out.intermediate_size = 256;
  out.vocab_size = 256;
  out.max_position_embeddings = std::max(out.max_position_embeddings, positions);
  out.linear.reset();
  out.recurrent_layers.clear();
  out.mlp_only_layers.clear();
  out.num_nextn_layers = 0;
  return out;
}

// What a pool and its tables must have room for.
struct Room {
  int longest = kFillTokens, pages = 0, requests = 1;
};
int pages_of(int tokens, int page_size) { return (tokens + page_size - 1) / page_size; }

Room room_for(std::span<const LatentStep> steps, int page_size) {
  Room room;
  for (const LatentStep& step : steps) {
    int pages = 0;
    for (const LatentPrompt& prompt : step) {
      room.longest = std::max(room.longest, prompt.prefix + prompt.new_tokens);
      pages += pages_of(prompt.prefix + prompt.new_tokens, page_size);
    }
    room.pages = std::max(room.pages, pages);
    room.requests = std::max(room.requests, static_cast<int>(step.size()));
  }
  return room;
}

class LatentLayer {
 public:
  Status init(const LatentMeasurement& asked, const Room& room);
  // False: this GPU and these dims have one form alone.
  bool take(LatentForm form) { return model_->take_latent_form(form); }
  Result<double> median_us(const LatentStep& step, double max_seconds);

 private:
  struct Arrays {
    std::vector<int32_t> ids, positions, slots, q_indptr = {0}, kv_lens, page_table, logits_rows;
  };
  Status fill_pool();
  const int32_t* put(const std::vector<int32_t>& values);
  void add_request(const LatentPrompt& prompt, int first_page, Arrays& arrays) const;
  // Of requests whose pages begin at `first_page` of the pool, one's behind the other's.
  ForwardBatch batch_of(const LatentStep& step, int first_page, Arrays& arrays);
  Status forward(const ForwardBatch& batch);

  ThreadTeam team_{2};
  int page_size_ = 64, table_stride_ = 0;
  std::unique_ptr<GpuDecoder> model_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<GpuKvCache> cache_;
  std::vector<int32_t> pages_;
  CudaStream stream_;
  DeviceBuffer arrays_, logits_;
  size_t used_bytes_ = 0;
  Status copied_;  // of the first array that did not arrive
};

Status LatentLayer::init(const LatentMeasurement& asked, const Room& room) {
  const ModelConfig config = one_layer(asked.config, room.longest);
  page_size_ = asked.attention.page_size;
  table_stride_ = pages_of(room.longest, page_size_);
  const BuildOptions build = {.dtype = asked.dtype, .max_positions = room.longest, .progress = {}};
  WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights,
                      load_gpu_weights(config, make_dummy_weights(asked.dtype, 7), build, team_));
  const int most_requests = std::max(room.requests, kStepTokens / kFillTokens);
  const GpuDecoderLimits limits = {.max_tokens = kStepTokens, .max_logits_rows = most_requests};
  WW_ASSIGN_OR_RETURN(model_, GpuDecoder::create(config, build, std::move(weights), limits));
  WW_ASSIGN_OR_RETURN(attention_, create_backend(*asked.attention.prefill_caps, {&team_, room.longest, page_size_}));
  WW_ASSIGN_OR_RETURN(GpuKvCache cache, GpuKvCache::create({.num_layers = 1,
                                                            .num_pages = room.pages,
                                                            .page_size = page_size_,
                                                            .num_kv_heads = 1,
                                                            .k_head_dim = config.head_dim,
                                                            .v_head_dim = 0,
                                                            .format = asked.attention.kv_format}));
  cache_ = std::make_unique<GpuKvCache>(std::move(cache));
  pages_.resize(room.pages);
  std::iota(pages_.begin(), pages_.end(), 0);
  std::shuffle(pages_.begin(), pages_.end(), std::mt19937(3));
  WW_ASSIGN_OR_RETURN(stream_, create_stream());
  const size_t ints = size_t{4} * kStepTokens + static_cast<size_t>(most_requests) * (table_stride_ + 64);
  const size_t logits = static_cast<size_t>(config.vocab_size) * most_requests;
  WW_ASSIGN_OR_RETURN(arrays_, DeviceBuffer::allocate(sizeof(int32_t) * ints, "a measurement"));
  WW_ASSIGN_OR_RETURN(logits_, DeviceBuffer::allocate(sizeof(float) * logits, "a measurement"));
  return take(LatentForm::absorbed) ? fill_pool() : Status();
}

// Every token of the pool is written once, so that no prefix holds what are no numbers.
Status LatentLayer::fill_pool() {
  const int pages_each = std::max(1, kFillTokens / page_size_), pages = static_cast<int>(pages_.size());
  for (int first = 0; first < pages;) {
    LatentStep step;
    const int begin = first;
    for (int tokens = 0; first < pages && tokens + pages_each * page_size_ <= kStepTokens; first += pages_each) {
      step.push_back({.new_tokens = std::min(pages_each, pages - first) * page_size_, .prefix = 0});
      tokens += step.back().new_tokens;
    }
    Arrays arrays;
    WW_RETURN_IF_ERROR(forward(batch_of(step, begin, arrays)));
    // The next batch's arrays take the place of these.
    WW_RETURN_IF_ERROR(wait_for_stream(stream_.get(), "a measurement"));
  }
  return {};
}

const int32_t* LatentLayer::put(const std::vector<int32_t>& values) {
  std::byte* const to = arrays_.as<std::byte>() + used_bytes_;
  used_bytes_ += (values.size() * sizeof(int32_t) + 255) / 256 * 256;
  const Status copied = copy_now(to, values.data(), values.size() * sizeof(int32_t), "a measurement");
  if (copied_.ok()) copied_ = copied;
  return reinterpret_cast<const int32_t*>(to);
}

void LatentLayer::add_request(const LatentPrompt& prompt, int first_page, Arrays& arrays) const {
  const int length = prompt.prefix + prompt.new_tokens;
  for (int position = prompt.prefix; position < length; ++position) {
    arrays.ids.push_back(position * 37 % 256);
    arrays.positions.push_back(position);
    arrays.slots.push_back(pages_[first_page + position / page_size_] * page_size_ + position % page_size_);
  }
  arrays.q_indptr.push_back(arrays.q_indptr.back() + prompt.new_tokens);
  arrays.kv_lens.push_back(length);
  arrays.logits_rows.push_back(arrays.q_indptr.back() - 1);
  const auto first = pages_.begin() + first_page;
  const int pages = pages_of(length, page_size_);
  arrays.page_table.insert(arrays.page_table.end(), first, first + pages);
  arrays.page_table.resize(arrays.kv_lens.size() * table_stride_);
}

ForwardBatch LatentLayer::batch_of(const LatentStep& step, int first_page, Arrays& arrays) {
  ForwardBatch batch;
  for (const LatentPrompt& prompt : step) {
    add_request(prompt, first_page, arrays);
    first_page += pages_of(arrays.kv_lens.back(), page_size_);
    batch.max_q_len = std::max(batch.max_q_len, prompt.new_tokens);
    batch.max_kv_len = std::max(batch.max_kv_len, arrays.kv_lens.back());
  }
  batch.mode = ForwardMode::extend;
  batch.num_reqs = static_cast<int>(step.size());
  batch.num_tokens = static_cast<int>(arrays.ids.size());
  batch.page_size = page_size_;
  batch.input_ids = arrays.ids;
  batch.positions = arrays.positions;
  batch.kv_slots = arrays.slots;
  batch.q_indptr = arrays.q_indptr;
  batch.kv_lens = arrays.kv_lens;
  batch.page_table = arrays.page_table;
  batch.page_table_stride = table_stride_;
  batch.logits_rows = arrays.logits_rows;
  used_bytes_ = 0;
  batch.device.stream = stream_.get();
  batch.device.input_ids = put(arrays.ids);
  batch.device.positions = put(arrays.positions);
  batch.device.kv_slots = put(arrays.slots);
  batch.device.q_indptr = put(arrays.q_indptr);
  batch.device.kv_lens = put(arrays.kv_lens);
  batch.device.page_table = put(arrays.page_table);
  batch.device.logits_rows = put(arrays.logits_rows);
  return batch;
}

Status LatentLayer::forward(const ForwardBatch& batch) {
  WW_RETURN_IF_ERROR(copied_);
  WW_RETURN_IF_ERROR(attention_->init_forward_metadata(batch));
  return model_->forward({.batch = batch, .cache = *cache_, .attention = *attention_, .logits = logits_.as<float>()});
}

Result<double> LatentLayer::median_us(const LatentStep& step, double max_seconds) {
  Arrays arrays;
  const ForwardBatch batch = batch_of(step, 0, arrays);
  WW_RETURN_IF_ERROR(forward(batch));
  WW_RETURN_IF_ERROR(wait_for_stream(stream_.get(), "a measurement"));
  const GpuTimesOptions times = {
      .min_repeats = 1, .max_repeats = kMaxRepeats, .max_seconds = max_seconds, .queued = true};
  return median_gpu_us(stream_.get(), times, [&] { return forward(batch); });
}

}  // namespace

Status measure_latent_steps(const LatentMeasurement& asked, std::span<const LatentStep> steps,
                            const std::function<void(size_t, const LatentFormTimes::Pair&)>& each) {
  if (steps.empty()) return {};
  LatentLayer layer;
  WW_RETURN_IF_ERROR(layer.init(asked, room_for(steps, asked.attention.page_size)));
  for (size_t i = 0; i < steps.size(); ++i) {
    LatentFormTimes::Pair pair;
    if (!layer.take(LatentForm::absorbed)) return {};
    WW_ASSIGN_OR_RETURN(pair.absorbed_us, layer.median_us(steps[i], asked.max_seconds));
    layer.take(LatentForm::expanded);
    WW_ASSIGN_OR_RETURN(pair.expanded_us, layer.median_us(steps[i], asked.max_seconds));
    each(i, pair);
  }
  return {};
}

}  // namespace warpweave
