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

#include "base/float8.h"
#include "base/testing/temporary_folder.h"
#include "model/build_decoder.h"
#include "model/gguf.h"
#include "model/model_bundle.h"
#include "model/testing/paged_run.h"
#include "ops/elementwise.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
std::string safetensors(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string out(reinterpret_cast<const char*>(&size), sizeof size);
  return out + header + std::string(data_bytes, '\0');
}

// Expects a refusal whose message holds every one of `words`.
template <typename T>
void expect_refusal(const Result<T>& result, StatusCode code, std::initializer_list<const char*> words) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  for (const char* word : words) {
    EXPECT_NE(result.status().message().find(word), std::string::npos)
        << "no '" << word << "' in: " << result.status().message();
  }
}

// A copy of a golden model's folder that a test may break.
class LoaderTest : public testing::Test {
 protected:
  void SetUp() override { fs::copy("tests/golden/families/llama", folder_); }
  Result<std::unique_ptr<PagedRun>> open() { return PagedRun::open(folder_, {}); }
  void edit_config(const std::function<void(json&)>& edit) {
    json config = json::parse(read_file(folder_ / "config.json"));
    edit(config);
    write_file(folder_ / "config.json", config.dump());
  }
  // Moves every other tensor of model.safetensors to a second shard.
  void make_shards();

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_ / "llama";
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
    const auto bundle = open_model_bundle(model, {.skip_tokenizer = true});
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

// The folder's matrices stored in 8 bits with scales of blocks (block > 0), of rows, or of tensors; and a
// second folder with what they mean, in f32.
struct Fp8Folders {
  fs::path stored, meant;
};

enum class Fp8Scales { tensor, row, block };
constexpr int kBlockRows = 12, kBlockCols = 20;  // no divisors of the sizes

class TensorWriter {
 public:
  void add(const std::string& name, const char* dtype, const std::vector<int64_t>& shape, const std::string& bytes) {
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes.size()}}};
    data_ += bytes;
  }
  void add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<float>& values) {
    add(name, "F32", shape, std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4));
  }
  std::string file() const { return safetensors(header_.dump(), 0) + data_; }

 private:
  json header_ = json::object();
  std::string data_;
};

Fp8Folders make_fp8(const fs::path& folder, Fp8Scales kind) {
  const Fp8Folders out = {folder.string() + "_stored", folder.string() + "_meant"};
  for (const fs::path& to : {out.stored, out.meant}) {
    fs::remove_all(to);
    fs::copy(folder, to);
  }
  const std::string file = read_file(folder / "model.safetensors");
  const auto tensors = parse_safetensors(file, "f");
  TensorWriter stored, meant;
  for (const NamedTensor& tensor : *tensors) {
    const TensorView& view = tensor.view;
    std::vector<int64_t> shape(view.shape.begin(), view.shape.begin() + view.rank);
    std::vector<float> values(view.elements());
    dequantize_row(view.dtype, view.data, view.elements(), values.data());
    if (tensor.name.find("proj") == std::string::npos) {
      stored.add(tensor.name, shape, values);
      meant.add(tensor.name, shape, values);
      continue;
    }
    const int64_t rows = shape[0], cols = shape[1];
    const int64_t block_rows = kind == Fp8Scales::block ? kBlockRows : kind == Fp8Scales::row ? 1 : rows;
    const int64_t block_cols = kind == Fp8Scales::block ? kBlockCols : cols;
    const int64_t across = (cols + block_cols - 1) / block_cols;
    std::vector<float> scales((rows + block_rows - 1) / block_rows * across);
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = 0.001f * static_cast<float>(1 + i % 7);
    std::string codes;
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float scale = scales[i / cols / block_rows * across + i % cols / block_cols];
      codes += static_cast<char>(f32_to_e4m3(values[i] / scale));
      values[i] = e4m3_to_f32(static_cast<uint8_t>(codes.back())) * scale;
    }
    stored.add(tensor.name, "F8_E4M3", shape, codes);
    if (kind == Fp8Scales::block) {
      stored.add(tensor.name + "_scale_inv", {static_cast<int64_t>(scales.size()) / across, across}, scales);
    } else {
      stored.add(tensor.name + "_scale", kind == Fp8Scales::row ? std::vector<int64_t>{rows, 1} : std::vector<int64_t>{},
                 scales);
    }
    meant.add(tensor.name, shape, values);
  }
  json config = json::parse(read_file(folder / "config.json"));
  config["quantization_config"] = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  if (kind == Fp8Scales::block) config["quantization_config"]["weight_block_size"] = {kBlockRows, kBlockCols};
  write_file(out.stored / "config.json", config.dump());
  write_file(out.stored / "model.safetensors", stored.file());
  write_file(out.meant / "model.safetensors", meant.file());
  return out;
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

