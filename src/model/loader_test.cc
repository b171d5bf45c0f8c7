// Broken model folders are refused with the cause; sharded ones and older spellings load.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <nlohmann/json.hpp>

#include "model/build_decoder.h"
#include "model/gguf.h"
#include "model/gguf_config.h"
#include "model/model_bundle.h"
#include "model/testing/model_folder_testing.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class LoaderTest : public ModelFolderTest {
 protected:
  // Moves every other tensor of model.safetensors to a second shard.
  void make_shards();
};

void LoaderTest::make_shards() {
  const std::string file = read_file(folder_ / "model.safetensors");
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  const json header = json::parse(file.substr(8, header_bytes));
  json parts[2] = {json::object(), json::object()}, weight_map = json::object();
  std::string data[2];
  int i = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const int shard = i++ % 2;
    const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    parts[shard][name] = entry;
    parts[shard][name]["data_offsets"] = {data[shard].size(), data[shard].size() + end - begin};
    data[shard] += file.substr(8 + header_bytes + begin, end - begin);
    weight_map[name] = "part-" + std::to_string(shard) + ".safetensors";
  }
  for (int s : {0, 1}) {
    write_file(folder_ / ("part-" + std::to_string(s) + ".safetensors"),
               safetensors(parts[s].dump(), 0) + data[s]);
  }
  write_file(folder_ / "model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
  fs::remove(folder_ / "model.safetensors");
}

// What makes the weights of `bundle` into a model, as the engine does after it has opened them.
Status build(const ModelBundle& bundle) {
  ThreadTeam team(2);
  const BuildOptions options = {.dtype = DType::f32, .max_positions = 64, .progress = {}};
  return build_decoder(bundle.config, bundle.weights, options, team).status();
}

TEST_F(LoaderTest, WeightsThatAreCutWhileLoadingAreAnError) {
  for (const char* folder : {"llama", "gguf"}) {
    const fs::path copy = temporary_ / (std::string("cut-") + folder);
    fs::copy(std::string("tests/golden/families/") + folder, copy);
    fs::path weights;
    for (const auto& entry : fs::directory_iterator(copy)) {
      const fs::path extension = entry.path().extension();
      if (extension == ".safetensors" || extension == ".gguf") weights = entry.path();
    }
    const fs::path model = weights.extension() == ".gguf" ? weights : copy;
    const auto bundle = open_model_bundle(model, {.tokenizer_path = {}, .skip_tokenizer = true});
    ASSERT_TRUE(bundle.ok()) << bundle.status().message();
    fs::resize_file(weights, 4096);
    const Status status = build(*bundle);
    EXPECT_EQ(status.code(), StatusCode::data_loss);
    EXPECT_NE(status.message().find("changed while it was read"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(weights.filename()), std::string::npos) << status.message();
  }
}

TEST_F(LoaderTest, PipesInPlaceOfFilesAreRefusedAtOnce) {
  for (const char* name : {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json",
                           "tokenizer_config.json", "chat_template.jinja", "model.safetensors.index.json"}) {
    const fs::path copy = temporary_ / (std::string("pipe-") + name);
    fs::copy("models/tale-llama", copy);
    fs::remove(copy / name);
    ASSERT_EQ(mkfifo((copy / name).c_str(), 0600), 0);
    expect_refusal(open_model_bundle(copy, {}), StatusCode::invalid_argument, {name, "no regular file but a pipe"});
  }
  const fs::path pipe = temporary_ / "pipe.gguf";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect_refusal(open_model_bundle(pipe, {}), StatusCode::invalid_argument, {"pipe.gguf", "no regular file"});
}

TEST_F(LoaderTest, LinksThatLeadNowhereAreErrorsAndNoExceptions) {
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja",
                           "model.safetensors", "model.safetensors.index.json"}) {
    const fs::path copy = temporary_ / (std::string("loop-") + name);
    fs::copy("models/tale-llama", copy);
    fs::remove(copy / name);
    fs::create_symlink(name, copy / name);
    expect_refusal(open_model_bundle(copy, {}), StatusCode::invalid_argument, {name, "cannot be opened"});
  }
  expect_refusal(open_model_bundle(std::string(5000, 'x'), {}), StatusCode::invalid_argument, {"cannot be opened"});
}

