// Draft heads through the engine: a model's own layers (NEXTN) and EAGLE3. Texts are those without, whatever the head
// guesses, and a head that is right is believed. What cannot be served is refused by name.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/speculation.h"
#include "engine/testing/asking.h"
#include "engine/testing/serving_device.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;

const std::string kDrafts = "tests/golden/drafts/";

ServerArgs args_of(const std::string& model) {
  ServerArgs args;
  serve_on_test_device(args);
  args.model_path = model;
  args.skip_tokenizer_init = true;
  args.threads = 1;
  args.chunked_prefill_size = 24;
  args.max_total_tokens = 2048;
  return args;
}

Result<ServedModel> try_serve(const ServerArgs& args) {
  return create_engine({.args = args, .model_path = args.model_path, .on_weights_progress = {}});
}

ServedModel serve(const ServerArgs& args) {
  auto served = try_serve(args);
  EXPECT_TRUE(served.ok()) << served.status().message();
  return served.ok() ? std::move(served).value() : ServedModel();
}

std::vector<GenerateRequest> questions() {
  std::vector<GenerateRequest> out;
  for (int i = 0; i < 6; ++i) {
    GenerateRequest request = greedy_request(std::to_string(i), some_ids(5 + 11 * i, i), 40);
    request.sampling.temperature = i % 3 == 1 ? 0.9f : 0;
    request.sampling.seed = 17 + i;
    request.sampling.repetition_penalty = i == 4 ? 1.2f : 1;
    request.return_logprob = i % 2 == 0;
    out.push_back(request);
  }
  return out;
}

struct Setting {
  const char* algorithm;
  const char* folder;
  int page_size, topk;
  bool overlap = true;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << s.algorithm << " " << s.folder << " page " << s.page_size << " topk " << s.topk;
}

class HeadServing : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  }
  static bool own_folder() { return std::string(GetParam().folder) == "eagle3"; }
  static ServerArgs plain() {
    ServerArgs args = args_of(kDrafts + GetParam().folder + (own_folder() ? "/target" : ""));
    args.page_size = GetParam().page_size;
    args.disable_overlap_schedule = !GetParam().overlap;
    return args;
  }
  static ServerArgs speculating() {
    ServerArgs args = plain();
    args.speculative_algorithm = GetParam().algorithm;
    if (own_folder()) args.speculative_draft_model_path = kDrafts + GetParam().folder;
    args.speculative_num_steps = 3;
    args.speculative_eagle_topk = GetParam().topk;
    if (GetParam().topk > 1) args.speculative_num_draft_tokens = 9;
    return args;
  }
};

TEST_P(HeadServing, SaysWhatIsSaidWithout) {
  ServedModel without = serve(plain());
  const auto asked = questions();
  const auto expected = ask(without, asked);
  ServedModel served = serve(speculating());
  for (int turn = 0; turn < 2; ++turn) EXPECT_EQ(ask(served, asked), expected) << turn;
  EXPECT_GT(served.engine->stats().speculation->draft_tokens, 300u);
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
}

TEST_P(HeadServing, SaysTheSameFromAPoolThatIsTooSmall) {
  ServedModel without = serve(plain());
  const auto asked = questions();
  const auto expected = ask(without, asked);
  ServerArgs args = speculating();
  args.max_total_tokens = 192;
  args.schedule_conservativeness = 0.05;
  ServedModel served = serve(args);
  EXPECT_EQ(ask(served, asked), expected);
  EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
}

INSTANTIATE_TEST_SUITE_P(Heads, HeadServing,
                         testing::Values(Setting{"NEXTN", "nextn-deepseek-v3", 1, 1},
                                         Setting{"EAGLE", "nextn-deepseek-v3", 16, 3},
                                         Setting{"NEXTN", "nextn-glm4-moe", 64, 1, false},
                                         Setting{"NEXTN", "nextn-glm4-moe", 1, 4},
                                         Setting{"NEXTN", "nextn-qwen3-next", 16, 1},
                                         Setting{"EAGLE", "nextn-qwen3-next", 4, 3, false},
                                         Setting{"NEXTN", "gguf-nextn-qwen3_5", 16, 3},
                                         Setting{"EAGLE3", "eagle3", 1, 1}, Setting{"EAGLE3", "eagle3", 16, 3},
                                         Setting{"EAGLE3", "eagle3", 64, 2, false}));

