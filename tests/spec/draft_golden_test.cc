// What the draft models draft is what transformers computes from the same weights: models/tale-eagle/golden.json, and
// for a standalone model the greedy continuation in its own golden.json; and what the references of
// tools/make_draft_goldens.py do, tests/golden/drafts.
#include <gtest/gtest.h>

#include "attention/hybrid.h"
#include "device/cpu/cpu_info.h"
#include "engine/draft_plan.h"
#include "engine/engine_impl.h"
#include "head_golden.h"
#include "model/build_decoder.h"
#include "spec/host_draft_model.h"

namespace warpweave {
namespace {

// A target and its draft model, without an engine: one request at a time.
class Drafting {
 public:
  Drafting(const std::string& algorithm, const std::string& folder, const std::string& model = "models/tale-llama")
      : args_(drafting_args(algorithm, folder, model)) {
    args_.device = "cpu";
    auto bundle = open_served_model(args_, args_.model_path);
    EXPECT_TRUE(bundle.ok()) << bundle.status().message();
    auto plan = plan_serving(args_, {bundle->config, bundle->eos_token_ids, bundle->weights.get(), args_.model_path, args_.model_path},
                             {.hardware = cpu_hardware_facts()});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    target_ = build_decoder(bundle->config, bundle->weights,
                            {.dtype = plan->dtype, .max_positions = plan->context_len, .progress = {}}, team_).value();
    keep_for_drafts(*plan->draft, *target_);
    attention_ = create_resolved_backend(plan->attention, {.team = &team_, .max_context_len = plan->context_len,
                                                           .page_size = kDraftPageSize}).value();
    drafter_ =
        start_drafter(*plan->draft, {.num_pages = kDraftPages, .context_len = plan->context_len, .max_requests = 1},
                      *target_, team_)
            .value();
    KvCacheShape shape = kv_shape_of(bundle->config, plan->attention);
    shape.num_pages = kDraftPages;
    shape.layout = plan->cache_layout;
    cache_ = std::make_unique<KvCache>(KvCache::create(shape, {}).value());
    if (bundle->config.linear) {
      recurrent_ = HostRecurrent::create(bundle->config, state_cache_shape(bundle->config, 1, DType::f32),
                                         {.prefill = plan->attention.linear.prefill,
                                          .decode = plan->attention.linear.decode,
                                          .verify = plan->attention.linear_verify},
                                         team_)
                       .value();
    }
  }

  // Prefills and shows the draft model that `next` follows; returns the target's own choice.
  int32_t prefill(const std::vector<int32_t>& prompt, int32_t next) {
    const ForwardBatch& batch = request_.build_prompt(prompt, recurrent_ != nullptr).batch();
    EXPECT_TRUE(attention_->init_forward_metadata(batch).ok());
    EXPECT_TRUE(target_->forward(batch, *cache_, *attention_, team_, recurrent_.get()).ok());
    std::vector<float> logits(target_->config().vocab_size);
    RowBest best;
    target_->logits(0, 1, {.values = logits.data(), .best = &best}, team_);
    EXPECT_TRUE(request_.show(*drafter_, prompt, next).ok());
    return best.column;
  }

  std::vector<int32_t> draft(const std::vector<int32_t>& prompt, int32_t next) {
    auto drafts = request_.draft(*drafter_, prompt, next, recurrent_ != nullptr);
    EXPECT_TRUE(drafts.ok()) << drafts.status().message();
    return drafts.ok() ? *std::move(drafts) : std::vector<int32_t>();
  }

  // What the head reads of the target at a row of the prompt.
  std::span<const float> hidden_of(int row) const {
    const auto width = static_cast<size_t>(target_->hidden_width());
    return {target_->hidden() + row * width, width};
  }
  // What the head predicted behind the prompt.
  std::span<const float> feature() { return dynamic_cast<HostDraftModel&>(drafter_->model()).kept(request_.slot()); }

 private:
  ServerArgs args_;
  ThreadTeam team_{2};
  std::unique_ptr<DecoderModel> target_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<HostRecurrent> recurrent_;
  OneRequest request_;
};

TEST(DraftGolden, EagleDraftsAsTheReferenceDoes) {
  Drafting drafting("EAGLE", "models/tale-eagle");
  for (const auto& prompt : golden_prompts("models/tale-eagle")) {
    const std::vector<int32_t> ids = prompt["input_ids"];
    const int32_t next = prompt["target_next"];
    EXPECT_EQ(drafting.prefill(ids, next), next);
    for (int i = 0; i < 8; ++i) {
      EXPECT_NEAR(drafting.hidden_of(static_cast<int>(ids.size()) - 1)[i], prompt["feature_in"][i], 2e-3);
      EXPECT_NEAR(drafting.feature()[i], prompt["feature_out"][i], 4e-3);
    }
    EXPECT_EQ(drafting.draft(ids, next), prompt["drafts"].get<std::vector<int32_t>>()) << prompt["text"];
  }
}

class HeadGolden : public testing::TestWithParam<GoldenHead> {};

TEST_P(HeadGolden, DraftsAsTheReferenceDoes) {
  Drafting drafting(GetParam().algorithm, GetParam().draft_folder(), GetParam().target_folder());
  for (const auto& prompt : golden_prompts(GetParam().folder())) {
    const std::vector<int32_t> ids = prompt["input_ids"];
    const int32_t next = prompt["target_next"];
    EXPECT_EQ(drafting.prefill(ids, next), next);
    expect_near(drafting.hidden_of(static_cast<int>(ids.size()) - 1), prompt["feature_in"]);
    expect_near(drafting.feature(), prompt["feature_out"]);
    EXPECT_EQ(drafting.draft(ids, next), prompt["drafts"].get<std::vector<int32_t>>());
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, HeadGolden, testing::ValuesIn(kGoldenHeads));

TEST(DraftGolden, AStandaloneModelDraftsItsGreedyContinuation) {
  Drafting drafting("STANDALONE", "models/tale-draft");
  for (const auto& prompt : golden_prompts("models/tale-draft")) {
    const std::vector<int32_t> ids = prompt["input_ids"], greedy = prompt["greedy_ids"];
    drafting.prefill(ids, greedy[0]);
    EXPECT_EQ(drafting.draft(ids, greedy[0]),
              std::vector<int32_t>(greedy.begin() + 1, greedy.begin() + 1 + kDraftSteps))
        << prompt["text"];
  }
}

}  // namespace
}  // namespace warpweave