TEST_F(LoaderTest, JsonNestedDeepIsRefusedInEveryFile) {
  const std::string lists = std::string(100'000, '[') + std::string(100'000, ']');
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  objects += "1" + std::string(100'000, '}');
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "model.safetensors.index.json"}) {
    for (const std::string& text : {lists, "{\"eos_token_id\": " + lists + "}", objects}) {
      const fs::path copy = temporary_ / "deep";
      fs::remove_all(copy);
      fs::copy("models/tale-llama", copy);
      write_file(copy / name, text);
      expect_refusal(open_model_bundle(copy, {}), StatusCode::data_loss, {"cannot be read", "nested deeper than 64"});
    }
  }
  write_file(folder_ / "model.safetensors", safetensors("{\"a\":" + lists + "}", 0));
  expect_refusal(open(), StatusCode::data_loss, {"model.safetensors", "nested deeper than 64"});
}

TEST_F(LoaderTest, ShardsGiveTheSameModelAsOneFile) {
  const int32_t ids[] = {3, 4, 5};
  auto whole = open();
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  make_shards();
  auto sharded = open();
  ASSERT_TRUE(sharded.ok()) << sharded.status().message();
  EXPECT_EQ(*(*whole)->feed(ids), *(*sharded)->feed(ids));
}

// transformers gives them the name that layers with experts have.
TEST_F(LoaderTest, DenseLayersOfKimiLinearLoadAsTransformersSavesThem) {
  fs::remove_all(folder_);
  fs::copy("tests/golden/families/kimi-linear-moe", folder_);
  const int32_t ids[] = {3, 4, 5};
  auto published = open();
  ASSERT_TRUE(published.ok()) << published.status().message();
  const std::vector<float> wanted = *(*published)->feed(ids);
  const std::string file = read_file(folder_ / "model.safetensors");
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  std::string header = file.substr(8, header_bytes);
  const std::string dense = "layers.0.mlp.";
  for (size_t at = header.find(dense); at != std::string::npos; at = header.find(dense))
    header.replace(at, dense.size(), "layers.0.block_sparse_moe.");
  write_file(folder_ / "model.safetensors", safetensors(header, 0) + file.substr(8 + header_bytes));
  auto saved = open();
  ASSERT_TRUE(saved.ok()) << saved.status().message();
  EXPECT_EQ(*(*saved)->feed(ids), wanted);
}

TEST(BackgroundRelease, PassesEveryViewOnBeforeItLetsGoOfTheSource) {
  struct Counting final : WeightSource {
    explicit Counting(std::promise<std::vector<const void*>>& done) : done_(done) {}
    ~Counting() override { done_.set_value(released_); }
    bool has(std::string_view name) const override { return name == "a"; }
    DType dtype(std::string_view) const override { return DType::bf16; }
    Result<TensorView> find(std::string_view, std::span<const int64_t>) const override { return TensorView{}; }
    void release(const TensorView& view) const override { released_.push_back(view.data); }
    std::promise<std::vector<const void*>>& done_;
    mutable std::vector<const void*> released_;
  };
  std::promise<std::vector<const void*>> done;
  std::vector<char> places(1000);
  std::vector<const void*> expected;
  {
    const auto source = release_in_background(std::make_shared<Counting>(done));
    EXPECT_TRUE(source->has("a"));
    EXPECT_FALSE(source->has("b"));
    for (const char& place : places) {
      TensorView view;
      view.data = &place;
      source->release(view);
      expected.push_back(&place);
    }
  }
  EXPECT_EQ(done.get_future().get(), expected);
}

TEST_F(LoaderTest, MissingShardIsNamed) {
  make_shards();
  fs::remove(folder_ / "part-1.safetensors");
  expect_refusal(open(), StatusCode::data_loss, {"part-1.safetensors", "missing"});
}

TEST_F(LoaderTest, ShardOutsideTheFolderIsRefused) {
  write_file(folder_ / "model.safetensors.index.json", R"({"weight_map": {"a": "../../etc/passwd"}})");
  expect_refusal(open(), StatusCode::data_loss, {"same folder"});
}

