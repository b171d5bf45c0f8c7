// Speculation is lossless: the texts of all kinds of requests are those without it, for each algorithm, page size, KV
// format and shape of drafts, from a cold and a warm prefix cache, and with a pool too small for all of them.
#include <cstring>
#include <filesystem>
#include <random>

#include "ask_tale.h"

namespace warpweave::speculation {
namespace {

// Skipped where the device of these tests is not.
template <typename S>
class OnTestDevice : public testing::TestWithParam<S> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  }
};

ServerArgs small_args(int page_size) {
  ServerArgs args;
  args.threads = 1;
  args.page_size = page_size;
  args.max_total_tokens = 4096;
  return args;
}

void set_algorithm(const std::string& algorithm, int topk, ServerArgs& args) {
  args.speculative_algorithm = algorithm;
  args.speculative_eagle_topk = topk;
  if (algorithm == "EAGLE") args.speculative_draft_model_path = "models/tale-eagle";
  if (algorithm == "STANDALONE") args.speculative_draft_model_path = "models/tale-draft";
}

struct Setting {
  const char* algorithm;
  int page_size;
  const char* kv_format;
  int topk;
  int draft_tokens = 0;      // 0: what is resolved
  bool overlap = true;
  int steps = 0;             // 0: what is resolved
  const char* backend = "";
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.algorithm << " page " << s.page_size << " kv " << s.kv_format << " topk " << s.topk
       << " steps " << s.steps << (s.overlap ? "" : " without overlap");
}

class SpeculationServing : public OnTestDevice<Setting> {
 protected:
  static ServerArgs plain_args() {
    ServerArgs args = small_args(GetParam().page_size);
    args.kv_cache_dtype = GetParam().kv_format;
    args.disable_overlap_schedule = !GetParam().overlap;
    args.chunked_prefill_size = 32;
    args.attention_backend = GetParam().backend;
    return args;
  }
  static Rounding rounding() { return {.of_kv = std::string(GetParam().kv_format) != "auto"}; }
  static ServerArgs speculating_args() {
    ServerArgs args = plain_args();
    set_algorithm(GetParam().algorithm, GetParam().topk, args);
    if (GetParam().steps > 0) args.speculative_num_steps = GetParam().steps;
    if (GetParam().draft_tokens > 0) args.speculative_num_draft_tokens = GetParam().draft_tokens;
    return args;
  }
};

TEST_P(SpeculationServing, SaysWhatIsSaidWithout) {
  ServedModel plain = serve(plain_args());
  const auto asked = questions(plain);
  const auto expected = ask(plain, asked);
  ServedModel served = serve(speculating_args());
  for (int turn = 0; turn < 2; ++turn) expect_same(ask(served, asked), expected, asked, rounding());
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  const EngineStats stats = served.engine->stats();
  ASSERT_TRUE(stats.speculation.has_value());
  EXPECT_GT(stats.speculation->accepted_tokens, 100u) << "else nothing was proven";
  EXPECT_LE(stats.speculation->accepted_tokens, stats.speculation->draft_tokens);
  EXPECT_FALSE(plain.engine->stats().speculation.has_value());
}

TEST_P(SpeculationServing, SaysTheSameFromAPoolThatIsTooSmall) {
  ServedModel plain = serve(plain_args());
  const auto asked = questions(plain, 40);
  const auto expected = ask(plain, asked);
  ServerArgs args = speculating_args();
  args.max_total_tokens = 320;
  args.schedule_conservativeness = 0.05;
  ServedModel served = serve(args);
  expect_same(ask(served, asked), expected, asked, rounding());
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  if (GetParam().page_size == 1) {
    EXPECT_GT(served.engine->stats().retracted_reqs_total, 0u);
  }
}

#ifdef WW_TEST_ON_GPU
INSTANTIATE_TEST_SUITE_P(Ngram, SpeculationServing,
                         testing::Values(Setting{"NGRAM", 1, "auto", 10}, Setting{"NGRAM", 16, "auto", 4, 24},
                                         Setting{"NGRAM", 64, "auto", 1}, Setting{"NGRAM", 16, "auto", 10, 0, false}));

INSTANTIATE_TEST_SUITE_P(Standalone, SpeculationServing,
                         testing::Values(Setting{"STANDALONE", 1, "auto", 1, 0, true, 4},
                                         Setting{"STANDALONE", 16, "auto", 4, 8, true, 5},
                                         Setting{"STANDALONE", 64, "auto", 1, 0, false, 7},
                                         Setting{"STANDALONE", 64, "auto", 3, 16, true, 4}));

