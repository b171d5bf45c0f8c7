// For the tests that hold draft models to references, on any device: one request on pages 1, 2, ..., what a drafter is
// shown of it, and the heads of tests/golden/drafts.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "batch/batch_builder.h"
#include "flags/server_args.h"
#include "spec/drafter.h"

namespace warpweave {

inline constexpr int kDraftPages = 40, kDraftPageSize = 16, kDraftSteps = 4;

inline ServerArgs drafting_args(const std::string& algorithm, const std::string& folder, const std::string& model) {
  ServerArgs args;
  args.model_path = model;
  args.skip_tokenizer_init = true;
  args.dtype = "float32";
  args.page_size = kDraftPageSize;
  args.speculative_algorithm = algorithm;
  args.speculative_draft_model_path = folder;
  args.speculative_num_steps = kDraftSteps;
  args.speculative_eagle_topk = 1;
  return args;
}

class OneRequest {
 public:
  OneRequest() : pages_(kDraftPages - 1) { std::iota(pages_.begin(), pages_.end(), 1); }

  // With a state of recurrent layers where `recurrent`.
  Step step_of(std::span<const int32_t> ids, int start, bool recurrent) const {
    Step step;
    StepRow& row = step.rows.emplace_back();
    row.id = 1;
    row.start = start;
    row.num_tokens = static_cast<int>(ids.size());
    row.num_logits = 1;
    row.sample_slot = 0;
    row.input_ids = ids.data();
    row.pages = pages_.data();
    row.num_pages = static_cast<int>(pages_.size());
    if (recurrent) row.state_slot = 0;
    row.pages_version = 1;
    step.num_tokens = row.num_tokens;
    step.num_samples = 1;
    return step;
  }

  const BatchBuilder& build_prompt(const std::vector<int32_t>& prompt, bool recurrent) {
    Step step = step_of(prompt, 0, recurrent);
    step.rows[0].prefill = true;
    builder_.build(step);
    return builder_;
  }
  // After the target has read the prompt: that `next` follows.
  Status show(Drafter& drafter, const std::vector<int32_t>& prompt, int32_t next) {
    const DraftRow row = {.state = &state_, .start = 0, .num_tokens = static_cast<int>(prompt.size()), .prefill = true,
                          .prompt = prompt, .output = {}};
    const ObservedRow observed = {.nodes = {}, .sampled = {&next, 1}};
    return drafter.observe(builder_, {&row, 1}, {&observed, 1});
  }
  Result<std::vector<int32_t>> draft(Drafter& drafter, const std::vector<int32_t>& prompt, int32_t next,
                                     bool recurrent) {
    const int start = static_cast<int>(prompt.size());
    Step step = step_of({&next, 1}, start, recurrent);
    step.rows[0].max_proposals = kDraftSteps;
    std::vector<Proposal> proposals(1);
    proposals[0].tokens.assign(kDraftSteps, 0);
    builder_.build(step, proposals);
    const DraftRow row = {
        .state = &state_, .start = start, .num_tokens = 1, .prefill = false, .prompt = prompt, .output = {&next, 1}};
    WW_RETURN_IF_ERROR(drafter.draft(builder_, {&row, 1}, proposals));
    return proposals[0].tokens;
  }
  // Where the hidden state behind the prompt is kept.
  int slot() const { return state_.slot; }
  const std::vector<int32_t>& pages() const { return pages_; }

 private:
  BatchBuilder builder_{BatchCache{kDraftPageSize, 1, -1}};
  std::vector<int32_t> pages_;
  DraftState state_;
};

// The prompts of a draft model's golden; by value, since a loop over a part of a temporary would read freed memory.
inline nlohmann::json golden_prompts(const std::string& folder) {
  return nlohmann::json::parse(std::ifstream(folder + "/golden.json"))["prompts"];
}

inline void expect_near(std::span<const float> got, const nlohmann::json& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-3) << i;
}

struct GoldenHead {
  const char* algorithm;
  const char* name;
  const char* target = "";     // its folder in the head's; none: they are one

  std::string folder() const { return std::string("tests/golden/drafts/") + name; }
  std::string draft_folder() const { return *target != '\0' ? folder() : ""; }
  std::string target_folder() const { return folder() + target; }
};
inline void PrintTo(const GoldenHead& head, std::ostream* out) { *out << head.algorithm << " " << head.name; }

inline constexpr GoldenHead kGoldenHeads[] = {
    {"NEXTN", "nextn-deepseek-v3"},
    {"EAGLE", "nextn-glm4-moe"},
    {"NEXTN", "nextn-qwen3-next"},
    {"NEXTN", "nextn-qwen3_5"},
    {"NEXTN", "gguf-nextn-deepseek-v3"},
    {"EAGLE", "gguf-nextn-glm4-moe"},
    {"NEXTN", "gguf-nextn-qwen3-next"},
    {"NEXTN", "gguf-nextn-qwen3_5"},
    {"NEXTN", "gguf-mtp-glm4-moe", "/../gguf-nextn-glm4-moe"},
    {"EAGLE3", "eagle3", "/target"},
};

}  // namespace warpweave