#ifdef WW_TEST_ON_GPU
// One request at a time, so that both ways multiply as many rows: the kernels are the same, and so are their bits.
TEST_P(HeadServing, StepsInGraphsGiveTheTextsOfStepsLaunchedOneByOne) {
  ServerArgs args = speculating();
  args.dtype = "bfloat16";
  ServedModel served = serve(args);
  args.disable_cuda_graph = true;
  ServedModel plain = serve(args);
  for (GenerateRequest request : questions()) {
    request.return_logprob = false;
    const std::vector<GenerateRequest> alone = {request};
    EXPECT_EQ(ask(served, alone), ask(plain, alone)) << request.rid;
  }
  const double by_graphs = served.engine->stats().speculation->accept_length();
  EXPECT_NEAR(by_graphs, plain.engine->stats().speculation->accept_length(), 0.1 * by_graphs);
}
#endif

// The tensors of a safetensors file, to be changed.
class Tensors {
 public:
  explicit Tensors(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    uint64_t size = 0;
    std::memcpy(&size, bytes_.data(), sizeof(size));
    begin_ = sizeof(size) + size;
    header_ = nlohmann::json::parse(bytes_.substr(sizeof(size), size));
  }
  const nlohmann::json& header() const { return header_; }
  std::span<uint16_t> bf16(const std::string& name) {
    const auto& offsets = header_.at(name).at("data_offsets");
    const size_t first = begin_ + offsets[0].get<size_t>(), last = begin_ + offsets[1].get<size_t>();
    return {reinterpret_cast<uint16_t*>(bytes_.data() + first), (last - first) / sizeof(uint16_t)};
  }
  void write(const std::string& file) const { std::ofstream(file, std::ios::binary) << bytes_; }

 private:
  std::string bytes_;
  size_t begin_ = 0;
  nlohmann::json header_;
};

constexpr uint16_t kOne = 0x3f80;  // in bfloat16

// A model in which no layer adds anything, so that the next token follows from the last one alone, with a layer that
// guesses from the same embedding: always right.
std::string right_model() {
  const std::string from = kDrafts + "nextn-deepseek-v3";
  const fs::path folder = fs::path(testing::TempDir()) / "right_nextn";
  fs::create_directories(folder);
  for (const char* file : {"config.json", "generation_config.json"}) {
    fs::copy_file(fs::path(from) / file, folder / file, fs::copy_options::overwrite_existing);
  }
  Tensors tensors(from + "/model.safetensors");
  for (const auto& [name, entry] : tensors.header().items()) {
    if (!name.ends_with("o_proj.weight") && !name.ends_with("down_proj.weight")) continue;
    for (uint16_t& value : tensors.bf16(name)) value = 0;
  }
  const std::string layer = "model.layers.3.";
  const auto fc = tensors.bf16(layer + "eh_proj.weight");
  const auto hidden = static_cast<size_t>(tensors.header()[layer + "eh_proj.weight"]["shape"][0]);
  for (size_t i = 0; i < fc.size(); ++i) fc[i] = i % (2 * hidden) == i / (2 * hidden) ? kOne : 0;
  for (uint16_t& value : tensors.bf16(layer + "enorm.weight")) value = kOne;
  const auto norm = tensors.bf16("model.norm.weight");
  std::copy(norm.begin(), norm.end(), tensors.bf16(layer + "shared_head.norm.weight").begin());
  tensors.write(folder / "model.safetensors");
  return folder;
}

