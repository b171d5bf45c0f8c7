// The references of draft_golden_test.cc on a GPU, in float32: what draft heads draft, the target's rows that they
// read, and the rows that they go on from. Skipped without a GPU.
#include <gtest/gtest.h>

#include "attention/hybrid.h"
#include "device/cuda/copy.h"
#include "device/cuda/cuda_check.h"
#include "engine/engine_impl.h"
#include "engine/gpu_draft.h"
#include "engine/start_device.h"
#include "engine/testing/serving_device.h"
#include "head_golden.h"
#include "model/gpu_weights.h"
#include "model/recurrent.h"

namespace warpweave {
namespace {

constexpr int kMaxTokens = 512;

// A target and its draft model, without an engine: one request.
class GpuDrafting {
 public:
  explicit GpuDrafting(const GoldenHead& head)
      : args_(drafting_args(head.algorithm, head.draft_folder(), head.target_folder())) {
    args_.device = "cuda";
  }

  Status start() {
    WW_ASSIGN_OR_RETURN(const ModelBundle bundle, open_served_model(args_, args_.model_path));
    WW_ASSIGN_OR_RETURN(const std::optional<GpuChoice> gpu, resolve_device("cuda"));
    WW_ASSIGN_OR_RETURN(ServePlan plan, plan_serving(args_, {bundle.config, bundle.eos_token_ids, bundle.weights.get(), args_.model_path, args_.model_path}, {.hardware = gpu->facts}));
    const BuildOptions build = {.dtype = plan.dtype, .max_positions = plan.context_len, .progress = {}};
    WW_ASSIGN_OR_RETURN(stream_, create_stream());
    WW_ASSIGN_OR_RETURN(GpuDecoderWeights weights, load_gpu_weights(bundle.config, bundle.weights, build, team_));
    const DraftPlan& draft = *plan.draft;
    WW_ASSIGN_OR_RETURN(target_, GpuDecoder::create(bundle.config, build, std::move(weights),
                                                    {.max_tokens = kMaxTokens, .max_logits_rows = kMaxTokens,
                                                     .keep_hidden = draft.options.eagle && draft.target_layers.empty(),
                                                     .keep_layers = draft.target_layers}));
    WW_ASSIGN_OR_RETURN(attention_, create_resolved_backend(plan.attention, {.team = &team_,
                                                                             .max_context_len = plan.context_len,
                                                                             .page_size = kDraftPageSize}));
    KvCacheShape shape = kv_shape_of(bundle.config, plan.attention);
    shape.num_pages = kDraftPages;
    shape.layout = plan.cache_layout;
    WW_ASSIGN_OR_RETURN(GpuKvCache cache, GpuKvCache::create(shape));
    cache_ = std::make_unique<GpuKvCache>(std::move(cache));
    if (bundle.config.linear) {
      WW_ASSIGN_OR_RETURN(GpuStateCache states, GpuStateCache::create(state_cache_shape(bundle.config, 1, DType::f32)));
      states_ = std::make_unique<GpuStateCache>(std::move(states));
    }
    WW_RETURN_IF_ERROR(reserve());
    const GpuDraftSetup setup = {.max_requests = 1,
                                 .max_tokens = kMaxTokens,
                                 .max_step_proposals = kDraftSteps,
                                 .max_pages_per_request = kDraftPages,
                                 .context_len = plan.context_len,
                                 .stream = stream_.get(),
                                 .team = &team_};
    WW_ASSIGN_OR_RETURN(GpuDraftParts parts, load_gpu_draft(draft, setup, *target_));
    WW_ASSIGN_OR_RETURN(drafts_, start_gpu_drafter(draft, std::move(parts), kDraftPages, setup, *target_));
    drafts_.model->set_page_table(table_.as<int32_t>());
    return {};
  }

  // Prefills and shows the draft model that `next` follows.
  Status prefill(const std::vector<int32_t>& prompt, int32_t next) {
    ForwardBatch batch = request_.build_prompt(prompt, states_ != nullptr).batch();
    WW_RETURN_IF_ERROR(upload(batch));
    WW_RETURN_IF_ERROR(attention_->init_forward_metadata(batch));
    WW_RETURN_IF_ERROR(target_->forward({.batch = batch, .cache = *cache_, .attention = *attention_,
                                         .logits = logits_.as<float>(), .states = states_.get()}));
    WW_RETURN_IF_ERROR(request_.show(*drafts_.drafter, prompt, next));
    return cuda_status(cudaStreamSynchronize(stream_.get()), "a prompt");
  }