TEST_F(LoaderTest, TruncatedWeightsNameTheFileAndTensor) {
  const std::string file = read_file(folder_ / "model.safetensors");
  write_file(folder_ / "model.safetensors", file.substr(0, file.size() - 100));
  expect_refusal(open(), StatusCode::data_loss, {"model.safetensors", "tensor ", "cut"});
}

TEST_F(LoaderTest, MissingTensorAndWrongShapeNameTheTensor) {
  edit_config([](json& config) { config["num_hidden_layers"] = 3; });
  expect_refusal(open(), StatusCode::data_loss, {"model.layers.2.", "model.safetensors"});
  edit_config([](json& config) {
    config["num_hidden_layers"] = 2;
    config["intermediate_size"] = 64;
  });
  expect_refusal(open(), StatusCode::data_loss, {"mlp.gate_proj.weight", "[48, 32]", "[64, 32]"});
}

TEST_F(LoaderTest, AMissingBiasThatTheConfigAsksForIsNamed) {
  edit_config([](json& config) { config["attention_bias"] = true; });
  expect_refusal(open(), StatusCode::data_loss, {"model.layers.0.self_attn.q_proj.bias"});
  EXPECT_TRUE(PagedRun::open(folder_, {.load_format = "dummy"}).ok()) << "made-up weights have no biases";
  edit_config([](json& config) {
    config["attention_bias"] = false;
    config["mlp_bias"] = true;
  });
  expect_refusal(open(), StatusCode::data_loss, {"model.layers.0.mlp.gate_proj.bias"});
}

TEST_F(LoaderTest, BadConfigNamesKeyValueAndRule) {
  edit_config([](json& config) { config["num_attention_heads"] = -4; });
  expect_refusal(open(), StatusCode::invalid_argument, {"config.json", "num_attention_heads", "-4"});
  edit_config([](json& config) {
    config["num_attention_heads"] = 4;
    config["num_key_value_heads"] = 3;
  });
  expect_refusal(open(), StatusCode::invalid_argument, {"num_key_value_heads"});
  edit_config([](json& config) {
    config["num_key_value_heads"] = 2;
    config["architectures"] = {"RwkvForCausalLM"};
  });
  expect_refusal(open(), StatusCode::unsupported, {"RwkvForCausalLM", "Qwen3MoeForCausalLM"});
  write_file(folder_ / "config.json", "{\"architectures\":");
  expect_refusal(open(), StatusCode::data_loss, {"config.json"});
}

TEST_F(LoaderTest, ExpertsOfAFamilyWithoutAnyAreRefusedByName) {
  edit_config([](json& config) {
    config["num_experts"] = 8;
    config["num_experts_per_tok"] = 2;
  });
  expect_refusal(open(), StatusCode::unsupported, {"num_experts is 8", "LlamaForCausalLM has no experts"});
}

TEST_F(LoaderTest, EmptyFolderSaysWhatIsNeeded) {
  fs::remove(folder_ / "config.json");
  expect_refusal(open(), StatusCode::not_found, {"config.json"});
  expect_refusal(PagedRun::open(folder_ / "nowhere", {}), StatusCode::not_found, {"does not exist"});
}

TEST_F(LoaderTest, FilesOfOtherFormatsAreNamedWithTheWayOut) {
  fs::remove(folder_ / "model.safetensors");
  write_file(folder_ / "pytorch_model.bin", "PK");
  expect_refusal(open(), StatusCode::unsupported, {"pytorch_model.bin", "safetensors"});
  write_file(folder_ / "tokenizer.model", "x");
  const Status status = open_model_bundle(folder_, {.load_format = "dummy", .tokenizer_path = {}}).status();
  EXPECT_NE(status.message().find("save_pretrained"), std::string::npos) << status.message();
}

TEST_F(LoaderTest, DummyWeightsTooLargeForMemoryAreRefused) {
  edit_config([](json& config) {
    config["hidden_size"] = 1 << 24;
    config["vocab_size"] = 1 << 24;
  });
  auto run = PagedRun::open(folder_, {.load_format = "dummy"});
  expect_refusal(run, StatusCode::resource_exhausted, {"tensor"});
}

