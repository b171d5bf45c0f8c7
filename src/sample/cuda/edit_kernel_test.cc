// Rows that are edited, or whose log-probabilities are wanted: what the GPU's kernels, run on the host, make of them is
// what the CPU's sampler says.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "device/cuda/testing/host_cta.h"

#include "sample/cuda/edit_kernel.cuh"
#include "sample/cuda/edit_packer.h"

namespace warpweave::gpu {
namespace {

using host_cta::Order;

constexpr int kVocab = 900, kWords = (kVocab + 31) / 32;

// A request with some of all that edits logits, by number.
GenerateRequest request(int number) {
  GenerateRequest out;
  SamplingParams& params = out.sampling;
  for (int i = 0; i < 40; ++i) out.input_ids.push_back((i * 37 + number) % 200);
  params.temperature = number % 2 == 0 ? 0 : 0.8f;
  params.seed = 11 + number;
  if (number % 3 == 0) params.repetition_penalty = 1.3f;
  if (number % 4 == 1) params.frequency_penalty = 0.6f;
  if (number % 4 == 2) params.presence_penalty = -0.4f;
  if (number % 5 == 0) params.logit_bias = {{3, 2.5f}, {7, -100}, {kVocab + 5, 1}, {150, 40}};
  if (number % 5 == 1) params.min_new_tokens = 100;
  if (number % 6 == 2) params.bad_words = {{5}, {1, 6}, {2, 3, 8}};
  if (number % 6 == 4) {
    for (int id = number; id < kVocab; id += 3) params.allowed_token_ids.push_back(id);
  }
  out.return_logprob = number % 3 != 1;
  out.top_logprobs_num = number % 4 == 3 ? 0 : 5;
  if (number % 2 == 1) out.token_ids_logprob = {0, 899, 900, 17, 5};
  return out;
}

struct Rows {
  std::vector<GenerateRequest> requests;
  std::vector<std::unique_ptr<SamplerState>> states;
  std::vector<EditedSample> samples;  // of those that the host has a part in
};

// Each with the same tokens behind it.
Rows made_rows(int count) {
  Rows out;
  for (int i = 0; i < count; ++i) out.requests.push_back(request(i));
  for (int i = 0; i < count; ++i) {
    const std::vector<int32_t> end_ids = {9, 10};
    auto& state = out.states.emplace_back(std::make_unique<SamplerState>(out.requests[i], end_ids, 0));
    for (const int32_t id : {4, 4, 150, 33, 1}) state->add_output(id);
    const GenerateRequest& asked = out.requests[i];
    const SampleRow row = {.state = state.get(),
                           .logits_row = i,
                           .position = 50,
                           .top_logprobs_num = asked.top_logprobs_num,
                           .want_logprobs = asked.return_logprob,
                           .logprob_ids = asked.token_ids_logprob};
    if (EditPacker::takes(row)) out.samples.push_back({row, i});
  }
  return out;
}

std::vector<float> made_logits(int rows) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> out(static_cast<size_t>(rows) * kVocab);
  for (float& x : out) x = std::round(normal(random) * 4) / 4;  // ties
  return out;
}

// As edit_logits(), sample_rows() and score_chosen() do on a GPU.
void run_kernels(const EditPacker& packer, EditCall call, int32_t* tokens) {
  const auto blocks = [&](unsigned across, const std::function<void()>& kernel) {
    for (unsigned y = 0; y < packer.rows().size(); ++y) {
      for (unsigned x = 0; x < across; ++x) {
        host_cta::run(kSampleThreads, Order::random, kernel, across > 1 ? host_cta::Index{x, y} : host_cta::Index{y});
      }
    }
  };
  blocks(1, [&] { score_kernel(call); });
  blocks(1, [&] { edit_kernel(call); });
  blocks((kVocab + kSampleThreads - 1) / kSampleThreads, [&] { mask_kernel(call); });
  blocks(1, [&] { sample_kernel({packer.params().data(), 1, nullptr, call.logits, kVocab, tokens}, 1); });
  call.tokens = tokens;
  blocks(1, [&] { chosen_kernel(call); });
}

struct Outcome {
  std::vector<float> logits;
  std::vector<SampledRow> sampled;
};

Outcome sampled_on_gpu(const Rows& rows, std::vector<float> logits) {
  const size_t count = rows.states.size();
  ThreadTeam team(2);
  EditPacker packer;
  std::vector<uint32_t> masks(count * kWords, 0x12345678);
  packer.pack(rows.samples, kVocab, masks, team);
  std::vector<float> old_values(packer.edits().size());
  std::vector<double> log_sums(count);
  std::vector<TokenScore> scores(packer.num_scores());
  std::vector<int32_t> tokens(count, -7);
  run_kernels(packer, {.rows = packer.rows().data(),
                       .num_rows = static_cast<int>(packer.rows().size()),
                       .masks = masks.data(),
                       .num_masks = packer.num_masks(),
                       .mask_words = kWords,
                       .edits = packer.edits().data(),
                       .old_values = old_values.data(),
                       .num_edits = static_cast<int>(packer.edits().size()),
                       .wanted = packer.wanted().data(),
                       .log_sums = log_sums.data(),
                       .scores = scores.data(),
                       .num_scores = packer.num_scores(),
                       .logits = logits.data(),
                       .vocab_size = kVocab}, tokens.data());
  Outcome out = {std::move(logits), std::vector<SampledRow>(count)};
  for (size_t i = 0; i < count; ++i) out.sampled[i].token_id = tokens[i];
  packer.unpack(scores, out.sampled);
  return out;
}

void expect_near(const std::vector<TokenLogprob>& got, const std::vector<TokenLogprob>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].token_id, expected[i].token_id) << i;
    if (!std::isfinite(expected[i].logprob)) {
      EXPECT_EQ(got[i].logprob, expected[i].logprob) << i;
    } else {
      EXPECT_NEAR(got[i].logprob, expected[i].logprob, 1e-5) << i;
    }
  }
}

