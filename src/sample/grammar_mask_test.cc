// Tokens sampled under a grammar: only what it allows, whoever makes the masks, after resets too.
#include "sample/grammar_mask.h"

#include <gtest/gtest.h>

#include <cmath>

#include "grammar/testing/grammar_texts.h"
#include "sample/sampler.h"

namespace warpweave {
namespace {

using grammar::testing::compile;

constexpr const char* kSchema = R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"enum":["x","y"]}},"required":["a","b"],"additionalProperties":false})";

struct Sampled {
  std::string text;
  bool ended = false;
};

// The bits are those of the ids whose logits an edit leaves.
void expect_mask_is_the_edit(const SamplerState& state, std::vector<float> logits) {
  ASSERT_TRUE(state.has_mask());
  std::vector<uint32_t> mask((logits.size() + 31) / 32, 0xabcdef01);
  state.fill_mask(mask, static_cast<int>(logits.size()));
  state.edit_logits(logits);
  for (size_t id = 0; id < 32 * mask.size(); ++id) {
    const bool allowed = id < logits.size() && std::isfinite(logits[id]);
    ASSERT_EQ((mask[id / 32] >> (id % 32) & 1) != 0, allowed) << id;
  }
}

// Samples by made-up logits until the end token comes; forgets and starts again at `reset_at`.
Sampled sample_text(GrammarMaskThread* thread, float temperature, int reset_at, int min_new_tokens = 0) {
  const auto compiled = compile(grammar::testing::compact_schema(kSchema));
  const auto vocab = static_cast<int>(compiled->vocabulary().size());
  ThreadTeam team(1);
  Sampler sampler(team);
  GenerateRequest request;
  request.sampling.temperature = temperature;
  request.sampling.seed = 3;
  request.sampling.min_new_tokens = min_new_tokens;
  SamplerState state(request, {vocab - 1}, 0);
  state.set_grammar(std::make_unique<GrammarMask>(compiled, thread));
  std::vector<float> logits(vocab + 40);  // the model's vocabulary is padded
  std::vector<int32_t> ids;
  for (int step = 0; step < 200; ++step) {
    if (step == reset_at) state.reset_output(ids);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919 + step * 31) % 97) / 10;
    logits.back() = 1000;
    expect_mask_is_the_edit(state, logits);
    const RowBest best{};
    SampleRow row{.state = &state, .logits_row = 0, .position = static_cast<uint64_t>(step), .logprob_ids = {}};
    SampledRow out;
    sampler.sample({&row, 1}, {logits, {&best, 1}, static_cast<int>(logits.size())}, {&out, 1});
    if (thread != nullptr) thread->wake();
    if (out.token_id == vocab - 1) {
      Sampled done{"", true};
      for (const int32_t id : ids) done.text += compiled->vocabulary().token(id);
      return done;
    }
    ids.push_back(out.token_id);
  }
  return {};
}

TEST(GrammarMask, OnlyTextsOfTheGrammarAreSampled) {
  GrammarMaskThread thread;
  const auto compiled = compile(grammar::testing::compact_schema(kSchema));
  for (const float temperature : {0.0f, 1.0f}) {
    const Sampled alone = sample_text(nullptr, temperature, -1);
    EXPECT_TRUE(alone.ended);
    EXPECT_EQ(grammar::testing::takes(compiled, alone.text), "yes") << alone.text;
    EXPECT_EQ(sample_text(&thread, temperature, -1).text, alone.text);
    EXPECT_EQ(sample_text(&thread, temperature, 4).text, alone.text);  // as after a retraction
    EXPECT_EQ(sample_text(nullptr, temperature, 4).text, alone.text);
  }
}

TEST(GrammarMask, CompleteTextsEndBelowTheMinimum) {
  EXPECT_TRUE(sample_text(nullptr, 0, -1, 100).ended);
}

TEST(GrammarMask, RequestsMayGoWhileTheirMasksAreMade) {
  const auto compiled = compile({grammar::GrammarSpec::Kind::json_object, "", {}});
  GrammarMaskThread thread;
  for (int i = 0; i < 200; ++i) {
    GrammarMask mask(compiled, &thread);
    std::vector<float> logits(compiled->vocabulary().size());
    if (i % 2) mask.apply(logits);
    if (i % 3 == 0) mask.accept('{');
    if (i % 2 == 0) thread.wake();
  }
}

}  // namespace
}  // namespace warpweave
