// Weights stored in 8 bits, or rounded to them: what a model makes of them, and which are refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <list>

#include "base/float8.h"
#include "model/build_decoder.h"
#include "model/fp8_weights.h"
#include "model/model_bundle.h"
#include "model/renamed_weights.h"
#include "model/testing/model_folder_testing.h"
#include "ops/elementwise.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Fp8WeightsTest = ModelFolderTest;

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
      stored.add(tensor.name + "_scale",
                 kind == Fp8Scales::row ? std::vector<int64_t>{rows, 1} : std::vector<int64_t>{}, scales);
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

// Gates' projections that stay in bf16, as checkpoints keep some: rounded in both folders.
void keep_gates_in_bf16(const Fp8Folders& folders) {
  const std::string stored_file = read_file(folders.stored / "model.safetensors");
  const std::string meant_file = read_file(folders.meant / "model.safetensors");
  const auto stored = parse_safetensors(stored_file, "f"), meant = parse_safetensors(meant_file, "f");
  TensorWriter stored_out, meant_out;
  const auto is_gate = [](const std::string& name) { return name.find("gate_proj") != std::string::npos; };
  for (const NamedTensor& tensor : *stored) {
    const TensorView& view = tensor.view;
    if (is_gate(tensor.name)) continue;  // codes and scales
    stored_out.add(tensor.name, view.dtype == DType::f32 ? "F32" : "F8_E4M3",
                   {view.shape.begin(), view.shape.begin() + view.rank},
                   std::string(static_cast<const char*>(view.data), view.size_bytes()));
  }
  for (const NamedTensor& tensor : *meant) {
    const std::vector<int64_t> shape(tensor.view.shape.begin(), tensor.view.shape.begin() + tensor.view.rank);
    const auto* const from = static_cast<const float*>(tensor.view.data);
    std::vector<float> values(from, from + tensor.view.elements());
    if (is_gate(tensor.name)) {
      std::vector<uint16_t> bits(values.size());
      f32_to_bf16_row(values.data(), values.size(), bits.data());
      dequantize_row(DType::bf16, bits.data(), values.size(), values.data());
      stored_out.add(tensor.name, "BF16", shape, std::string(reinterpret_cast<const char*>(bits.data()), bits.size() * 2));
    }
    meant_out.add(tensor.name, shape, values);
  }
  write_file(folders.stored / "model.safetensors", stored_out.file());
  write_file(folders.meant / "model.safetensors", meant_out.file());
}

// Parts of one GEMM in unlike types lose nothing in float32.
TEST_F(Fp8WeightsTest, SixteenBitPartsBesideEightBitOnesGiveTheModelThatTheyMean) {
  const int32_t ids[] = {3, 4, 5};
  const Fp8Folders folders = make_fp8(folder_, Fp8Scales::block);
  keep_gates_in_bf16(folders);
  auto stored = PagedRun::open(folders.stored, {});
  auto meant = PagedRun::open(folders.meant, {});
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  ASSERT_TRUE(meant.ok()) << meant.status().message();
  EXPECT_EQ(*(*stored)->feed(ids), *(*meant)->feed(ids));
}

// A model's weights with the second of each two joined matrices of the feed-forward, up, in f32.
class WideUps final : public RenamedWeights {
 public:
  using RenamedWeights::RenamedWeights;
  DType dtype(std::string_view name) const override { return is_up(name) ? DType::f32 : source().dtype(name); }
  Result<TensorView> find(std::string_view name, std::span<const int64_t> shape) const override {
    WW_ASSIGN_OR_RETURN(TensorView view, source().find(name, shape));
    if (!is_up(name)) return view;
    std::vector<float>& wide = wide_.emplace_back(view.elements());
    dequantize_row(view.dtype, view.data, view.elements(), wide.data());
    view.data = wide.data();
    view.dtype = DType::f32;
    return view;
  }
  void release(const TensorView&) const override {}

 protected:
  std::string renamed(std::string_view name) const override { return std::string(name); }

 private:
  static bool is_up(std::string_view name) { return name.find("up_proj") != name.npos; }
  mutable std::list<std::vector<float>> wide_;
};

TEST(MixedWeights, BlocksBesideWiderPartsGiveTheSameModel) {
  const int32_t ids[] = {3, 4, 5};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    auto run = PagedRun::open("tests/golden/families/gguf", {.dtype = dtype});
    ASSERT_TRUE(run.ok()) << run.status().message();
    const std::vector<float> wanted = *(*run)->feed(ids);
    const Status replaced = (*run)->replace_weights(std::make_shared<WideUps>((*run)->bundle().weights));
    ASSERT_TRUE(replaced.ok()) << replaced.message();
    (*run)->restart();
    const std::vector<float> got = *(*run)->feed(ids);
    const float tolerance = dtype == DType::f32 ? 2e-3f : 0.1f;
    for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(got[i], wanted[i], tolerance) << i;
  }
}

TEST_F(Fp8WeightsTest, EightBitWeightsGiveTheModelThatTheyMean) {
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
TEST_F(Fp8WeightsTest, EightBitWeightsAreFoundAsTheyAre) {
  for (const Fp8Scales kind : {Fp8Scales::tensor, Fp8Scales::row, Fp8Scales::block}) {
    const Fp8Folders folders = make_fp8(folder_, kind);
    auto bundle =
        open_model_bundle(folders.stored, {.load_format = "auto", .tokenizer_path = {}, .skip_tokenizer = true});
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
TEST_F(Fp8WeightsTest, QuantizationRoundsTheProjectionsAlone) {
  for (const char* format : {"auto", "dummy"}) {
    const auto plain =
        open_model_bundle(folder_, {.load_format = format, .tokenizer_path = {}, .skip_tokenizer = true});
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
TEST_F(Fp8WeightsTest, DummyWeightsFollowTheConfiguredBlocks) {
  edit_config([](json& config) {
    config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {16, 16}}};
  });
  const auto bundle =
      open_model_bundle(folder_, {.load_format = "dummy", .tokenizer_path = {}, .skip_tokenizer = true});
  ASSERT_TRUE(bundle.ok()) << bundle.status().message();
  const int64_t shape[] = {bundle->config.intermediate_size, bundle->config.hidden_size};
  const auto matrix = bundle->weights->find_fp8("model.layers.0.mlp.up_proj.weight", shape);
  ASSERT_TRUE(matrix.ok()) << matrix.status().message();
  EXPECT_EQ(matrix->scales.values.size(), static_cast<size_t>((shape[0] + 15) / 16 * ((shape[1] + 15) / 16)));
}

TEST_F(Fp8WeightsTest, QuantizationOfWhatIsQuantizedIsRefused) {
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
TEST_F(Fp8WeightsTest, QuantizationOfAnEightBitCheckpointChangesNothing) {
  const Fp8Folders folders = make_fp8(folder_, Fp8Scales::block);
  const auto plain =
      open_model_bundle(folders.stored, {.load_format = "auto", .tokenizer_path = {}, .skip_tokenizer = true});
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
TEST_F(Fp8WeightsTest, CompressedTensorsOfEightBitFloatsAreRead) {
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
  edit_config(
      [](json& config) { config["quantization_config"]["config_groups"]["group_0"]["weights"]["type"] = "int"; });
  expect_refusal(open(), StatusCode::unsupported, {"compressed-tensors", "8-bit floats"});
}

TEST_F(Fp8WeightsTest, EightBitWeightsWithoutScalesAndOtherMethodsAreRefused) {
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

}  // namespace
}  // namespace warpweave