INSTANTIATE_TEST_SUITE_P(Eagle, SpeculationServing,
                         testing::Values(Setting{"EAGLE", 1, "auto", 1, 0, true, 4},
                                         Setting{"EAGLE", 16, "auto", 4, 8, true, 5},
                                         Setting{"EAGLE", 64, "auto", 1, 0, false, 7},
                                         Setting{"EAGLE", 64, "auto", 3, 16, true, 4},
                                         Setting{"EAGLE", 1, "auto", 8, 40, true, 3},
                                         Setting{"EAGLE", 16, "auto", 4, 8, true, 3, "torch_native"},
                                         Setting{"EAGLE", 16, "auto", 1, 0, true, 1}));
#else
INSTANTIATE_TEST_SUITE_P(Ngram, SpeculationServing,
                         testing::Values(Setting{"NGRAM", 1, "auto", 10}, Setting{"NGRAM", 16, "auto", 4, 24},
                                         Setting{"NGRAM", 64, "auto", 1}, Setting{"NGRAM", 1, "fp8_e4m3", 1},
                                         Setting{"NGRAM", 16, "fp8_e5m2", 10, 0, false},
                                         Setting{"NGRAM", 64, "fp4_e2m1", 10}, Setting{"NGRAM", 16, "bf16", 10}));

INSTANTIATE_TEST_SUITE_P(Standalone, SpeculationServing,
                         testing::Values(Setting{"STANDALONE", 1, "auto", 1, 0, true, 4},
                                         Setting{"STANDALONE", 16, "auto", 4, 8, true, 5},
                                         Setting{"STANDALONE", 64, "fp8_e4m3", 3, 16, true, 4},
                                         Setting{"STANDALONE", 1, "fp4_e2m1", 2, 4},
                                         Setting{"STANDALONE", 16, "bf16", 1, 0, false, 1},
                                         Setting{"STANDALONE", 64, "fp8_e5m2", 1, 0, true, 7}));

INSTANTIATE_TEST_SUITE_P(
    Eagle, SpeculationServing,
    testing::Values(Setting{"EAGLE", 1, "auto", 1, 0, true, 4}, Setting{"EAGLE", 16, "auto", 4, 8, true, 5},
                    Setting{"EAGLE", 64, "fp8_e4m3", 3, 16, true, 4}, Setting{"EAGLE", 1, "fp4_e2m1", 2, 4},
                    Setting{"EAGLE", 16, "bf16", 1, 0, false, 1}, Setting{"EAGLE", 64, "fp8_e5m2", 1, 0, true, 7},
                    Setting{"EAGLE", 1, "bf16", 8, 40, true, 3},
                    Setting{"EAGLE", 16, "auto", 4, 8, true, 3, "torch_native"}));
#endif  // WW_TEST_ON_GPU

#ifdef WW_TEST_ON_GPU
struct Bf16Setting {
  const char* algorithm;
  int page_size, topk;
  const char *prefill = "", *decode = "", *mode = "prefill", *draft = "";  // backends, and whose verifies
};
void PrintTo(const Bf16Setting& s, std::ostream* out) {
  *out << s.algorithm << " page " << s.page_size << " topk " << s.topk << " " << s.prefill << " " << s.decode << " by "
       << s.mode << " drafts " << s.draft;
}
class Bfloat16 : public OnTestDevice<Bf16Setting> {
 protected:
  static ServerArgs args() {
    ServerArgs args = small_args(GetParam().page_size);
    args.dtype = "bfloat16";
    args.prefill_attention_backend = GetParam().prefill;
    args.decode_attention_backend = GetParam().decode;
    return args;
  }
  static ServerArgs speculating(ServerArgs args) {
    set_algorithm(GetParam().algorithm, GetParam().topk, args);
    args.speculative_attention_mode = GetParam().mode;
    args.speculative_draft_attention_backend = GetParam().draft;
    if (args.speculative_algorithm != "NGRAM") args.speculative_num_steps = 4;
    return args;
  }
  static std::vector<GenerateRequest> greedy(int top_logprobs) {
    std::vector<GenerateRequest> out;
    for (const Ids& prompt : golden_prompts()) {
      GenerateRequest& request = out.emplace_back();
      request.rid = std::to_string(out.size());
      request.input_ids = prompt;
      request.sampling.temperature = 0;
      request.sampling.max_new_tokens = 96;
      request.return_logprob = top_logprobs > 0;
      request.top_logprobs_num = top_logprobs;
    }
    return out;
  }
};

// How many tokens two answers begin alike; where they part, two of the expected answer's logits are equal to rounding.
size_t expect_parting_at_a_tie(const Answer& got, const Answer& expected) {
  const auto same = static_cast<size_t>(
      std::mismatch(got.ids.begin(), got.ids.end(), expected.ids.begin(), expected.ids.end()).first - got.ids.begin());
  if (same < expected.ids.size()) {
    EXPECT_LT(expected.gaps.at(same), 0.1f) << "token " << same;
  }
  return same;
}