TEST(Safetensors, LyingHeadersAreRefused) {
  const std::string ok = R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  ASSERT_TRUE(parse_safetensors(safetensors(ok, 16), "f").ok());
  const auto refused = [](const std::string& file, const char* word) {
    expect_refusal(parse_safetensors(file, "f"), StatusCode::data_loss, {"f: ", word});
  };
  refused("1234", "too short");
  refused(safetensors(ok, 0), "outside the file");
  refused(std::string(8, '\xff') + ok, "header says");
  refused(safetensors("[]", 0), "JSON object");
  refused(safetensors(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,16]}})", 16), "its shape needs 24");
  refused(safetensors(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 16),
          "impossible shape");
  refused(safetensors(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 16), "impossible shape");
  refused(safetensors(R"({"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})", 16), "overlap");
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::string file = read_file("tests/golden/families/gguf/model.gguf");
  ASSERT_TRUE(parse_gguf(file, "f").ok());
  for (size_t size = 0; size < file.size(); size += size < 4096 ? 1 : 997) {
    const std::string cut = file.substr(0, size);  // its own memory, so that over-reads are caught
    EXPECT_FALSE(parse_gguf(cut, "f").ok()) << size << " bytes";
  }
}

// The file with the float of `key` replaced.
std::string with_float(std::string file, const std::string& key, float value) {
  const size_t at = file.find(key);
  EXPECT_NE(at, file.npos) << key;
  uint32_t type = 0;
  std::memcpy(&type, file.data() + at + key.size(), sizeof type);
  EXPECT_EQ(type, 6u) << key;  // F32
  std::memcpy(file.data() + at + key.size() + sizeof type, &value, sizeof value);
  return file;
}

TEST(Gguf, WindowsAsWideAsTheContextHideNothing) {
  const TemporaryFolder folder;
  const fs::path file = folder / "model.gguf";
  const auto window_of = [&](uint32_t window) {
    std::string bytes = read_file("tests/golden/families/gguf-cohere2/model.gguf");
    const std::string key = "cohere2.attention.sliding_window";
    const size_t value = bytes.find(key) + key.size() + sizeof(uint32_t);  // after its type
    std::memcpy(bytes.data() + value, &window, sizeof window);
    write_file(file, bytes);
    const auto bundle = open_model_bundle(file, {.tokenizer_path = {}, .skip_tokenizer = true});
    EXPECT_TRUE(bundle.ok()) << bundle.status().message();
    EXPECT_EQ(std::count(bundle->config.nope_layers.begin(), bundle->config.nope_layers.end(), true), 1)
        << "the layer with full attention takes no positions all the same";
    return transformer_layers(bundle->config)[0].window_left;
  };
  EXPECT_EQ(window_of(127), 126);
  EXPECT_EQ(window_of(128), -1);
}

// The integers of a file's metadata changed, one at a time, of architectures with latent attention or delta nets.
TEST(Gguf, DimsOfLayersAreHeldToRules) {
  const TemporaryFolder folder;
  const struct {
    const char *model, *key;
    uint32_t value;
    const char* rule;
  } cases[] = {
      {"gguf-deepseek-v2-moe", "deepseek2.attention.kv_lora_rank", 0, "must be from"},
      {"gguf-deepseek-v2-moe", "deepseek2.attention.kv_lora_rank", 1 << 20, "must be from"},
      {"gguf-deepseek-v2-moe", "deepseek2.attention.kv_lora_rank", 31, "must be even"},
      {"gguf-deepseek-v2-moe", "deepseek2.attention.key_length_mla", 8, "must be more than rope.dimension_count"},
      {"gguf-deepseek-v2-joined-moe", "deepseek2.attention.key_length", 8, "must be more than rope.dimension_count"},
      {"gguf-deepseek-v2-moe", "deepseek2.rope.dimension_count", 7, "must be even"},
      {"gguf-deepseek-v3-moe", "deepseek2.expert_gating_func", 3, "must be 1 (softmax) or 2 (sigmoid)"},
      {"gguf-kimi-linear-moe", "kimi-linear.kda.head_dim", 24, "must be a multiple of 16"},
      {"gguf-kimi-linear-moe", "kimi-linear.expert_gating_func", 1, "is not the one of this architecture"},
      {"gguf-qwen3-next-moe", "qwen3next.ssm.group_count", 3, "must divide ssm.time_step_rank"},
      {"gguf-qwen3-next-moe", "qwen3next.ssm.time_step_rank", 0, "must be from 1"},
      {"gguf-qwen3-next-moe", "qwen3next.ssm.state_size", 24, "must be a multiple of 16"},
      {"gguf-qwen3-next-moe", "qwen3next.ssm.inner_size", 65, "must be ssm.time_step_rank times a multiple of 16"},
      {"gguf-qwen3_5", "qwen35.ssm.conv_kernel", 9, "must be from 2 to 8"},
      {"gguf-qwen3_5", "qwen35.full_attention_interval", 4, "must leave a layer with full attention"},
      {"../drafts/gguf-nextn-qwen3_5", "qwen35.nextn_predict_layers", 4, "must be fewer than block_count"},
      {"../drafts/gguf-nextn-qwen3_5", "qwen35.nextn_predict_layers", 3, "must leave a layer with full attention"},
      {"gguf-qwen3_5-moe", "qwen35moe.full_attention_interval", 0, "must be from 1"}};
  for (const auto& c : cases) {
    std::string bytes = read_file(std::string("tests/golden/families/") + c.model + "/model.gguf");
    const size_t at = bytes.find(c.key);
    ASSERT_NE(at, bytes.npos) << c.key;
    const size_t value = at + std::string_view(c.key).size() + sizeof(uint32_t);  // after its type
    std::memcpy(bytes.data() + value, &c.value, sizeof c.value);
    write_file(folder / "bad.gguf", bytes);
    expect_refusal(open_model_bundle(folder / "bad.gguf", {.tokenizer_path = {}, .skip_tokenizer = true}),
                   StatusCode::data_loss, {"bad.gguf", c.key, c.rule});
  }
}

