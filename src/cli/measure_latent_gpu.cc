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
#include "engine/latent_plan.h"
#include "model/gpu_decoder.h"
#include "model/gpu_kv_cache.h"
#include "model/gpu_weights.h"
#include "model/weight_source.h"

namespace warpweave {
namespace {

constexpr int kMaxRepeats = 40;

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

class LatentLayer {
 public:
  Status init(const LatentMeasurement& asked);
  // False: this GPU and these dims have one form alone.
  bool take(LatentForm form) { return model_->take_latent_form(form); }
  Result<double> median_us(int new_tokens, int prefix, double max_seconds);

 private:
  struct Arrays {
    std::vector<int32_t> ids, positions, slots, q_indptr, kv_lens, logits_rows;
  };
  const int32_t* put(const std::vector<int32_t>& values);
  ForwardBatch batch_of(int new_tokens, int prefix, Arrays& arrays);
  Status forward(const ForwardBatch& batch);

  ThreadTeam team_{2};
  int page_size_ = 64;
  std::unique_ptr<GpuDecoder> model_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<GpuKvCache> cache_;
  std::vector<int32_t> pages_;
  CudaStream stream_;
  DeviceBuffer arrays_, logits_;
  size_t used_bytes_ = 0;
  Status copied_;  // of the first array that did not arrive
};

Status LatentLayer::init(const LatentMeasurement& asked) {
  const int most_new = *std::max_element(asked.new_tokens.begin(), asked.new_tokens.end());
  const int longest = most_new + *std::max_element(asked.prefixes.begin(), asked.prefixes.end());
  const ModelConfig config = one_layer(asked.config, longest);
  page_size_ = asked.attention.page_size;
  const BuildOptions build = {.dtype = asked.dtype, .max_positions = longest, .progress = {}};
  WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights,
                      load_gpu_weights(config, make_dummy_weights(asked.dtype, 7), build, team_));
  WW_ASSIGN_OR_RETURN(
      model_, GpuDecoder::create(config, build, std::move(weights), {.max_tokens = most_new, .max_logits_rows = 1}));
  WW_ASSIGN_OR_RETURN(attention_, create_backend(*asked.attention.prefill_caps, {&team_, longest, page_size_}));
  const int pages = (longest + page_size_ - 1) / page_size_;
  WW_ASSIGN_OR_RETURN(GpuKvCache cache, GpuKvCache::create({.num_layers = 1,
                                                            .num_pages = pages,
                                                            .page_size = page_size_,
                                                            .num_kv_heads = 1,
                                                            .k_head_dim = config.head_dim,
                                                            .v_head_dim = 0,
                                                            .format = asked.attention.kv_format}));
  cache_ = std::make_unique<GpuKvCache>(std::move(cache));
  pages_.resize(pages);
  std::iota(pages_.begin(), pages_.end(), 0);
  std::shuffle(pages_.begin(), pages_.end(), std::mt19937(3));
  WW_ASSIGN_OR_RETURN(stream_, create_stream());
  WW_ASSIGN_OR_RETURN(arrays_, DeviceBuffer::allocate(size_t{4} << 20, "a measurement"));
  WW_ASSIGN_OR_RETURN(logits_, DeviceBuffer::allocate(sizeof(float) * config.vocab_size, "a measurement"));
  // Every token of the pool is written once, so that no prefix holds what are no numbers.
  if (!take(LatentForm::absorbed)) return {};
  for (int done = 0; done < longest; done += most_new) {
    Arrays arrays;
    WW_RETURN_IF_ERROR(forward(batch_of(std::min(most_new, longest - done), done, arrays)));
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

ForwardBatch LatentLayer::batch_of(int new_tokens, int prefix, Arrays& arrays) {
  for (int i = 0; i < new_tokens; ++i) {
    const int position = prefix + i;
    arrays.ids.push_back(position * 37 % 256);
    arrays.positions.push_back(position);
    arrays.slots.push_back(pages_[position / page_size_] * page_size_ + position % page_size_);
  }
  arrays.q_indptr = {0, new_tokens};
  arrays.kv_lens = {prefix + new_tokens};
  arrays.logits_rows = {new_tokens - 1};
  ForwardBatch batch;
  batch.mode = ForwardMode::extend;
  batch.num_reqs = 1;
  batch.num_tokens = batch.max_q_len = new_tokens;
  batch.max_kv_len = prefix + new_tokens;
  batch.page_size = page_size_;
  batch.input_ids = arrays.ids;
  batch.positions = arrays.positions;
  batch.kv_slots = arrays.slots;
  batch.q_indptr = arrays.q_indptr;
  batch.kv_lens = arrays.kv_lens;
  batch.page_table = pages_;
  batch.page_table_stride = static_cast<int>(pages_.size());
  batch.logits_rows = arrays.logits_rows;
  used_bytes_ = 0;
  batch.device.stream = stream_.get();
  batch.device.input_ids = put(arrays.ids);
  batch.device.positions = put(arrays.positions);
  batch.device.kv_slots = put(arrays.slots);
  batch.device.q_indptr = put(arrays.q_indptr);
  batch.device.kv_lens = put(arrays.kv_lens);
  batch.device.page_table = put(pages_);
  batch.device.logits_rows = put(arrays.logits_rows);
  return batch;
}

Status LatentLayer::forward(const ForwardBatch& batch) {
  WW_RETURN_IF_ERROR(copied_);
  WW_RETURN_IF_ERROR(attention_->init_forward_metadata(batch));
  return model_->forward({.batch = batch, .cache = *cache_, .attention = *attention_, .logits = logits_.as<float>()});
}

Result<double> LatentLayer::median_us(int new_tokens, int prefix, double max_seconds) {
  Arrays arrays;
  const ForwardBatch batch = batch_of(new_tokens, prefix, arrays);
  WW_RETURN_IF_ERROR(forward(batch));
  WW_RETURN_IF_ERROR(wait_for_stream(stream_.get(), "a measurement"));
  return median_gpu_us(stream_.get(), kMaxRepeats, max_seconds, [&] { return forward(batch); });
}

}  // namespace

Status measure_latent_forms(const LatentMeasurement& asked, const std::function<void(const LatentFormPoint&)>& each) {
  LatentMeasurement fitting = asked;
  const int context = asked.config.max_position_embeddings;
  std::erase_if(fitting.new_tokens, [&](int tokens) { return tokens > context; });
  std::erase_if(fitting.prefixes, [&](int tokens) { return tokens > context; });
  if (fitting.new_tokens.empty() || fitting.prefixes.empty()) return {};
  LatentLayer layer;
  WW_RETURN_IF_ERROR(layer.init(fitting));
  const LatentFormShape shape = latent_form_shape(asked.config, asked.attention.kv_format);
  for (const int new_tokens : fitting.new_tokens) {
    for (const int prefix : fitting.prefixes) {
      LatentFormPoint point = {.shape = shape, .new_tokens = new_tokens, .prefix = prefix};
      if (!layer.take(LatentForm::absorbed)) return {};
      WW_ASSIGN_OR_RETURN(point.absorbed_us, layer.median_us(new_tokens, prefix, asked.max_seconds));
      layer.take(LatentForm::expanded);
      WW_ASSIGN_OR_RETURN(point.expanded_us, layer.median_us(new_tokens, prefix, asked.max_seconds));
      each(point);
    }
  }
  return {};
}

}  // namespace warpweave