TEST(EditKernels, LeaveTheLogitsThatTheCpuLeaves) {
  constexpr int kRows = 60;
  const Rows rows = made_rows(kRows);
  EXPECT_GT(rows.samples.size(), 40u);
  const std::vector<float> raw = made_logits(kRows);
  const Outcome got = sampled_on_gpu(rows, raw);
  for (int i = 0; i < kRows; ++i) {
    std::vector<float> expected(raw.begin() + i * kVocab, raw.begin() + (i + 1) * kVocab);
    rows.states[i]->edit_logits(expected);
    for (int id = 0; id < kVocab; ++id) {
      ASSERT_EQ(got.logits[i * kVocab + id], expected[id]) << "row " << i << " id " << id;
    }
  }
}

TEST(EditKernels, GiveTheLogProbabilitiesOfTheRawLogits) {
  constexpr int kRows = 60;
  const Rows rows = made_rows(kRows);
  const std::vector<float> raw = made_logits(kRows);
  const Outcome got = sampled_on_gpu(rows, raw);
  int edited_and_chosen = 0;
  for (const auto& [row, slot] : rows.samples) {
    const SampledRow& sampled = got.sampled[slot];
    ASSERT_GE(sampled.token_id, 0) << slot;
    if (row.state->params().temperature == 0) {
      const auto begin = got.logits.begin() + slot * kVocab;
      EXPECT_EQ(sampled.token_id, std::max_element(begin, begin + kVocab) - begin) << slot;
    }
    const std::span<const float> logits(raw.data() + slot * kVocab, kVocab);
    const PositionLogprobs expected = row.want_logprobs
        ? row_logprobs(logits, sampled.token_id, row.top_logprobs_num, row.logprob_ids) : PositionLogprobs{};
    if (row.want_logprobs) expect_near({sampled.logprobs.chosen}, {expected.chosen});
    expect_near(sampled.logprobs.top, expected.top);
    expect_near(sampled.logprobs.token_ids, expected.token_ids);
    edited_and_chosen += row.want_logprobs && got.logits[slot * kVocab + sampled.token_id] != logits[sampled.token_id];
  }
  EXPECT_GT(edited_and_chosen, 0);
}

TEST(EditKernels, SayWhichRowsHaveNothingAllowed) {
  GenerateRequest asked = request(1);
  asked.sampling = {};
  asked.sampling.allowed_token_ids = {9};  // an end, which must not come yet
  asked.sampling.min_new_tokens = 5;
  Rows rows;
  for (int i = 0; i < 2; ++i) {
    rows.states.push_back(std::make_unique<SamplerState>(asked, std::vector<int32_t>{9}, 0));
    SamplerState* const state = rows.states.back().get();
    rows.samples.push_back({{.state = state, .logits_row = i, .want_logprobs = true, .logprob_ids = {}}, i});
    asked.sampling.allowed_token_ids = {8};
  }
  std::vector<float> logits = made_logits(2);
  EXPECT_EQ(sampled_on_gpu(rows, logits).sampled[0].token_id, kNoAllowedToken);
  EXPECT_EQ(sampled_on_gpu(rows, logits).sampled[1].token_id, 8);
  logits[kVocab + 8] = std::nanf("");
  EXPECT_EQ(sampled_on_gpu(rows, logits).sampled[1].token_id, kNoToken);
}

TEST(EditKernels, LeaveOtherRowsAlone) {
  constexpr int kRows = 12;
  Rows rows = made_rows(kRows);
  std::erase_if(rows.samples, [](const EditedSample& sample) { return sample.slot % 2 == 0; });
  const std::vector<float> raw = made_logits(kRows);
  const Outcome got = sampled_on_gpu(rows, raw);
  for (int i = 0; i < kRows; i += 2) {
    const auto row = raw.begin() + i * kVocab;
    EXPECT_TRUE(std::equal(row, row + kVocab, got.logits.begin() + i * kVocab)) << i;
    EXPECT_EQ(got.sampled[i].token_id, -7) << i;
  }
}

}  // namespace
}  // namespace warpweave::gpu
