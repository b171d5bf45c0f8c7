// Prompts whose rows stand at three positions (M-RoPE): equal ones change nothing, others are the request's own, in
// chunks, in graphs and in the prefix cache.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include <nlohmann/json.hpp>

#include "engine/testing/asking.h"
#include "engine/testing/serving_device.h"

namespace warpweave {
namespace {

constexpr int kHidden = 32;
using Rows = std::vector<float>;

// The model of the family tests, with sections in its rotation.
class PositionIdsServing : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
    namespace fs = std::filesystem;
    folder_ = fs::path(testing::TempDir()) / ("mrope_llama_" + std::to_string(GetParam()));
    fs::create_directories(folder_);
    const auto options = fs::copy_options::overwrite_existing;
    for (const char* file : {"generation_config.json", "model.safetensors"}) {
      fs::copy_file(fs::path("tests/golden/families/llama") / file, folder_ / file, options);
    }
    nlohmann::json config = nlohmann::json::parse(std::ifstream("tests/golden/families/llama/config.json"));
    config["rope_parameters"]["mrope_section"] = {2, 3, 3};
    config["rope_parameters"]["mrope_interleaved"] = GetParam();
    std::ofstream(folder_ / "config.json") << config;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  ServedModel serve(int chunk, const std::string& path) const {
    ServerArgs args;
    serve_on_test_device(args);
    args.model_path = path;
    args.skip_tokenizer_init = true;
    args.chunked_prefill_size = chunk;
    args.max_total_tokens = 1024;
    args.page_size = 4;
    args.enable_deterministic_inference = true;
    args.cuda_graph_bs = "1,4";
    auto served = create_engine({.args = args, .model_path = path, .on_weights_progress = {}});
    EXPECT_TRUE(served.ok()) << served.status().message();
    return std::move(served).value();
  }
  ServedModel serve(int chunk = 2048) const { return serve(chunk, folder_.string()); }

  static GenerateRequest of_rows(int tokens, std::vector<int32_t> places = {}) {
    static int requests = 0;
    GenerateRequest request = greedy_request("places-" + std::to_string(++requests), Ids(tokens, 0), 12);
    request.return_logprob = true;
    std::mt19937 random(tokens);
    std::normal_distribution<float> normal;
    Rows rows(tokens * kHidden);
    for (float& x : rows) x = normal(random);
    request.input_embeds = std::make_shared<const Rows>(std::move(rows));
    if (!places.empty()) request.position_ids = std::make_shared<const std::vector<int32_t>>(std::move(places));
    return request;
  }

  // All axes count from `first`.
  static std::vector<int32_t> counted(int tokens, int first = 0) {
    std::vector<int32_t> out;
    for (int axis = 0; axis < 3; ++axis) {
      for (int i = 0; i < tokens; ++i) out.push_back(first + i);
    }
    return out;
  }
  // Text, a picture of 4 x 5 tokens from the eighth on, text.
  static std::vector<int32_t> with_picture(int tokens) {
    std::vector<int32_t> out(3 * tokens);
    for (int axis = 0; axis < 3; ++axis) {
      for (int i = 0; i < tokens; ++i) {
        const int cell = i - 8, row = 8 + cell / 5, column = 8 + cell % 5;
        const bool in_picture = cell >= 0 && cell < 20;
        out[axis * tokens + i] = i < 8 ? i : in_picture ? (axis == 0 ? 8 : axis == 1 ? row : column) : i - 20 + 5;
      }
    }
    return out;
  }

  std::filesystem::path folder_;
};

TEST_P(PositionIdsServing, EqualOnesGiveTheBitsOfNone) {
  auto served = serve();
  EXPECT_TRUE(served.engine->info().takes_position_ids);
  const Answer expected = ask(served, {of_rows(40)}).front(), answer = ask(served, {of_rows(40, counted(40))}).front();
  EXPECT_EQ(answer, expected);
  EXPECT_EQ(answer.logprobs, expected.logprobs);
}

// A rotation sees differences only, so that all may begin elsewhere: also what follows the prompt.
TEST_P(PositionIdsServing, WhatFollowsThePromptGoesOnBehindIt) {
  auto served = serve();
  const Answer expected = ask(served, {of_rows(40)}).front(),
               moved = ask(served, {of_rows(40, counted(40, 30))}).front();
  EXPECT_EQ(moved, expected);
  ASSERT_EQ(moved.logprobs.size(), expected.logprobs.size());
  for (size_t i = 0; i < moved.logprobs.size(); ++i) EXPECT_NEAR(moved.logprobs[i], expected.logprobs[i], 1e-4) << i;
}

TEST_P(PositionIdsServing, OthersAreThoseOfTheRequest) {
  auto served = serve(), chunked = serve(/*chunk=*/7);
  const Answer plain = ask(served, {of_rows(40)}).front();
  const Answer picture = ask(served, {of_rows(40, with_picture(40))}).front();
  EXPECT_NE(picture.logprobs, plain.logprobs);
  // In chunks, beside rows that stand where they are counted, and from the cache.
  const auto together = ask(chunked, std::vector{of_rows(40), of_rows(40, with_picture(40)), of_rows(33)});
  EXPECT_EQ(together[0].logprobs, plain.logprobs);
  EXPECT_EQ(together[1].logprobs, picture.logprobs);
  const Answer again = ask(served, {of_rows(40, with_picture(40))}).front();
  EXPECT_EQ(again.logprobs, picture.logprobs);
  EXPECT_EQ(again.cached_tokens, 39);
  // Equal rows that stand elsewhere from the 13th on share what is before.
  std::vector<int32_t> other = with_picture(40);
  other[12] += 1;
  EXPECT_EQ(ask(served, {of_rows(40, other)}).front().cached_tokens, 12);
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
}

TEST_P(PositionIdsServing, WhatDoesNotFitEndsThere) {
  auto served = serve();  // a context of 128 tokens
  const Answer answer = ask(served, {of_rows(40, counted(40, 80))}).front();
  EXPECT_EQ(answer.ids.size(), 8u);
}

TEST_P(PositionIdsServing, RefusesWhatCannotBe) {
  auto served = serve();
  const auto refusal = [](ServedModel& by, GenerateRequest request) {
    return by.engine->submit(std::move(request), [](const OutputDelta&) {});
  };
  EXPECT_NE(refusal(served, of_rows(40, counted(39))).message().find("three lists"), std::string::npos);
  EXPECT_NE(refusal(served, of_rows(40, counted(40, 89))).message().find("has 128"), std::string::npos);
  GenerateRequest of_ids = of_rows(4, counted(4));
  of_ids.input_embeds = nullptr;
  EXPECT_NE(refusal(served, of_ids).message().find("go with input_embeds"), std::string::npos);
  auto without = serve(2048, "tests/golden/families/llama");
  const Status status = refusal(without, of_rows(4, counted(4)));
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.field(), "position_ids");
}

INSTANTIATE_TEST_SUITE_P(Interleaved, PositionIdsServing, testing::Values(false, true));

}  // namespace
}  // namespace warpweave