TEST(RightHead, IsBelieved) {
  if (const std::string why = no_test_device(); !why.empty()) GTEST_SKIP() << why;
  ServerArgs args = args_of(right_model());
  ServedModel plain = serve(args);
  std::vector<GenerateRequest> asked;
  for (const GenerateRequest& request : questions()) {
    if (request.sampling.temperature == 0 && request.sampling.repetition_penalty == 1) asked.push_back(request);
  }
  args.speculative_algorithm = "NEXTN";
  args.speculative_num_steps = 3;
  for (const int topk : {1, 3}) {
    args.speculative_eagle_topk = topk;
    if (topk > 1) args.speculative_num_draft_tokens = 16;
    ServedModel served = serve(args);
    // One by one: a step that prefills, too, proposes nothing, and how many of those there are is a matter of timing.
    for (const GenerateRequest& request : asked) {
      const std::vector<GenerateRequest> alone = {request};
      EXPECT_EQ(ask(served, alone), ask(plain, alone)) << request.rid;
    }
    EXPECT_GT(served.engine->stats().speculation->accept_length(), 3.5) << "of 4, less at the end";
  }
}

#ifndef WW_TEST_ON_GPU
// Lengths that follow what was measured change no text; heads of random numbers are soon left alone.
TEST(AdaptiveHead, GuessesWhatPays) {
  for (const bool right : {true, false}) {
    ServerArgs args = args_of(right ? right_model() : kDrafts + "nextn-deepseek-v3");
    ServedModel plain = serve(args);
    std::vector<GenerateRequest> asked = questions();
    for (GenerateRequest& request : asked) request.sampling.temperature = 0;
    const auto expected = ask(plain, asked);
    args.speculative_algorithm = "NEXTN";
    args.speculative_num_steps = 3;
    args.speculative_eagle_topk = 1;
    ServedModel fixed = serve(args);
    EXPECT_EQ(ask(fixed, asked), expected);
    args.speculative_adaptive = true;
    ServedModel served = serve(args);
    for (int turn = 0; turn < 3; ++turn) EXPECT_EQ(ask(served, asked), expected) << turn;
    const SpeculationCounts all = *fixed.engine->stats().speculation, some = *served.engine->stats().speculation;
    if (!right) {
      EXPECT_LT(some.draft_tokens, all.draft_tokens) << "in three times as many requests";
    }
    EXPECT_TRUE(served.engine->audit().ok()) << served.engine->audit().message();
  }
}

Status refusal(const ServerArgs& args) {
  const auto served = try_serve(args);
  EXPECT_FALSE(served.ok());
  return served.ok() ? Status() : served.status();
}

