// What the draft models draft is what transformers computes from the same weights: models/tale-eagle/golden.json, and
// for a standalone model the greedy continuation in its own golden.json; and what the references of
// tools/make_draft_goldens.py do, tests/golden/drafts.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "attention/hybrid.h"
#include "device/cpu/cpu_info.h"
#include "engine/draft_plan.h"
#include "engine/engine_impl.h"
#include "model/build_decoder.h"
#include "spec/drafter.h"
#include "spec/host_draft_model.h"

namespace warpweave {
namespace {

constexpr int kPages = 40, kPageSize = 16, kSteps = 4;

// A target and its draft model, without an engine: one request at a time, on pages 1, 2, ...
class Drafting {
 public:
  Drafting(const std::string& algorithm, const std::string& folder, const std::string& model = "models/tale-llama") {
    args_.model_path = model;
    args_.skip_tokenizer_init = true;
    args_.device = "cpu";
    args_.dtype = "float32";
    args_.page_size = kPageSize;
    args_.speculative_algorithm = algorithm;
    args_.speculative_draft_model_path = folder;
    args_.speculative_num_steps = kSteps;
    args_.speculative_eagle_topk = 1;
    auto bundle = open_served_model(args_, args_.model_path);
    EXPECT_TRUE(bundle.ok()) << bundle.status().message();
    auto plan = plan_serving(args_, {bundle->config, bundle->eos_token_ids, bundle->weights.get(), args_.model_path},
                             {.hardware = cpu_hardware_facts()});
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    target_ = build_decoder(bundle->config, bundle->weights,
                            {.dtype = plan->dtype, .max_positions = plan->context_len, .progress = {}}, team_).value();
    keep_for_drafts(*plan->draft, *target_);
    attention_ = create_resolved_backend(plan->attention, {.team = &team_, .max_context_len = plan->context_len,
                                                           .page_size = kPageSize}).value();
    drafter_ = start_drafter(*plan->draft, {.num_pages = kPages, .context_len = plan->context_len, .max_requests = 1},
                             *target_, team_).value();
    KvCacheShape shape = kv_shape_of(bundle->config, plan->attention);
    shape.num_pages = kPages;
    shape.layout = plan->cache_layout;
    cache_ = std::make_unique<KvCache>(KvCache::create(shape, {}).value());
    if (bundle->config.linear) {
      recurrent_ = HostRecurrent::create(bundle->config, state_cache_shape(bundle->config, 1, DType::f32),
                                         {.prefill = plan->attention.linear.prefill, .decode = plan->attention.linear.decode,
                                          .verify = plan->attention.linear_verify}, team_).value();
    }
    pages_.resize(kPages - 1);
    std::iota(pages_.begin(), pages_.end(), 1);
  }

  // Prefills and shows the draft model that `next` follows; returns the target's own choice.
  int32_t prefill(const std::vector<int32_t>& prompt, int32_t next) {
    Step step = step_of(prompt.data(), static_cast<int>(prompt.size()), 0);
    step.rows[0].prefill = true;
    builder_.build(step);
    EXPECT_TRUE(attention_->init_forward_metadata(builder_.batch()).ok());
    EXPECT_TRUE(target_->forward(builder_.batch(), *cache_, *attention_, team_, recurrent_.get()).ok());
    std::vector<float> logits(target_->config().vocab_size);
    RowBest best;
    target_->logits(0, 1, {.values = logits.data(), .best = &best}, team_);
    const DraftRow row = {.state = &state_, .start = 0, .num_tokens = static_cast<int>(prompt.size()), .prefill = true,
                          .prompt = prompt, .output = {}};
    const ObservedRow observed = {.nodes = {}, .sampled = {&next, 1}};
    EXPECT_TRUE(drafter_->observe(builder_, {&row, 1}, {&observed, 1}).ok());
    return best.column;
  }

  std::vector<int32_t> draft(const std::vector<int32_t>& prompt, int32_t next) {
    Step step = step_of(&next, 1, static_cast<int>(prompt.size()));
    step.rows[0].max_proposals = kSteps;
    std::vector<Proposal> proposals(1);
    proposals[0].tokens.assign(kSteps, 0);
    builder_.build(step, proposals);
    const DraftRow row = {.state = &state_, .start = static_cast<int>(prompt.size()), .num_tokens = 1, .prefill = false,
                          .prompt = prompt, .output = {&next, 1}};
    EXPECT_TRUE(drafter_->draft(builder_, {&row, 1}, proposals).ok());
    return proposals[0].tokens;
  }

