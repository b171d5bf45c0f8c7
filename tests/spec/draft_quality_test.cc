// Good drafts and bad ones, rounded, mapped and of adapted lengths, for one request and for many: what is guessed changes, the text
// does not. Thresholds, which are lossy by choice, keep more of them.
#include <cstring>
#include <filesystem>
#include <random>

#include "ask_tale.h"

namespace warpweave::speculation {
namespace {

// Drafts that are wrong on purpose: copies of the head whose numbers are none, or any.
enum class Damage { nan,
                    noise };
std::string damaged_head(Damage damage) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(testing::TempDir()) / (damage == Damage::nan ? "nan_head" : "noise_head");
  fs::create_directories(folder);
  fs::copy_file("models/tale-eagle/config.json", folder / "config.json", fs::copy_options::overwrite_existing);
  std::ifstream in("models/tale-eagle/model.safetensors", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::mt19937 rng(9);
  for (size_t i = sizeof(header) + header; i + 1 < bytes.size(); i += 2) {
    const uint16_t value =
        damage == Damage::nan ? 0x7fc0 : static_cast<uint16_t>(0x3c00 + rng() % 0x200 + (rng() % 2 << 15));
    std::memcpy(bytes.data() + i, &value, sizeof(value));
  }
  std::ofstream(folder / "model.safetensors", std::ios::binary) << bytes;
  return folder;
}

TEST(WrongDrafts, ChangeHowLongItTakesAndNothingElse) {
  if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  ServerArgs args = small_args(16);
  ServedModel plain = serve(args);
  const auto asked = questions(plain);
  const auto expected = ask(plain, asked);
  args.speculative_algorithm = "EAGLE";
  for (const Damage damage : {Damage::nan, Damage::noise}) {
    for (const int topk : {1, 4}) {
      args.speculative_draft_model_path = damaged_head(damage);
      args.speculative_num_steps = 4;
      args.speculative_eagle_topk = topk;
      ServedModel served = serve(args);
      expect_same(ask(served, asked), expected, asked);
      const SpeculationCounts counts = *served.engine->stats().speculation;
      EXPECT_GT(counts.draft_tokens, 500u);
      EXPECT_LT(counts.accept_length(), 1.2) << "such drafts are right by chance only";
    }
  }
  // In 16 bits, which a GPU rounds to 8 where they can be.
  args.dtype = "bfloat16";
  args.speculative_draft_model_path = damaged_head(Damage::nan);
  ServedModel served = serve(args);
  EXPECT_EQ(ask(served, asked).size(), asked.size());
}

// Each request of a step with guesses of its own, or all with as many, where steps overlap while none are made and
// the draft model catches up: requests fall asleep, and the text is the same. GPUs have the second rule in any case.
class AdaptiveLengths : public testing::TestWithParam<bool> {};

TEST_P(AdaptiveLengths, ChangeNoText) {
  if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  for (const char* algorithm : {"EAGLE", "STANDALONE"}) {
    ServerArgs args = small_args(16);
    args.chunked_prefill_size = 32;
    ServedModel plain = serve(args);
    const auto asked = questions(plain);
    const auto expected = ask(plain, asked);
    set_algorithm(algorithm, 1, args);
    args.speculative_num_steps = 3;
    args.speculative_adaptive = true;
    ServedModel served = serve(args, /*whole_batch_lengths=*/GetParam());
    for (int turn = 0; turn < 6; ++turn) {
      SCOPED_TRACE(std::string(algorithm) + ", turn " + std::to_string(turn));
      expect_same(ask(served, asked), expected, asked);
      const std::vector<GenerateRequest> one = {asked[turn]};
      expect_same(ask(served, one), {expected[turn]}, one);
    }
    const SpeculationCounts counts = *served.engine->stats().speculation;
    EXPECT_GT(counts.draft_tokens, 0u);
    EXPECT_LT(counts.draft_tokens, 3 * counts.verify_steps) << "some steps went without guesses";
    EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, AdaptiveLengths, testing::Bool(),
                         [](const auto& info) { return info.param ? "OfWholeBatches" : "OfEachRequest"; });

// Half of the tokens may be guessed: fewer guesses are right, and the text is the same.
TEST(TokenMap, ChangesWhatIsGuessedAndNothingElse) {
  if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  ServerArgs args = small_args(16);
  ServedModel plain = serve(args);
  const auto asked = questions(plain);
  const auto expected = ask(plain, asked);
  const std::string map = testing::TempDir() + "/even_tokens.json";
  nlohmann::json ids;
  for (int id = 0; id < plain.engine->info().vocab_size; id += 2) ids.push_back(id);
  std::ofstream(map) << ids;
  for (const int topk : {1, 4}) {
    set_algorithm("EAGLE", topk, args);
    args.speculative_num_steps = 3;
    double accepted[2] = {};
    for (const bool mapped : {false, true}) {
      args.speculative_token_map = mapped ? map : "";
      ServedModel served = serve(args);
      expect_same(ask(served, asked), expected, asked);
      accepted[mapped] = served.engine->stats().speculation->accept_length();
    }
    EXPECT_GT(accepted[true], 1.05) << "the guessed columns stand for their tokens";
    EXPECT_LT(accepted[true], accepted[false]);
  }
}

TEST(TokenMap, IsRefusedWhereItMeansNothing) {
  ServerArgs args = small_args(16);
  args.model_path = "models/tale-llama";
  args.device = "cpu";
  args.speculative_token_map = "models/tale-llama/config.json";
  const auto refusal = [&] {
    const auto served = create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {}});
    EXPECT_FALSE(served.ok());
    return served.ok() ? Status() : served.status();
  };
  EXPECT_EQ(refusal().field(), "--speculative-token-map");
  for (const char* algorithm : {"STANDALONE", "NGRAM"}) {
    args.speculative_draft_model_path.clear();
    set_algorithm(algorithm, 1, args);
    EXPECT_EQ(refusal().field(), "--speculative-token-map") << algorithm;
  }
  set_algorithm("EAGLE", 1, args);
  EXPECT_NE(refusal().message().find("no list of token ids"), std::string::npos);
  args.speculative_token_map = "no/such/file";
  EXPECT_EQ(refusal().field(), "--speculative-token-map");
}

// A draft model of fewer bits, or that sees less of the text: other guesses, the same text.
TEST(DraftModels, InEightBitsOrWithAWindowChangeNoText) {
  if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  ServedModel plain = serve(small_args(16));
  const auto asked = questions(plain);
  const auto expected = ask(plain, asked);
  for (const char* algorithm : {"EAGLE", "STANDALONE"}) {
    SCOPED_TRACE(algorithm);
    ServerArgs args = small_args(16);
    set_algorithm(algorithm, 1, args);
    args.speculative_num_steps = 3;
    const auto tokens_a_step = [&](const ServerArgs& with, size_t* weight_bytes = nullptr) {
      ServedModel served = serve(with);
      if (weight_bytes != nullptr) *weight_bytes = served.engine->info().weight_bytes;
      expect_same(ask(served, asked), expected, asked);
      return served.engine->stats().speculation->accept_length();
    };
    size_t whole_bytes = 0, rounded_bytes = 0;
    const double usual = tokens_a_step(args, &whole_bytes);
    ServerArgs rounded = args;
    rounded.speculative_draft_model_quantization = "fp8";
    EXPECT_GT(tokens_a_step(rounded, &rounded_bytes), 1 + 0.8 * (usual - 1));
#ifndef WW_TEST_ON_GPU  // where all weights are widened to float32
    EXPECT_NE(rounded_bytes, whole_bytes) << "they are other weights";
#endif
    ServerArgs windowed = args;
    windowed.speculative_draft_window_size = 1000;
    EXPECT_NEAR(tokens_a_step(windowed), usual, 0.1) << "it holds all of these texts";
    windowed.speculative_draft_window_size = 2;
    const double narrow = tokens_a_step(windowed);
    EXPECT_LT(narrow, usual);
    EXPECT_GT(narrow, 1.05);
  }
}

// GEMMs of more rows are other kernels, and leave partial sums.
TEST(DraftModels, GuessForManyRequestsNearlyAsForOne) {
  if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  ServerArgs args = small_args(16);
  set_algorithm("EAGLE", 1, args);
  args.speculative_num_steps = 3;
  args.dtype = "bfloat16";
  std::vector<GenerateRequest> asked;
  for (const Ids& prompt : golden_prompts()) {
    for (size_t left_out = 0; left_out < 7; ++left_out) {
      GenerateRequest& request = asked.emplace_back();
      request.rid = std::to_string(asked.size());
      request.input_ids.assign(prompt.begin() + left_out, prompt.end());
      request.sampling.temperature = 0;
      request.sampling.max_new_tokens = 40;
      request.sampling.ignore_eos = true;
    }
  }
  const auto tokens_a_step = [&](int at_once) {
    args.max_running_requests = at_once;
    ServedModel served = serve(args);
    for (const Answer& answer : ask(served, asked)) EXPECT_EQ(answer.ids.size(), 40u);
    return served.engine->stats().speculation->accept_length();
  };
  ASSERT_GE(asked.size(), 24u);
  const double of_one = tokens_a_step(1);
  EXPECT_GT(of_one, 1.8);
  EXPECT_GT(tokens_a_step(static_cast<int>(asked.size())), 1 + 0.75 * (of_one - 1));
}

// Lossy by choice: of texts that are drawn more guesses are kept, chains and trees; greedy ones stay what they are.
TEST(AcceptThresholds, KeepMoreGuessesOfDrawnTextsAndNoOtherOfGreedyOnes) {
  if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  for (const int topk : {1, 4}) {
    ServerArgs args = small_args(16);
    set_algorithm("EAGLE", topk, args);
    args.speculative_num_steps = 3;
    ServedModel lossless = serve(args);
    std::vector<GenerateRequest> greedy = questions(lossless), drawn = greedy;
    std::erase_if(greedy, [](const GenerateRequest& r) { return r.sampling.temperature > 0; });
    for (GenerateRequest& request : greedy) request.wait_for_prefix_of.clear();
    for (GenerateRequest& request : drawn) {
      request.sampling.temperature = 1;
      request.sampling.top_p = 0.95f;
      request.sampling.ignore_eos = true;
    }
    const auto expected = ask(lossless, greedy);
    ask(lossless, drawn);
    const double exact = lossless.engine->stats().speculation->accept_length();
    for (const bool single : {true, false}) {
      ServerArgs lossy = args;
      (single ? lossy.speculative_accept_threshold_single : lossy.speculative_accept_threshold_acc) = 0.1;
      ServedModel served = serve(lossy);
      expect_same(ask(served, greedy), expected, greedy);
      for (const Answer& answer : ask(served, drawn)) EXPECT_TRUE(answer.finish.error.ok());
      EXPECT_GT(served.engine->stats().speculation->accept_length(), exact + 0.1) << "topk " << topk << " " << single;
      EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
    }
  }
}

TEST(AcceptThresholds, NeedAnAlgorithm) {
  ServerArgs args = small_args(16);
  args.model_path = "models/tale-llama";
  args.device = "cpu";
  args.speculative_accept_threshold_acc = 0.5;
  const auto served = create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {}});
  EXPECT_FALSE(served.ok());
  EXPECT_EQ(served.status().field(), "--speculative-accept-threshold-acc");
}

// A draft model that is the model itself is always right: every guess for a greedy text is kept.
TEST(RightDrafts, AreAllKept) {
  if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  ServerArgs args = small_args(16);
  ServedModel plain = serve(args);
  std::vector<GenerateRequest> asked;
  for (GenerateRequest& request : questions(plain)) {
    const SamplingParams& sampling = request.sampling;
    const bool edited = sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 ||
                        !sampling.logit_bias.empty() || sampling.grammar != nullptr || sampling.min_new_tokens > 0;
    if (sampling.temperature == 0 && !edited) asked.push_back(request);
  }
  const auto expected = ask(plain, asked);
  args.speculative_algorithm = "STANDALONE";
  args.speculative_draft_model_path = "models/tale-llama";
  args.speculative_num_steps = 4;
  for (const int topk : {1, 3}) {
    args.speculative_eagle_topk = topk;
    if (topk > 1) args.speculative_num_draft_tokens = 13;
    ServedModel served = serve(args);
    expect_same(ask(served, asked), expected, asked);
    const SpeculationCounts counts = *served.engine->stats().speculation;
    EXPECT_GT(counts.accept_length(), 4.0) << "of 5, less where requests end";
  }
}

}  // namespace
}  // namespace warpweave::speculation
