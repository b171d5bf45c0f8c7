#include "model/testing/paged_run.h"

#include "attention/registry.h"
#include "attention/select.h"
#include "model/build_decoder.h"
#include "model/fp8_weights.h"
#include "model/kv_scales.h"
#include "model/testing/sequence_step.h"

namespace warpweave {

Result<std::unique_ptr<PagedRun>> PagedRun::open(const std::string& path, const PagedRunOptions& options) {
  std::unique_ptr<PagedRun> run(new PagedRun(options));
  WW_ASSIGN_OR_RETURN(run->bundle_, open_model_bundle(path, {.load_format = options.load_format,
                                                             .tokenizer_path = {},
                                                             .skip_tokenizer = true}));
  if (options.fp8) run->bundle_.weights = quantize_weights_fp8(std::move(run->bundle_.weights), *options.fp8);
  const ModelConfig& config = run->bundle_.config;
  WW_ASSIGN_OR_RETURN(KvHeadScales scales, load_kv_scales(*run->bundle_.weights, config));
  WW_RETURN_IF_ERROR(run->replace_weights(run->bundle_.weights));
  const AttentionKind kind = config.latent ? AttentionKind::mla : AttentionKind::mha;
  for (const BackendRegistration& backend : built_backends()) {
    if (backend.caps->name == options.backend && backend.caps->archs.has(cpu_hardware_facts().arch) &&
        backend.caps->kinds.has(kind)) {
      run->attention_ = backend.create({.team = &run->team_,
                                        .max_context_len = options.max_tokens,
                                        .page_size = options.page_size});
    }
  }
  if (run->attention_ == nullptr) return Status::not_found("no backend " + options.backend);
  const int pages = (options.max_tokens + options.page_size - 1) / options.page_size;
  WW_ASSIGN_OR_RETURN(KvCache cache,
                      KvCache::create({.num_layers = config.num_kv_layers(),
                                       .num_pages = pages + 3,
                                       .page_size = options.page_size,
                                       .num_kv_heads = config.num_kv_heads,
                                       .k_head_dim = config.head_dim,
                                       .v_head_dim = config.cached_v_dim(),
                                       .format = options.kv_format,
                                       .layout = single_cache_group(config.num_layers, config.recurrent_layers)},
                                      std::move(scales)));
  run->cache_ = std::make_unique<KvCache>(std::move(cache));
  if (config.has_recurrent_layers()) {
    WW_ASSIGN_OR_RETURN(run->recurrent_,
                        HostRecurrent::create(config, state_cache_shape(config, 3, options.state_dtype),
                                              {options.linear_backend, options.linear_backend, "", false}, run->team_));
    for (int slot = 0; slot < 3; ++slot) run->recurrent_->states.fill(slot, std::byte{0xff});  // NaN
  }
  run->pages_ = shuffled_pages(pages + 3);
  return run;
}

Status PagedRun::replace_weights(std::shared_ptr<WeightSource> weights) {
  WW_ASSIGN_OR_RETURN(
      model_, build_decoder(bundle_.config, std::move(weights),
                            {.dtype = options_.dtype, .max_positions = options_.max_tokens, .progress = {}}, team_));
  return {};
}

Result<std::vector<float>> PagedRun::feed(std::span<const int32_t> ids, int wanted_rows) {
  const SequenceStep step(ids, wanted_rows, length_, options_.page_size, pages_);
  length_ += static_cast<int>(ids.size());
  ForwardBatch batch = step.batch();
  const int32_t state_slots[] = {1};
  if (recurrent_ != nullptr) batch.state_slots = state_slots;
  batch.adapters = std::span(&adapter_, 1);
  std::vector<float> logits(batch.logits_rows.size() * vocab_size(), -12345.0f);
  WW_RETURN_IF_ERROR(attention_->init_forward_metadata(batch));
  WW_RETURN_IF_ERROR(model_->forward(batch, *cache_, *attention_, team_, recurrent_.get()));
  model_->logits(0, static_cast<int64_t>(batch.logits_rows.size()), {.values = logits.data()}, team_);
  return logits;
}

Result<std::vector<int32_t>> PagedRun::greedy(std::span<const int32_t> prompt, int count) {
  return greedy_ids(*this, prompt, count);
}

}  // namespace warpweave
