// Prompts whose rows stand at three positions (M-RoPE): equal ones change nothing, others are the request's own, in
// chunks, in graphs, in the prefix cache and with guesses that are checked.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/testing/asking.h"
#include "engine/testing/serving_device.h"

namespace warpweave {
namespace {

constexpr int kHidden = 32;
using Rows = std::vector<float>;

struct Family {
  const char* name;
  bool interleaved;             // Qwen3-VL and later; Qwen2-VL: not
  bool recurrent = false;       // chunks round otherwise, and cached prefixes end where a state was kept
  bool windows = false;         // of 8 tokens
};
void PrintTo(const Family& family, std::ostream* out) {
  *out << family.name << (family.interleaved ? ", interleaved" : "");
}

// The models of the family tests, with sections in their rotation.
class PositionIdsServing : public testing::TestWithParam<Family> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
    namespace fs = std::filesystem;
    const fs::path of_family = family_folder();
    folder_ = fs::path(testing::TempDir()) / fmt::format("mrope_{}_{}", GetParam().name, GetParam().interleaved);
    fs::create_directories(folder_);
    const auto options = fs::copy_options::overwrite_existing;
    for (const char* file : {"generation_config.json", "model.safetensors"}) {
      fs::copy_file(of_family / file, folder_ / file, options);
    }
    nlohmann::json config = nlohmann::json::parse(std::ifstream(of_family / "config.json"));
    nlohmann::json& rope = config["rope_parameters"];
    // A head of 16 dimensions has 8 frequencies, or a part of them.
    if (rope.value("partial_rotary_factor", 1.0) < 1) {
      rope["mrope_section"] = {1, 1, 0};
    } else {
      rope["mrope_section"] = {2, 3, 3};
    }
    rope["mrope_interleaved"] = GetParam().interleaved;
    std::ofstream(folder_ / "config.json") << config;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string family_folder() { return std::string("tests/golden/families/") + GetParam().name; }

  ServedModel serve(int chunk, const std::string& path, const std::string& algorithm = "", int branches = 1) const {
    ServerArgs args;
    serve_on_test_device(args);
    args.model_path = path;
    args.skip_tokenizer_init = true;
    args.chunked_prefill_size = GetParam().recurrent ? std::max(chunk, 64) : chunk;  // deterministic mode takes no less
    args.max_total_tokens = 1024;
    args.page_size = 4;
    args.enable_deterministic_inference = true;
    args.cuda_graph_bs = "1,4";
    args.speculative_algorithm = algorithm;
    if (!algorithm.empty()) args.speculative_eagle_topk = branches;
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

  // The same text, with the same bits where no layer is recurrent.
  static void expect_same(const Answer& got, const Answer& expected, double tolerance) {
    EXPECT_EQ(got.ids, expected.ids);
    ASSERT_EQ(got.logprobs.size(), expected.logprobs.size());
    for (size_t i = 0; i < got.logprobs.size(); ++i) EXPECT_NEAR(got.logprobs[i], expected.logprobs[i], tolerance) << i;
  }
  static void expect_same(const Answer& got, const Answer& expected) {
    expect_same(got, expected, GetParam().recurrent ? 1e-4 : 0);
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
  expect_same(moved, expected, 1e-4);
}

TEST_P(PositionIdsServing, OthersAreThoseOfTheRequest) {
  auto served = serve(), chunked = serve(/*chunk=*/7);
  const Answer plain = ask(served, {of_rows(40)}).front();
  const Answer picture = ask(served, {of_rows(40, with_picture(40))}).front();
  EXPECT_NE(picture.logprobs, plain.logprobs);
  // In chunks, beside rows that stand where they are counted, and from the cache.
  const auto together = ask(chunked, std::vector{of_rows(40), of_rows(40, with_picture(40)), of_rows(33)});
  expect_same(together[0], plain);
  expect_same(together[1], picture);
  const Answer again = ask(served, {of_rows(40, with_picture(40))}).front();
  expect_same(again, picture);
  if (GetParam().recurrent) return;
  EXPECT_EQ(again.cached_tokens, 39);
  // Equal rows that stand elsewhere from the 13th on share what is before.
  std::vector<int32_t> other = with_picture(40);
  other[12] += 1;
  EXPECT_EQ(ask(served, {of_rows(40, other)}).front().cached_tokens, 12);
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
}

// Guesses, chains and trees, stand where the tokens would that they guess.
TEST_P(PositionIdsServing, CheckedGuessesChangeNoText) {
  auto plain = serve();
#ifdef WW_TEST_ON_GPU
  auto refusing = serve(7, folder_.string(), "NGRAM");
  EXPECT_FALSE(refusing.engine->info().takes_position_ids);
  GTEST_SKIP() << "not with speculation on GPUs";
#endif
  const auto asked = [] {
    std::vector<GenerateRequest> out{of_rows(40, with_picture(40)), of_rows(33), of_rows(29, with_picture(29))};
    for (GenerateRequest& request : out) request.sampling.max_new_tokens = 48;
    return out;
  };
  const auto expected = ask(plain, asked());
  for (const int branches : {1, 3}) {
    if (GetParam().windows && branches > 1) continue;  // refused below
    auto guessing = serve(7, folder_.string(), "NGRAM", branches);
    for (int round = 0; round < 2; ++round) {  // what was answered in the first is guessed in the second
      const auto got = ask(guessing, asked());
      for (size_t i = 0; i < expected.size(); ++i) {
        SCOPED_TRACE(fmt::format("request {}, round {}, {} branches", i, round, branches));
        expect_same(got[i], expected[i], 1e-4);
      }
    }
    EXPECT_GT(guessing.engine->stats().speculation->accepted_tokens, 30u);
    EXPECT_TRUE(guessing.engine->audit().ok()) << guessing.engine->audit().message();
  }
}

// A node sees all of its ancestors, whatever a layer's window.
TEST_P(PositionIdsServing, TreesDeeperThanAWindowAreRefused) {
  if (!GetParam().windows) GTEST_SKIP() << "no windows";
  ServerArgs args;
  serve_on_test_device(args);
  args.model_path = folder_.string();
  args.skip_tokenizer_init = true;
  args.speculative_algorithm = "NGRAM";
  args.speculative_eagle_topk = 2;
  const auto start = [&](int draft_tokens) {
    args.speculative_num_draft_tokens = draft_tokens;
    return create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {}}).status();
  };
  EXPECT_EQ(start(9).field(), "--speculative-eagle-topk");
  EXPECT_TRUE(start(8).ok()) << start(8).message();
  args.speculative_eagle_topk = 1;
  EXPECT_TRUE(start(9).ok()) << start(9).message();
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
  auto without = serve(2048, family_folder());
  const Status status = refusal(without, of_rows(4, counted(4)));
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_EQ(status.field(), "position_ids");
}

INSTANTIATE_TEST_SUITE_P(Families, PositionIdsServing,
                         testing::Values(Family{"llama", false}, Family{"llama", true}, Family{"qwen2", false, false, true},
                                         Family{"qwen3", true}, Family{"qwen3-moe", true},
                                         Family{"qwen3_5", true, true}));

}  // namespace
}  // namespace warpweave
