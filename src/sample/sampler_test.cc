#include "sample/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace warpweave {
namespace {

GenerateRequest request_with(SamplingParams params, std::vector<int32_t> prompt = {1, 2}) {
  GenerateRequest request;
  request.input_ids = std::move(prompt);
  request.sampling = std::move(params);
  return request;
}

// Shares of each id over many draws of one row.
std::map<int32_t, double> histogram(const std::vector<float>& logits, const SamplingParams& params) {
  std::map<int32_t, double> share;
  RowScratch scratch;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    share[sample_row(logits, params, uniform_draw(7, i), scratch)] += 1.0 / kDraws;
  }
  return share;
}

TEST(RowSampler, FollowsTheSoftmaxAtAnyTemperature) {
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, -4.0f};
  for (float temperature : {0.5f, 1.0f, 2.0f}) {
    SamplingParams params;
    params.temperature = temperature;
    double total = 0;
    for (float l : logits) total += std::exp(l / temperature);
    auto share = histogram(logits, params);
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(share[i], std::exp(logits[i] / temperature) / total, 0.012);
  }
}

TEST(RowSampler, TopKTopPMinPCutTheTail) {
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  SamplingParams top_k;
  top_k.top_k = 2;
  auto share = histogram(logits, top_k);
  EXPECT_EQ(share.size(), 2u);
  EXPECT_NEAR(share[0], 0.625, 0.012);

  SamplingParams top_p;
  top_p.top_p = 0.79f;  // 0.5 + 0.3 reaches it
  EXPECT_EQ(histogram(logits, top_p).size(), 2u);
  top_p.top_p = 0.81f;
  EXPECT_EQ(histogram(logits, top_p).size(), 3u);
  top_p.top_p = 1e-6f;
  EXPECT_EQ(histogram(logits, top_p).size(), 1u);

  SamplingParams min_p;
  min_p.min_p = 0.2f;  // of the best: 0.1
  EXPECT_EQ(histogram(logits, min_p).size(), 3u);

  SamplingParams both;  // top_p is taken of what top_k left: 0.625 alone reaches 0.6
  both.top_k = 2;
  both.top_p = 0.6f;
  EXPECT_EQ(histogram(logits, both).size(), 1u);
}

TEST(RowSampler, NucleusIsExactOnALargeVocabulary) {
  std::vector<float> logits(50000);
  for (size_t i = 0; i < logits.size(); ++i) logits[(i * 7919) % logits.size()] = -0.001f * i;
  double total = 0;
  for (float l : logits) total += std::exp(static_cast<double>(l));
  double sum = 0;
  int expected = 0;
  while (sum < 0.5 * total) sum += std::exp(-0.001 * expected++);
  SamplingParams params;
  params.top_p = 0.5f;
  RowScratch scratch;
  std::set<int32_t> seen;
  for (int i = 0; i < 3000; ++i) seen.insert(sample_row(logits, params, i / 3000.0, scratch));
  for (int32_t id : seen) EXPECT_GE(logits[id], -0.001f * (expected + 1));
  EXPECT_GT(seen.size(), 500u);
}

TEST(RowSampler, SurvivesDegenerateRows) {
  RowScratch scratch;
  const float inf = std::numeric_limits<float>::infinity();
  SamplingParams params;
  EXPECT_EQ(sample_row(std::vector<float>(5, -inf), params, 0.5, scratch), kNoToken);
  EXPECT_EQ(sample_row(std::vector<float>(5, std::nanf("")), params, 0.5, scratch), kNoToken);
  EXPECT_EQ(sample_row(std::vector<float>{1, std::nanf(""), 3}, params, 0.5, scratch), kNoToken);
  EXPECT_EQ(sample_row(std::vector<float>(5, -std::numeric_limits<float>::infinity()), params, 0.5, scratch),
            kNoToken);
  std::vector<float> one(5, -inf);
  one[3] = -2;
  params.top_p = 0.9f;
  EXPECT_EQ(sample_row(one, params, 0.999999, scratch), 3);
}