TEST_F(LoaderTest, EightBitWeightsGiveTheModelThatTheyMean) {
  const int32_t ids[] = {3, 4, 5};
  for (const Fp8Scales kind : {Fp8Scales::tensor, Fp8Scales::row, Fp8Scales::block}) {
    const Fp8Folders folders = make_fp8(folder_, kind);
    auto stored = PagedRun::open(folders.stored, {});
    auto meant = PagedRun::open(folders.meant, {});
    ASSERT_TRUE(stored.ok()) << stored.status().message();
    ASSERT_TRUE(meant.ok()) << meant.status().message();
    EXPECT_EQ(*(*stored)->feed(ids), *(*meant)->feed(ids)) << static_cast<int>(kind);
  }
}

// What find_fp8() gives is what find() widens, and only the layers' projections have it.
TEST_F(LoaderTest, EightBitWeightsAreFoundAsTheyAre) {
  for (const Fp8Scales kind : {Fp8Scales::tensor, Fp8Scales::row, Fp8Scales::block}) {
    const Fp8Folders folders = make_fp8(folder_, kind);
    auto bundle = open_model_bundle(folders.stored, {.load_format = "auto", .tokenizer_path = {}, .skip_tokenizer = true});
    ASSERT_TRUE(bundle.ok()) << bundle.status().message();
    const std::string name = "model.layers.1.mlp.down_proj.weight";
    const int64_t shape[] = {bundle->config.hidden_size, bundle->config.intermediate_size};
    ASSERT_TRUE(bundle->weights->has_fp8(name));
    EXPECT_FALSE(bundle->weights->has_fp8("model.embed_tokens.weight"));
    EXPECT_FALSE(bundle->weights->has_fp8("model.norm.weight"));
    const auto matrix = bundle->weights->find_fp8(name, shape);
    const auto wide = bundle->weights->find(name, shape);
    ASSERT_TRUE(matrix.ok() && wide.ok());
    EXPECT_EQ(matrix->codes.dtype, DType::fp8_e4m3);
    std::vector<float> row(shape[1]);
    for (int64_t r = 0; r < shape[0]; ++r) {
      widen_fp8_row(matrix->codes, matrix->scales, r, row.data());
      ASSERT_EQ(std::memcmp(row.data(), static_cast<const float*>(wide->data) + r * shape[1], row.size() * 4), 0) << r;
    }
  }
}

Result<ModelBundle> open_rounded(const fs::path& path, const std::string& load_format = "auto") {
  return open_model_bundle(path, {.load_format = load_format, .tokenizer_path = {}, .skip_tokenizer = true,
                                  .dummy_dtype = DType::bf16, .dummy_seed = 0, .quantization = "fp8"});
}

// --quantization fp8: the layers' projections are rounded, a scale a row; all else stays.
TEST_F(LoaderTest, QuantizationRoundsTheProjectionsAlone) {
  for (const char* format : {"auto", "dummy"}) {
    const auto plain = open_model_bundle(folder_, {.load_format = format, .tokenizer_path = {}, .skip_tokenizer = true});
    const auto rounded = open_rounded(folder_, format);
    ASSERT_TRUE(plain.ok() && rounded.ok()) << rounded.status().message();
    const int64_t hidden = plain->config.hidden_size, ffn = plain->config.intermediate_size;
    const int64_t embedding[] = {plain->config.vocab_size, hidden}, up[] = {ffn, hidden};
    for (const auto& [name, shape, changes] :
         {std::tuple<const char*, std::span<const int64_t>, bool>{"model.embed_tokens.weight", embedding, false},
          {"model.layers.0.mlp.up_proj.weight", up, true}}) {
      EXPECT_EQ(rounded->weights->has_fp8(name), changes);
      const auto before = plain->weights->find(name, shape), after = rounded->weights->find(name, shape);
      ASSERT_TRUE(before.ok() && after.ok());
      std::vector<float> a(before->elements()), b(after->elements());
      dequantize_row(before->dtype, before->data, before->elements(), a.data());
      dequantize_row(after->dtype, after->data, after->elements(), b.data());
      EXPECT_EQ(a != b, changes) << name;
      for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 0.07f * std::fabs(a[i]) + 1e-4f) << name;
    }
    const auto matrix = rounded->weights->find_fp8("model.layers.0.mlp.up_proj.weight", up);
    ASSERT_TRUE(matrix.ok());
    EXPECT_EQ(matrix->scales.values.size(), static_cast<size_t>(ffn));
  }
}

// A dummy model whose config.json asks for scales of blocks gets them.
TEST_F(LoaderTest, DummyWeightsFollowTheConfiguredBlocks) {
  edit_config([](json& config) {
    config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}};
  });
  const auto bundle = open_model_bundle(folder_, {.load_format = "dummy", .tokenizer_path = {}, .skip_tokenizer = true});
  ASSERT_TRUE(bundle.ok()) << bundle.status().message();
  const int64_t shape[] = {bundle->config.intermediate_size, bundle->config.hidden_size};
  const auto matrix = bundle->weights->find_fp8("model.layers.0.mlp.up_proj.weight", shape);
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  EXPECT_EQ(matrix->scales.values.size(), static_cast<size_t>((shape[0] + 15) / 16 * ((shape[1] + 15) / 16)));
}