  // What the head reads of the target at a row of the prompt.
  std::span<const float> hidden_of(int row) const {
    const auto width = static_cast<size_t>(target_->hidden_width());
    return {target_->hidden() + row * width, width};
  }
  // What the head predicted behind the prompt.
  std::span<const float> feature() { return dynamic_cast<HostDraftModel&>(drafter_->model()).kept(state_.slot); }

 private:
  Step step_of(const int32_t* ids, int count, int start) {
    Step step;
    StepRow& row = step.rows.emplace_back();
    row.id = 1;
    row.start = start;
    row.num_tokens = count;
    row.num_logits = 1;
    row.sample_slot = 0;
    row.input_ids = ids;
    row.pages = pages_.data();
    row.num_pages = static_cast<int>(pages_.size());
    if (recurrent_ != nullptr) row.state_slot = 0;
    row.pages_version = 1;
    step.num_tokens = count;
    step.num_samples = 1;
    return step;
  }

  ServerArgs args_;
  ThreadTeam team_{2};
  std::unique_ptr<DecoderModel> target_;
  std::unique_ptr<AttentionBackend> attention_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Drafter> drafter_;
  std::unique_ptr<HostRecurrent> recurrent_;
  BatchBuilder builder_{BatchCache{kPageSize, 1, -1}};
  std::vector<int32_t> pages_;
  DraftState state_;
};

nlohmann::json golden(const std::string& folder) { return nlohmann::json::parse(std::ifstream(folder + "/golden.json")); }

TEST(DraftGolden, EagleDraftsAsTheReferenceDoes) {
  Drafting drafting("EAGLE", "models/tale-eagle");
  for (const auto& prompt : golden("models/tale-eagle")["prompts"]) {
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

struct Head {
  const char* algorithm;
  const char* folder;      // in tests/golden/drafts
  const char* target = "";
};
void PrintTo(const Head& head, std::ostream* out) { *out << head.algorithm << " " << head.folder; }

class HeadGolden : public testing::TestWithParam<Head> {};

void expect_near(std::span<const float> got, const nlohmann::json& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-3) << i;
}

TEST_P(HeadGolden, DraftsAsTheReferenceDoes) {
  const std::string folder = "tests/golden/drafts/" + std::string(GetParam().folder);
  const bool own_folder = *GetParam().target != '\0';
  Drafting drafting(GetParam().algorithm, own_folder ? folder : "", folder + GetParam().target);
  for (const auto& prompt : golden(folder)["prompts"]) {
    const std::vector<int32_t> ids = prompt["input_ids"];
    const int32_t next = prompt["target_next"];
    EXPECT_EQ(drafting.prefill(ids, next), next);
    expect_near(drafting.hidden_of(static_cast<int>(ids.size()) - 1), prompt["feature_in"]);
    expect_near(drafting.feature(), prompt["feature_out"]);
    EXPECT_EQ(drafting.draft(ids, next), prompt["drafts"].get<std::vector<int32_t>>());
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, HeadGolden,
                         testing::Values(Head{"NEXTN", "nextn-deepseek-v3"}, Head{"EAGLE", "nextn-glm4-moe"},
                                         Head{"NEXTN", "nextn-qwen3-next"}, Head{"EAGLE3", "eagle3", "/target"}));

TEST(DraftGolden, AStandaloneModelDraftsItsGreedyContinuation) {
  Drafting drafting("STANDALONE", "models/tale-draft");
  for (const auto& prompt : golden("models/tale-draft")["prompts"]) {
    const std::vector<int32_t> ids = prompt["input_ids"], greedy = prompt["greedy_ids"];
    drafting.prefill(ids, greedy[0]);
    EXPECT_EQ(drafting.draft(ids, greedy[0]), std::vector<int32_t>(greedy.begin() + 1, greedy.begin() + 1 + kSteps))
        << prompt["text"];
  }
}

}  // namespace
}  // namespace warpweave