// The field's rule of --speculative-accept-threshold-acc: some guess is kept with probability min(1, all / acc), each in
// proportion to its own, and else the other tokens are drawn as they are.
TEST(RowSampler, GuessesAreKeptAsMuchMoreOftenAsTheThresholdSays) {
  const std::vector<double> p = {0.1, 0.3, 0.05, 0.15, 0.4};
  std::vector<float> logits;
  for (const double x : p) logits.push_back(static_cast<float>(std::log(x)));
  constexpr int kRounds = 200000;
  RowScratch scratch;
  for (const float top_p : {1.0f, 0.999f}) {
    SamplingParams params;
    params.temperature = 1;
    params.top_p = top_p;
    for (const float acc : {1.0f, 0.6f, 0.2f}) {
      const std::vector<int32_t> guesses = {0, 3};
      std::vector<double> share(p.size());
      for (int i = 0; i < kRounds; ++i) {
        const RowGuesses of_row = {guesses, {1, acc}, acceptance_draw(7, i)};
        share[sample_row(logits, params, uniform_draw(7, i), scratch, of_row)] += 1.0 / kRounds;
      }
      const double all = 0.25, kept = std::min(1.0, all / acc);
      for (size_t id = 0; id < p.size(); ++id) {
        const bool guessed = id == 0 || id == 3;
        EXPECT_NEAR(share[id], guessed ? p[id] / all * kept : p[id] / (1 - all) * (1 - kept), 0.005) << id << " " << acc;
      }
    }
  }
}

TEST(RowSampler, ALikelyGuessIsKeptWhateverIsDrawnUnlessAnotherOneIs) {
  const std::vector<float> logits = {std::log(0.2f), std::log(0.5f), std::log(0.3f)};
  SamplingParams params;
  params.temperature = 1;
  RowScratch scratch;
  const std::vector<int32_t> guesses = {0, 2};
  for (int i = 0; i < 200; ++i) {
    const double draw = uniform_draw(3, i);
    const int32_t drawn = sample_row(logits, params, draw, scratch);
    const auto kept = [&](float single) {
      return sample_row(logits, params, draw, scratch, {guesses, {single, 1}, acceptance_draw(3, i)});
    };
    EXPECT_EQ(kept(0.25f), drawn == 1 ? 2 : drawn);
    EXPECT_EQ(kept(0.31f), drawn);
    EXPECT_EQ(kept(1), drawn);
  }
  params.temperature = 0;
  EXPECT_EQ(sample_row(logits, params, 0.5, scratch, {guesses, {0.1f, 0.1f}, 0}), 1) << "greedy rows keep their own";
}

TEST(RowSampler, LogprobsAreTheRawDistribution) {
  const std::vector<float> logits = {0.0f, 2.0f, 1.0f};
  const double log_z = std::log(1 + std::exp(2.0) + std::exp(1.0));
  const int32_t wanted[] = {0, 9};
  const PositionLogprobs got = row_logprobs(logits, 2, 2, wanted);
  EXPECT_NEAR(got.chosen.logprob, 1 - log_z, 1e-5);
  ASSERT_EQ(got.top.size(), 2u);
  EXPECT_EQ(got.top[0].token_id, 1);
  EXPECT_NEAR(got.top[1].logprob, 1 - log_z, 1e-5);
  EXPECT_NEAR(got.token_ids[0].logprob, -log_z, 1e-5);
  EXPECT_TRUE(std::isinf(got.token_ids[1].logprob));
}

TEST(SamplerState, AppliesPenaltiesBiasAndMinTokens) {
  SamplingParams params;
  params.frequency_penalty = 0.5f;
  params.presence_penalty = 0.25f;
  params.repetition_penalty = 2.0f;
  params.min_new_tokens = 2;
  params.logit_bias = {{4, 3.0f}};
  SamplerState state(request_with(params, {0}), {5}, 1);
  state.add_output(3);
  std::vector<float> logits = {1, -1, 1, 1, 1, 1};
  state.edit_logits(logits);
  EXPECT_FLOAT_EQ(logits[0], 0.5f);               // in the prompt: repetition only
  EXPECT_FLOAT_EQ(logits[1], -1.0f);
  EXPECT_FLOAT_EQ(logits[3], 0.5f - 0.75f);       // in the output: all three
  EXPECT_FLOAT_EQ(logits[4], 4.0f);
  EXPECT_TRUE(std::isinf(logits[5]));             // an end id, too early
  state.add_output(3);
  EXPECT_FALSE(state.end_ids_masked());
  state.reset_output(std::vector<int32_t>{1});
  EXPECT_TRUE(state.end_ids_masked());
}

TEST(SamplerState, OnlyAllowedTokensAreLeft) {
  SamplingParams params;
  params.allowed_token_ids = {1, 3, 99};
  const SamplerState state(request_with(params), {}, 0);
  EXPECT_TRUE(state.needs_logit_edit());
  std::vector<float> logits = {1, 2, 3, 4, 5};
  state.edit_logits(logits);
  for (const int id : {0, 2, 4}) EXPECT_TRUE(std::isinf(logits[id])) << id;
  EXPECT_EQ(logits[1], 2);
  EXPECT_EQ(logits[3], 4);
}