  Result<std::vector<int32_t>> draft(const std::vector<int32_t>& prompt, int32_t next) {
    return request_.draft(*drafts_.drafter, prompt, next, states_ != nullptr);
  }

  std::vector<float> hidden_of(int row) const {
    const int64_t width = target_->hidden_width();
    return read(static_cast<const float*>(target_->hidden()) + row * width, width);
  }
  std::vector<float> feature() const {
    return read(drafts_.model->kept(request_.slot()), target_->config().hidden_size);
  }
  int32_t chosen() const {
    const std::vector<float> logits = read(logits_.as<float>(), target_->config().vocab_size);
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }

 private:
  static std::vector<float> read(const void* from, int64_t count) {
    std::vector<float> out(count);
    EXPECT_EQ(cudaMemcpy(out.data(), from, count * sizeof(float), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

  Status reserve() {
    WW_ASSIGN_OR_RETURN(arrays_, DeviceBuffer::allocate(8 * kMaxTokens * sizeof(int32_t), "a step"));
    WW_ASSIGN_OR_RETURN(table_, DeviceBuffer::allocate(kDraftPages * sizeof(int32_t), "a page table"));
    WW_ASSIGN_OR_RETURN(logits_, DeviceBuffer::allocate(target_->config().vocab_size * sizeof(float), "logits"));
    return copy_now(table_.as<void>(), request_.pages().data(), request_.pages().size() * sizeof(int32_t),
                    "a page table");
  }

  // The batch's arrays, one after the other.
  Status upload(ForwardBatch& batch) {
    std::vector<int32_t> all;
    const auto put = [&](std::span<const int32_t> values) {
      const int32_t* const at = arrays_.as<int32_t>() + all.size();
      all.insert(all.end(), values.begin(), values.end());
      return at;
    };
    batch.device.stream = stream_.get();
    batch.device.input_ids = put(batch.input_ids);
    batch.device.positions = put(batch.positions);
    batch.device.kv_slots = put(batch.kv_slots);
    batch.device.q_indptr = put(batch.q_indptr);
    batch.device.kv_lens = put(batch.kv_lens);
    batch.device.logits_rows = put(batch.logits_rows);
    if (states_ != nullptr) {
      batch.device.state_slots = put(batch.state_slots);
      batch.device.initial_state_slots = put(std::vector<int32_t>{kNoStateSlot});
    }
    batch.device.page_table = table_.as<int32_t>();
    batch.page_table_stride = kDraftPages;
    return copy_now(arrays_.as<void>(), all.data(), all.size() * sizeof(int32_t), "a step");
  }

  ServerArgs args_;
  ThreadTeam team_{2};
  CudaStream stream_;
  std::unique_ptr<GpuDecoder> target_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<GpuKvCache> cache_;
  std::unique_ptr<GpuStateCache> states_;
  DeviceBuffer arrays_, table_, logits_;
  GpuDrafter drafts_;
  OneRequest request_;
};

class GpuHeadGolden : public testing::TestWithParam<GoldenHead> {};

TEST_P(GpuHeadGolden, DraftsAsTheReferenceDoes) {
  if (const auto gpu = probe_cuda_device(); !gpu.ok()) GTEST_SKIP() << gpu.status().message();
  GpuDrafting drafting(GetParam());
  const Status started = drafting.start();
  ASSERT_TRUE(started.ok()) << started.message();
  for (const auto& prompt : golden_prompts(GetParam().folder())) {
    const std::vector<int32_t> ids = prompt["input_ids"];
    const int32_t next = prompt["target_next"];
    const Status read = drafting.prefill(ids, next);
    ASSERT_TRUE(read.ok()) << read.message();
    EXPECT_EQ(drafting.chosen(), next);
    expect_near(drafting.hidden_of(static_cast<int>(ids.size()) - 1), prompt["feature_in"]);
    expect_near(drafting.feature(), prompt["feature_out"]);
    const auto drafts = drafting.draft(ids, next);
    ASSERT_TRUE(drafts.ok()) << drafts.status().message();
    EXPECT_EQ(*drafts, prompt["drafts"].get<std::vector<int32_t>>());
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, GpuHeadGolden, testing::ValuesIn(kGoldenHeads));

}  // namespace
}  // namespace warpweave
