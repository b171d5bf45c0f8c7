// One sequence on the GPU, pages and states in a shuffled order: what tests need to run a model there in any cut of
// prefill chunks and decode steps. PagedRun's twin. One sequence at a time, one thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/registry.h"
#include "attention/select.h"
#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/stream.h"
#include "model/fp8_weights.h"
#include "model/gpu_decoder.h"
#include "model/model_bundle.h"
#include "model/recurrent.h"
#include "model/testing/sequence_step.h"

namespace warpweave {

inline constexpr int kRunStateSlots = 3, kRunStateSlot = 1;  // of recurrent layers, and the one that is used

struct GpuRunOptions {
  std::string backend = "torch_native";
  DType dtype = DType::f32;
  KvFormat kv_format = KvFormat::f32;
  int page_size = 4;
  int max_tokens = 512;
  std::string load_format = "auto";
  std::optional<Fp8Config> fp8 = {};  // weights are rounded to 8 bits
  std::string linear = "triton";      // kernels of recurrent layers
  DType state_dtype = DType::f32;
  const gpu::LoraModel* adapters = nullptr;  // outlives the run
};

class GpuRun {
 public:
  static Result<std::unique_ptr<GpuRun>> open(const std::string& path, const GpuRunOptions& options, DeviceArch arch) {
    auto run = std::unique_ptr<GpuRun>(new GpuRun(options));
    WW_ASSIGN_OR_RETURN(ModelBundle bundle, open_model_bundle(path, {.load_format = options.load_format, .tokenizer_path = {},
                                                                     .skip_tokenizer = true}));
    if (options.fp8) bundle.weights = quantize_weights_fp8(std::move(bundle.weights), *options.fp8);
    run->config_ = bundle.config;
    // As a server does: never beyond the model's own context, which decides which factors a longrope takes.
    const int served = std::min(options.max_tokens, bundle.config.max_position_embeddings);
    const BuildOptions build = {.dtype = options.dtype, .max_positions = served, .progress = {}};
    WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights, load_gpu_weights(bundle.config, bundle.weights, build, run->team_));
    WW_ASSIGN_OR_RETURN(run->model_, GpuDecoder::create(bundle.config, build, std::move(weights),
                                                        {.max_tokens = options.max_tokens,
                                                         .max_logits_rows = options.max_tokens,
                                                         .count_experts = true,
                                                         .adapters = options.adapters,
                                                         .max_adapters = options.adapters != nullptr ? 1 : 0,
                                                         .linear = {options.linear, options.linear, "", false},
                                                         .state_dtype = options.state_dtype}));
    const AttentionKind kind = bundle.config.latent ? AttentionKind::mla : AttentionKind::mha;
    for (const BackendRegistration& backend : built_backends()) {
      if (backend.caps->name == options.backend && backend.caps->archs.has(arch) && backend.caps->kinds.has(kind)) {
        run->attention_ = backend.create({.team = &run->team_, .max_context_len = options.max_tokens,
                                          .page_size = options.page_size});
      }
    }
    if (run->attention_ == nullptr) return Status::not_found("no GPU backend " + options.backend);
    run->num_pages_ = (options.max_tokens + options.page_size - 1) / options.page_size;
    WW_ASSIGN_OR_RETURN(
        GpuKvCache cache,
        GpuKvCache::create({.num_layers = run->config_.num_kv_layers(),
                            .num_pages = run->num_pages_ + 3,
                            .page_size = options.page_size,
                            .num_kv_heads = run->config_.num_kv_heads,
                            .k_head_dim = run->config_.head_dim,
                            .v_head_dim = run->config_.cached_v_dim(),
                            .format = options.kv_format,
                            .layout = single_cache_group(run->config_.num_layers, run->config_.recurrent_layers)}));
    run->cache_ = std::make_unique<GpuKvCache>(std::move(cache));
    if (run->config_.has_recurrent_layers()) {
      WW_ASSIGN_OR_RETURN(GpuStateCache states, GpuStateCache::create(state_cache_shape(run->config_, kRunStateSlots,
                                                                                       options.state_dtype)));
      run->states_ = std::make_unique<GpuStateCache>(std::move(states));
    }
    run->pages_ = shuffled_pages(run->num_pages_ + 3);
    WW_ASSIGN_OR_RETURN(run->stream_, create_stream());
    WW_ASSIGN_OR_RETURN(run->arrays_, DeviceBuffer::allocate(size_t{1} << 20, "arrays"));
    WW_ASSIGN_OR_RETURN(run->logits_,
                        DeviceBuffer::allocate(sizeof(float) * options.max_tokens * run->config_.vocab_size, "logits"));
    return run;
  }