TEST(SamplerState, TheLastTokenOfABadWordIsMaskedWhereItWouldComplete) {
  SamplingParams params;
  params.bad_words = {{4}, {1, 2}, {1, 1, 3}};
  SamplerState state(request_with(params), {}, 0);
  const auto masked = [&] {
    std::vector<float> logits(6, 1.0f);
    state.edit_logits(logits);
    std::string ids;
    for (int id = 0; id < 6; ++id) {
      if (std::isinf(logits[id])) ids += std::to_string(id);
    }
    return ids;
  };
  EXPECT_EQ(masked(), "4");
  state.add_output(1);
  EXPECT_EQ(masked(), "24");
  state.add_output(1);
  EXPECT_EQ(masked(), "234");
  state.add_output(5);
  EXPECT_EQ(masked(), "4");
  state.reset_output(std::vector<int32_t>{0, 1, 1});
  EXPECT_EQ(masked(), "234");
}

// One bad row is its own request's failure.
TEST(Sampler, RowsWithoutATokenSaySoAndLeaveTheOthersAlone) {
  ThreadTeam team(2);
  Sampler sampler(team);
  constexpr int kVocab = 64, kRows = 8;
  const float nan = std::nanf(""), nothing = -std::numeric_limits<float>::infinity();
  std::vector<float> logits(kVocab * kRows, 0.5f);
  std::vector<RowBest> best(kRows, {0.5f, 0});
  std::fill_n(logits.begin() + 1 * kVocab, kVocab, nan);
  best[1] = {};
  logits[2 * kVocab + 17] = nan;
  std::fill_n(logits.begin() + 3 * kVocab, kVocab, nothing);
  best[3] = {};
  SamplingParams greedy, drawn, masked, masked_nan;
  greedy.temperature = 0;
  masked.allowed_token_ids = {3};
  masked.logit_bias = {{3, nothing}};
  std::vector<SamplerState> states;
  std::vector<SampleRow> rows;
  for (int r = 0; r < kRows; ++r) {
    const SamplingParams& params = r == 5 ? masked : r == 6 ? masked : r % 2 == 0 ? greedy : drawn;
    states.emplace_back(request_with(params), std::vector<int32_t>{}, 0);
  }
  std::fill_n(logits.begin() + 6 * kVocab, kVocab, nan);
  for (int r = 0; r < kRows; ++r) {
    rows.push_back({.state = &states[r], .logits_row = r, .position = 4, .want_logprobs = r > 3, .logprob_ids = {}});
  }
  std::vector<SampledRow> out(kRows);
  sampler.sample(rows, {logits, best, kVocab}, out);
  EXPECT_GE(out[0].token_id, 0);
  EXPECT_EQ(out[1].token_id, kNoToken);
  EXPECT_EQ(out[2].token_id, kNoToken);
  EXPECT_EQ(out[3].token_id, kNoToken);
  EXPECT_GE(out[4].token_id, 0);
  EXPECT_EQ(out[5].token_id, kNoAllowedToken);
  EXPECT_EQ(out[6].token_id, kNoToken);
  EXPECT_GE(out[7].token_id, 0);
}

TEST(Sampler, RowsDoNotDependOnTheBatch) {
  ThreadTeam team(2);
  Sampler sampler(team);
  constexpr int kVocab = 1000, kRows = 9;
  std::vector<float> logits(kVocab * kRows);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(uniform_draw(3, i) * 6);
  SamplingParams params;
  params.seed = 11;
  params.top_p = 0.9f;
  SamplingParams greedy;
  greedy.temperature = 0;
  std::vector<RowBest> best(kRows);
  for (int r = 0; r < kRows; ++r) best[r] = {1, 100 + r};
  // Every third row is greedy and takes what the forward found.
  const auto run = [&](std::vector<int> which) {
    std::vector<SamplerState> states;
    std::vector<SampleRow> rows;
    for (int r : which) states.emplace_back(request_with(r % 3 ? params : greedy), std::vector<int32_t>{}, 0);
    for (size_t i = 0; i < which.size(); ++i) {
      rows.push_back({.state = &states[i], .logits_row = which[i], .position = 40, .logprob_ids = {}});
    }
    std::vector<SampledRow> out(rows.size());
    sampler.sample(rows, {logits, best, kVocab}, out);
    std::vector<int32_t> ids;
    for (const SampledRow& row : out) ids.push_back(row.token_id);
    return ids;
  };
  const auto all = run({0, 1, 2, 3, 4, 5, 6, 7, 8});
  for (int r = 0; r < kRows; ++r) EXPECT_EQ(run({r})[0], all[r]);
  EXPECT_EQ(all[6], 106);
}

}  // namespace
}  // namespace warpweave