// `file` with one more 32-bit number, and as many bytes of another entry as keep the tensors aligned.
std::string with_number(const std::string& file, const std::string& key, uint32_t number) {
  constexpr size_t kEntriesAt = 24, kCountAt = 16, kAlignment = 32;
  std::string added;
  const auto put = [&](auto value) { added.append(reinterpret_cast<const char*>(&value), sizeof value); };
  const auto put_key = [&](const std::string& text) {
    put(uint64_t{text.size()});
    added += text;
  };
  put_key(key);
  put(uint32_t{4});
  put(number);
  put_key("padding");
  put(uint32_t{8});
  const size_t end = added.size() + sizeof(uint64_t);
  put_key(std::string((kAlignment - end % kAlignment) % kAlignment, 'x'));
  std::string out = file;
  uint64_t entries = 0;
  std::memcpy(&entries, out.data() + kCountAt, sizeof entries);
  entries += 2;
  std::memcpy(out.data() + kCountAt, &entries, sizeof entries);
  return out.insert(kEntriesAt, added);
}

TEST(Gguf, TypesThatAreNotReadAreCalledAsTheirQuantizersDo) {
  std::string file = read_file("tests/golden/families/gguf/model.gguf");
  const std::string tensor = "blk.0.attn_q.weight";
  const size_t rank_at = file.find(tensor) + tensor.size();
  uint32_t rank = 0;
  std::memcpy(&rank, file.data() + rank_at, sizeof rank);
  const auto open_as = [&](uint32_t type) {
    std::memcpy(file.data() + rank_at + sizeof rank + rank * sizeof(uint64_t), &type, sizeof type);
    return parse_gguf(file, "f");
  };
  expect_refusal(open_as(10), StatusCode::unsupported, {"f: ", "blk.0.attn_q.weight", "Q2_K", "Q4_K"});
  expect_refusal(open_as(99), StatusCode::unsupported, {"GGML type 99"});
}

TEST(Gguf, PartsOfASplitModelAreRefusedWithTheWayOut) {
  const TemporaryFolder folder;
  const std::string file = read_file("tests/golden/families/gguf-lfm2-moe/model.gguf");
  write_file(folder / "model-00001-of-00003.gguf", with_number(file, "split.count", 3));
  expect_refusal(open_model_bundle(folder / "model-00001-of-00003.gguf", {.tokenizer_path = {}, .skip_tokenizer = true}),
                 StatusCode::unsupported, {"model-00001-of-00003.gguf", "3 parts", "llama-gguf-split --merge"});
  write_file(folder / "model.gguf", with_number(file, "split.count", 1));
  EXPECT_TRUE(open_model_bundle(folder / "model.gguf", {.tokenizer_path = {}, .skip_tokenizer = true}).ok());
}