  Result<std::vector<float>> feed(std::span<const int32_t> ids, int wanted_rows = -1) {
    const SequenceStep step(ids, wanted_rows, length_, options_.page_size, pages_);
    const bool begins = length_ == 0;
    length_ += static_cast<int>(ids.size());
    ForwardBatch batch = step.batch();
    batch.device.stream = stream_.get();
    used_ = 0;
    batch.device.input_ids = put(step.input_ids);
    batch.device.positions = put(step.positions);
    batch.device.kv_slots = put(step.kv_slots);
    batch.device.q_indptr = put(step.q_indptr);
    batch.device.kv_lens = put(step.kv_lens);
    batch.device.page_table = put(pages_);
    batch.device.logits_rows = put(step.logits_rows);
    batch.device.state_slots = put({kRunStateSlot});
    batch.device.initial_state_slots = put({begins ? kNoStateSlot : kRunStateSlot});
    if (adapter_slot_ >= 0) {
      batch.device.lora_tiles = put_tiles(step.input_ids.size());
      batch.device.logits_lora_tiles = put_tiles(step.logits_rows.size());
    }
    WW_RETURN_IF_ERROR(attention_->init_forward_metadata(batch));
    WW_RETURN_IF_ERROR(model_->forward({.batch = batch, .cache = *cache_, .attention = *attention_,
                                        .logits = logits_.as<float>(), .states = states_.get()}));
    std::vector<float> logits(step.logits_rows.size() * config_.vocab_size);
    WW_RETURN_IF_ERROR(wait_for_stream(stream_.get(), "a forward"));
    WW_RETURN_IF_ERROR(copy_now(logits.data(), logits_.as<void>(), logits.size() * sizeof(float), "reading logits"));
    return logits;
  }

  Result<std::vector<int32_t>> greedy(std::span<const int32_t> prompt, int count) {
    return greedy_ids(*this, prompt, count);
  }

  void restart() { length_ = 0; }
  // Of the sequence from now on; -1: none.
  void set_adapter(int slot) { adapter_slot_ = slot; }
  const GpuDecoder& model() const { return *model_; }
  gpu::GpuGemm& gemm() { return model_->gemm(); }
  GpuStateCache& states() { return *states_; }
  void* stream() const { return stream_.get(); }
  void go_on_at(int length) { length_ = length; }

 private:
  explicit GpuRun(const GpuRunOptions& options) : options_(options) {}

  const int32_t* put(const std::vector<int32_t>& values) {
    std::byte* to = arrays_.as<std::byte>() + used_;
    used_ += (values.size() * sizeof(int32_t) + 255) / 256 * 256;
    EXPECT_TRUE(copy_now(to, values.data(), values.size() * sizeof(int32_t), "a step's arrays").ok());
    return reinterpret_cast<const int32_t*>(to);
  }

  // Of so many rows of the adapter.
  LoraTileArray put_tiles(size_t rows) {
    std::vector<LoraTile> tiles(max_lora_tiles(static_cast<int>(rows), 1));
    std::vector<int32_t> places(rows);
    fill_lora_tiles(std::vector<int32_t>(rows, adapter_slot_), tiles, places);
    std::vector<int32_t> words(tiles.size() * sizeof(LoraTile) / sizeof(int32_t));
    std::memcpy(words.data(), tiles.data(), words.size() * sizeof(int32_t));
    return {reinterpret_cast<const LoraTile*>(put(words)), static_cast<int>(tiles.size()), put(places)};
  }

  GpuRunOptions options_;
  ThreadTeam team_{2};
  ModelConfig config_;
  std::unique_ptr<GpuDecoder> model_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<GpuKvCache> cache_;
  std::unique_ptr<GpuStateCache> states_;
  std::vector<int32_t> pages_;
  int num_pages_ = 0;
  CudaStream stream_;
  DeviceBuffer arrays_, logits_;
  size_t used_ = 0;
  int length_ = 0;
  int adapter_slot_ = -1;
};

// The architecture of the GPU here, or nullopt.
inline std::optional<DeviceArch> gpu_arch() {
  const auto info = probe_cuda_device();
  return info.ok() ? arch_of_compute_capability(info->compute_capability) : std::nullopt;
}

#define WW_NEED_GPU(arch)              \
  const auto arch = gpu_arch();        \
  if (!arch) GTEST_SKIP() << "no GPU"

inline double relative_error(std::span<const float> got, std::span<const float> wanted) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += std::pow(got[i] - wanted[i], 2);
    norm += std::pow(wanted[i], 2);
  }
  return std::sqrt(error / norm);
}

}  // namespace warpweave