TEST_F(LoaderTest, QuantizationOfWhatIsQuantizedIsRefused) {
  const auto gguf = open_rounded("tests/golden/families/gguf/model.gguf");
  ASSERT_FALSE(gguf.ok());
  EXPECT_EQ(gguf.status().field(), "--quantization");
  EXPECT_NE(gguf.status().message().find("leave the flag out"), std::string::npos) << gguf.status().message();
  edit_config([](json& config) { config["quantization_config"] = {{"quant_method", "mxfp4"}}; });
  const auto mxfp4 = open_rounded(folder_);
  ASSERT_FALSE(mxfp4.ok());
  EXPECT_NE(mxfp4.status().message().find("mxfp4"), std::string::npos) << mxfp4.status().message();
}

// The flag says what an fp8 checkpoint is already: it stays as stored.
TEST_F(LoaderTest, QuantizationOfAnEightBitCheckpointChangesNothing) {
  const Fp8Folders folders = make_fp8(folder_, Fp8Scales::block);
  const auto plain = open_model_bundle(folders.stored, {.load_format = "auto", .tokenizer_path = {}, .skip_tokenizer = true});
  const auto flagged = open_rounded(folders.stored);
  ASSERT_TRUE(plain.ok() && flagged.ok());
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  const int64_t shape[] = {plain->config.intermediate_size, plain->config.hidden_size};
  const auto a = plain->weights->find_fp8(name, shape), b = flagged->weights->find_fp8(name, shape);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(std::memcmp(a->codes.data, b->codes.data, a->codes.size_bytes()), 0);
  EXPECT_EQ(a->scales.values, b->scales.values);
}

// The same weights as compressed-tensors spells them.
TEST_F(LoaderTest, CompressedTensorsOfEightBitFloatsAreRead) {
  const int32_t ids[] = {3, 4, 5};
  const Fp8Folders folders = make_fp8(folder_, Fp8Scales::row);
  const auto meant = PagedRun::open(folders.meant, {});
  fs::remove_all(folder_);
  fs::rename(folders.stored, folder_);
  const json weights = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}};
  edit_config([&](json& config) {
    config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                     {"config_groups", {{"group_0", {{"weights", weights}}}}}};
  });
  const auto stored = open();
  ASSERT_TRUE(stored.ok() && meant.ok()) << stored.status().message();
  EXPECT_EQ(*(*stored)->feed(ids), *(*meant)->feed(ids));
  edit_config([](json& config) { config["quantization_config"]["config_groups"]["group_0"]["weights"]["type"] = "int"; });
  expect_refusal(open(), StatusCode::unsupported, {"compressed-tensors", "8-bit floats"});
}

TEST_F(LoaderTest, EightBitWeightsWithoutScalesAndOtherMethodsAreRefused) {
  const Fp8Folders folders = make_fp8(folder_, Fp8Scales::block);
  fs::remove_all(folder_);
  fs::rename(folders.stored, folder_);
  edit_config([](json& config) { config["quantization_config"].erase("weight_block_size"); });
  expect_refusal(open(), StatusCode::data_loss, {"proj.weight_scale_inv", "weight_block_size"});
  edit_config([](json& config) { config["quantization_config"]["weight_block_size"] = {16, 16}; });
  expect_refusal(open(), StatusCode::data_loss, {"proj.weight_scale_inv", "shape"});
  edit_config([](json& config) { config["quantization_config"]["weight_block_size"] = "128"; });
  expect_refusal(open(), StatusCode::invalid_argument, {"quantization_config", "weight_block_size"});
  edit_config([](json& config) { config["quantization_config"] = {{"quant_method", "awq"}}; });
  expect_refusal(open(), StatusCode::unsupported, {"awq", "fp8", "GGUF"});
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

TEST_F(LoaderTest, EmptyFolderSaysWhatIsNeeded) {
  fs::remove(folder_ / "config.json");
  expect_refusal(open(), StatusCode::not_found, {"config.json"});
  expect_refusal(PagedRun::open(folder_ / "nowhere", {}), StatusCode::not_found, {"does not exist"});
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
    const auto bundle = open_model_bundle(file, {.skip_tokenizer = true});
    EXPECT_TRUE(bundle.ok()) << bundle.status().message();
    EXPECT_EQ(std::count(bundle->config.nope_layers.begin(), bundle->config.nope_layers.end(), true), 1)
        << "the layer with full attention takes no positions all the same";
    return transformer_layers(bundle->config)[0].window_left;
  };
  EXPECT_EQ(window_of(127), 126);
  EXPECT_EQ(window_of(128), -1);
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
      expect_refusal(open_model_bundle(folder / "bad.gguf", {.skip_tokenizer = true}), StatusCode::data_loss,
                     {"bad.gguf", field.key, "must be from"});
    }
  }
}

}  // namespace
}  // namespace warpweave