// Qwen3-Next's z has a tensor of its own in layers with delta nets, wherever the first of them is.
TEST(Gguf, SplitInputsAreSeenBehindALayerWithAttention) {
  const std::string bytes = read_file("tests/golden/families/gguf-qwen3-next-moe/model.gguf");
  Result<GgufContents> file = parse_gguf(bytes, "f");
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::map<std::string, TensorView, std::less<>> turned;  // the first two layers, the other way round
  for (const auto& [name, tensor] : file->tensors) {
    std::string other = name;
    if (name.starts_with("blk.0.") || name.starts_with("blk.1.")) other[4] ^= '0' ^ '1';
    turned[other] = tensor;
  }
  const GgufArch arch = *find_gguf_arch("qwen3next");
  const Result<ModelConfig> before = read_gguf_config(*file, arch);
  ASSERT_TRUE(before.ok()) << before.status().message();
  ASSERT_TRUE(before->recurrent_layers[0] && !before->recurrent_layers[1]);
  std::vector<int64_t> kinds(before->recurrent_layers.begin(), before->recurrent_layers.end());
  std::swap(kinds[0], kinds[1]);
  file->metadata["qwen3next.attention.recurrent_layers"] = kinds;
  file->tensors = turned;
  const Result<ModelConfig> after = read_gguf_config(*file, arch);
  ASSERT_TRUE(after.ok()) << after.status().message();
  EXPECT_FALSE(after->recurrent_layers[0]);
  EXPECT_TRUE(after->linear->split_input);
}

// Layers behind the decoder's are cut off its list of layers, too: without them there may be none with attention, or
// fewer layers than states.
TEST(Gguf, PredictingLayersLeaveTheListOfLayersConsistent) {
  const TemporaryFolder folder;
  const std::string file = read_file("tests/golden/families/gguf-lfm2-moe/model.gguf");
  const auto open = [&](uint32_t predicting) {
    write_file(folder / "model.gguf", with_number(file, "lfm2moe.nextn_predict_layers", predicting));
    return open_model_bundle(folder / "model.gguf", {.tokenizer_path = {}, .skip_tokenizer = true});
  };
  const auto whole = open(0);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  const ModelConfig config = whole->config;
  for (int predicting = 1; predicting < config.num_layers; ++predicting) {
    const std::vector<bool> left(config.recurrent_layers.begin(), config.recurrent_layers.end() - predicting);
    const bool attends = std::find(left.begin(), left.end(), false) != left.end();
    const auto opened = open(static_cast<uint32_t>(predicting));
    ASSERT_EQ(opened.ok(), attends) << predicting;
    if (attends) {
      EXPECT_EQ(opened->config.recurrent_layers, left);
      continue;
    }
    expect_refusal(opened, StatusCode::data_loss, {"nextn_predict_layers", "full attention"});
  }
}

TEST(Gguf, NumbersThatComputeNothingAreRefusedByName) {
  const TemporaryFolder folder;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float kNaN = std::numeric_limits<float>::quiet_NaN();
  const struct {
    const char* model;
    const char* key;
  } fields[] = {{"gguf", "llama.attention.layer_norm_rms_epsilon"}, {"gguf", "llama.rope.freq_base"},
                {"gguf-gemma2", "gemma2.attn_logit_softcapping"}, {"gguf-gemma2", "gemma2.final_logit_softcapping"},
                {"gguf-qwen3", "qwen3.attention.layer_norm_rms_epsilon"}};
  for (const auto& field : fields) {
    const std::string file = read_file(std::string("tests/golden/families/") + field.model + "/model.gguf");
    for (float value : {kNaN, 0.0f, -0.0f, -1.0f, kInfinity, -kInfinity, 1e-40f, 3e38f}) {
      write_file(folder / "bad.gguf", with_float(file, field.key, value));
      expect_refusal(open_model_bundle(folder / "bad.gguf", {.tokenizer_path = {}, .skip_tokenizer = true}),
                     StatusCode::data_loss, {"bad.gguf", field.key, "must be from"});
    }
  }
}

}  // namespace
}  // namespace warpweave