// The model has files of the same names.
TEST(HeadFlags, ErrorsOfItsFilesNameTheFlag) {
  const fs::path folder = fs::path(testing::TempDir()) / "damaged_files_head";
  const auto copy = [&](const char* name) {
    fs::copy_file(fs::path("models/tale-eagle") / name, folder / name,
                               fs::copy_options::overwrite_existing);
  };
  ServerArgs args = args_of("models/tale-llama");
  args.speculative_algorithm = "EAGLE";
  args.speculative_draft_model_path = folder;
  const auto expect_flag = [&](const char* what) {
    EXPECT_TRUE(refusal(args).message().starts_with("--speculative-draft-model-path: "))
        << what << ": " << refusal(args).message();
  };
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << std::string(100'000, '[');
  expect_flag("configuration");
  copy("config.json");
  std::ofstream(folder / "model.safetensors") << "short";
  expect_flag("weights");
  std::ifstream in("models/tale-eagle/model.safetensors", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const size_t name = bytes.find("fc.weight");
  ASSERT_NE(name, std::string::npos);
  bytes[name] = 'g';
  std::ofstream(folder / "model.safetensors", std::ios::binary) << bytes;
  expect_flag("a missing tensor");
}

TEST(HeadFlags, WhatDoesNotFitIsRefusedByName) {
  ServerArgs args = args_of("tests/golden/families/llama");
  args.speculative_algorithm = "NEXTN";
  EXPECT_EQ(refusal(args).field(), "--speculative-algorithm");
  EXPECT_NE(refusal(args).message().find("model.layers.2.eh_proj.weight"), std::string::npos)
      << refusal(args).message();
  for (const char* model : {"gguf-kimi-linear-moe", "gguf-glm4-moe"}) {  // without names of such layers; without them
    ServerArgs gguf = args_of(std::string("tests/golden/families/") + model);
    gguf.speculative_algorithm = "NEXTN";
    const Status refused = refusal(gguf);
    EXPECT_EQ(refused.field(), "--speculative-algorithm");
    EXPECT_NE(refused.message().find("eh_proj.weight is missing); GGUF files have it as blk.N.nextn"), std::string::npos) << refused.message();
  }
  for (const char* algorithm : {"EAGLE", "EAGLE3"}) {
    args.speculative_algorithm = algorithm;
    EXPECT_EQ(refusal(args).field(), "--speculative-draft-model-path");
  }
  args.speculative_draft_model_path = "tests/golden/families/llama";  // no such head
  EXPECT_EQ(refusal(args).field(), "--speculative-draft-model-path");
  args.speculative_draft_model_path = kDrafts + "eagle3";  // the target has two layers
  EXPECT_NE(refusal(args).message().find("eagle_aux_hidden_state_layer_ids"), std::string::npos)
      << refusal(args).message();
  args.model_path = kDrafts + "eagle3/target";
  args.speculative_token_map = "models/tale-llama/config.json";
  EXPECT_EQ(refusal(args).field(), "--speculative-token-map");
  args.speculative_algorithm = "EAGLE";
  EXPECT_NE(refusal(args).message().find("EAGLE3"), std::string::npos) << refusal(args).message();
  // Lengths are of chains, and of draft models.
  ServerArgs adaptive = args_of(kDrafts + "nextn-glm4-moe");
  adaptive.speculative_adaptive = true;
  EXPECT_EQ(refusal(adaptive).field(), "--speculative-adaptive");
  adaptive.speculative_algorithm = "NGRAM";
  EXPECT_EQ(refusal(adaptive).field(), "--speculative-adaptive");
  adaptive.speculative_algorithm = "NEXTN";
  adaptive.speculative_eagle_topk = 2;
  EXPECT_EQ(refusal(adaptive).field(), "--speculative-adaptive");
  // Blocks of few bits are multiplied beside bfloat16.
  ServerArgs blocks = args_of(kDrafts + "nextn-glm4-moe");
  blocks.speculative_algorithm = "NEXTN";
  blocks.dtype = "float32";
  blocks.speculative_draft_model_quantization = "int4";
  EXPECT_EQ(refusal(blocks).field(), "--speculative-draft-model-quantization");
  // Layers of another kind of model.
  ServerArgs other = args_of(kDrafts + "nextn-glm4-moe");
  other.speculative_algorithm = "NEXTN";
  other.speculative_draft_model_path = kDrafts + "nextn-deepseek-v3";
  EXPECT_EQ(refusal(other).field(), "--speculative-draft-model-path");
}

// Tokens of the head that are none of the model's.
TEST(HeadFlags, AMapBeyondTheVocabularyIsRefused) {
  const fs::path folder = fs::path(testing::TempDir()) / "wrong_d2t";
  fs::create_directories(folder);
  fs::copy_file(kDrafts + "eagle3/config.json", folder / "config.json", fs::copy_options::overwrite_existing);
  Tensors tensors(kDrafts + "eagle3/model.safetensors");
  tensors.bf16("d2t")[5 * 4] = 1000;  // the lowest bits of the sixth
  tensors.write(folder / "model.safetensors");
  ServerArgs args = args_of(kDrafts + "eagle3/target");
  args.speculative_algorithm = "EAGLE3";
  args.speculative_draft_model_path = folder;
  EXPECT_NE(refusal(args).message().find("d2t: token 5"), std::string::npos) << refusal(args).message();
}
#endif  // WW_TEST_ON_GPU

}  // namespace
}  // namespace warpweave