TEST_P(Bfloat16, TextsPartOnlyWhereTwoLogitsAreEqualToRounding) {
  ServedModel plain = serve(args());
  const auto expected = ask(plain, greedy(2));
  ServedModel served = serve(speculating(args()));
  const auto got = ask(served, greedy(0));
  size_t agreed = 0, all = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    ASSERT_TRUE(got[i].finish.error.ok()) << got[i].finish.error.message();
    agreed += expect_parting_at_a_tie(got[i], expected[i]);
    all += expected[i].ids.size();
  }
  EXPECT_GT(agreed, all / 3);
  EXPECT_GT(served.engine->stats().speculation->accepted_tokens, 10u);
}

// Trees, too: a node adds up the keys of its path as decode adds up those of a text.
TEST_P(Bfloat16, TextsAreTheSameInDeterministicMode) {
  if (std::string(GetParam().prefill) != GetParam().decode) GTEST_SKIP() << "two backends round differently";
  for (const char* backend : {GetParam().prefill, GetParam().draft}) {
    if (std::string(backend) == "triton") GTEST_SKIP() << "refused: it does not claim the same bits";
  }
  ServerArgs deterministic = args();
  deterministic.enable_deterministic_inference = true;
  ServedModel plain = serve(deterministic);
  const auto expected = ask(plain, greedy(0));
  ServedModel served = serve(speculating(deterministic));
  const auto got = ask(served, greedy(0));
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].ids, expected[i].ids) << "request " << i;
}

// One request at a time, so that both ways multiply as many rows: the kernels are the same, and so are their bits. triton
// alone cuts K and V otherwise in a graph, which has to fit every length that it may see.
TEST_P(Bfloat16, StepsInGraphsGiveTheTextsOfStepsLaunchedOneByOne) {
  ServerArgs one_by_one = speculating(args());
  one_by_one.disable_cuda_graph = true;
  ServedModel plain = serve(one_by_one);
  ServedModel served = serve(speculating(args()));
  const std::string mode = GetParam().mode;
  const bool same_cuts = std::string(mode == "prefill" ? GetParam().prefill : GetParam().decode) != "triton";
  const std::vector<GenerateRequest> asked = greedy(0), asked_of_plain = greedy(same_cuts ? 0 : 2);
  for (size_t i = 0; i < asked.size(); ++i) {
    SCOPED_TRACE("request " + std::to_string(i));
    const auto got = ask(served, {asked[i]}), expected = ask(plain, {asked_of_plain[i]});
    ASSERT_TRUE(got[0].finish.error.ok()) << got[0].finish.error.message();
    if (same_cuts) {
      EXPECT_EQ(got[0].ids, expected[0].ids);
    } else {
      expect_parting_at_a_tie(got[0], expected[0]);
    }
  }
  // GEMMs of drafts may be chosen otherwise in a graph, which changes a guess at most where two are almost as likely.
  const double by_graphs = served.engine->stats().speculation->accept_length();
  EXPECT_NEAR(by_graphs, plain.engine->stats().speculation->accept_length(), 0.1 * by_graphs);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, Bfloat16,
                         testing::Values(Bf16Setting{"NGRAM", 16, 4}, Bf16Setting{"STANDALONE", 1, 1},
                                         Bf16Setting{"EAGLE", 1, 4}, Bf16Setting{"EAGLE", 16, 1},
                                         Bf16Setting{"EAGLE", 64, 4}));
INSTANTIATE_TEST_SUITE_P(Backends, Bfloat16,
                         testing::Values(Bf16Setting{"EAGLE", 16, 4, "flashinfer", "fa3", "decode"},
                                         Bf16Setting{"EAGLE", 16, 4, "flashinfer", "fa3", "prefill"},
                                         Bf16Setting{"EAGLE", 16, 4, "triton", "flashinfer", "decode", "fa3"},
                                         Bf16Setting{"EAGLE", 16, 4, "triton", "triton", "prefill", "triton"},
                                         Bf16Setting{"EAGLE", 1, 1, "torch_native", "flashinfer", "prefill", "triton"},
                                         Bf16Setting{"STANDALONE", 1, 3, "", "", "prefill", "triton"},
                                         Bf16Setting{"EAGLE", 64, 4, "flashinfer", "flashinfer", "prefill", "fa3"},
                                         Bf16Setting{"NGRAM", 16, 4, "torch_native", "torch_native"}));
#endif  // WW_TEST_ON_GPU

// Drafts that are wrong on purpose: copies of the head whose numbers are none, or any.
enum class Damage { nan, noise };
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
