// A checkpoint that holds more than the model reads is served, with a line that says what is left out.
#include "model/unread_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "model/testing/model_folder_testing.h"

namespace warpweave {
namespace {

using nlohmann::json;

class UnreadWeightsTest : public ModelFolderTest {
 protected:
  // Puts one more tensor behind the others of model.safetensors.
  void add_tensor(const std::string& name, const std::string& dtype, const std::vector<int>& shape, size_t bytes);
  void rename_tensor(const std::string& from, const std::string& to);
  // What is told of the folder once the model is built of it.
  std::vector<std::string> told() {
    auto run = open();
    EXPECT_TRUE(run.ok()) << run.status().message();
    if (!run.ok()) return {"not opened"};
    return unread_weights_lines((*run)->bundle().weights->unread(), (*run)->config());
  }

 private:
  struct File {
    json header;
    std::string data;
  };
  File read() {
    const std::string file = read_file(folder_ / "model.safetensors");
    uint64_t header_bytes;
    std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
    return {json::parse(file.substr(8, header_bytes)), file.substr(8 + header_bytes)};
  }
  void write(const File& file) {
    write_file(folder_ / "model.safetensors", safetensors(file.header.dump(), 0) + file.data);
  }
};

void UnreadWeightsTest::add_tensor(const std::string& name, const std::string& dtype, const std::vector<int>& shape,
                                   size_t bytes) {
  File file = read();
  const size_t begin = file.data.size();
  file.header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, begin + bytes}}};
  file.data.append(bytes, '\1');
  write(file);
}

void UnreadWeightsTest::rename_tensor(const std::string& from, const std::string& to) {
  File file = read();
  ASSERT_TRUE(file.header.contains(from)) << from;
  file.header[to] = file.header[from];
  file.header.erase(from);
  write(file);
}

TEST_F(UnreadWeightsTest, WholeCheckpointsAreServedWithoutAWord) { EXPECT_EQ(told(), std::vector<std::string>()); }

TEST_F(UnreadWeightsTest, LayersBeyondTheConfigurationAreCountedAndNamed) {
  edit_config([](json& config) { config["num_hidden_layers"] = 1; });
  const std::vector<std::string> lines = told();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "the weights have layers up to 1, and the configuration counts 1: 9 tensors are not used, from "
            "model.layers.1.input_layernorm.weight on; right only if these layers are left out on purpose");
}

TEST_F(UnreadWeightsTest, LayersAreCountedAsNumbersNotAsText) {
  std::vector<std::string> names;
  for (const char* layer : {"10", "11", "2", "9"}) names.push_back("model.layers." + std::string(layer) + ".mlp.x");
  ModelConfig config;
  config.num_layers = 9;
  EXPECT_NE(layers_beyond_line(names, config).find("up to 11, and the configuration counts 9: 3 tensors are not used, "
                                                   "from model.layers.9.mlp.x on"),
            std::string::npos) << layers_beyond_line(names, config);
}

TEST_F(UnreadWeightsTest, OfManyOtherTensorsTheFirstAreNamed) {
  add_tensor("model.layers.0.self_attn.q_proj.bias", "F32", {32}, 128);
  EXPECT_EQ(told(), std::vector<std::string>({"1 tensor is in the weights and not used by LlamaForCausalLM: "
                                              "model.layers.0.self_attn.q_proj.bias"}));
  for (const char* name : {"tower.a", "tower.b", "tower.c", "tower.d"}) add_tensor(name, "F32", {4}, 16);
  EXPECT_EQ(told(), std::vector<std::string>(
                        {"5 tensors are in the weights and not used by LlamaForCausalLM: "
                         "model.layers.0.self_attn.q_proj.bias, tower.a, tower.b and 2 more"}));
}

TEST_F(UnreadWeightsTest, WhatNoModelReadsIsNotWorthAWord) {
  add_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {4}, 16);
  add_tensor("model.layers.0.self_attn.q_proj.input_scale", "F32", {1}, 4);
  add_tensor("model.layers.2.eh_proj.weight", "F32", {4}, 16);
  add_tensor("model.layers.2.mlp.up_proj.weight", "F32", {4}, 16);
  add_tensor("mtp.fc.weight", "F32", {4}, 16);
  EXPECT_EQ(told(), std::vector<std::string>());
}

// A tower's convolution over time, height and width, and types that no kernel here reads.
TEST_F(UnreadWeightsTest, TensorsThatCannotBeReadStandInTheWayOfNobodyWhoDoesNotNeedThem) {
  add_tensor("visual.patch_embed.proj.weight", "BF16", {2, 3, 2, 2, 2}, 96);
  add_tensor("visual.steps", "F64", {2}, 16);
  EXPECT_EQ(told(), std::vector<std::string>({"2 tensors are in the weights and not used by LlamaForCausalLM: "
                                              "visual.patch_embed.proj.weight, visual.steps"}));
  rename_tensor("model.norm.weight", "visual.norm");
  add_tensor("model.norm.weight", "F64", {32}, 256);
  expect_refusal(open(), StatusCode::unsupported, {"model.safetensors", "model.norm.weight", "F64"});
}

TEST_F(UnreadWeightsTest, TensorsThatCannotBeReadAreHeldToTheFilesBounds) {
  add_tensor("visual.steps", "F64", {1 << 20}, 16);
  EXPECT_TRUE(open().ok()) << "bytes of an unknown type are not counted";
  const std::string file = read_file(folder_ / "model.safetensors");
  write_file(folder_ / "model.safetensors", file.substr(0, file.size() - 1));
  expect_refusal(open(), StatusCode::data_loss, {"visual.steps", "cut"});
}

// Types that a file may hold and no weight may have: the start says so and goes no further.
TEST_F(UnreadWeightsTest, WeightsOfIntegersAndBareFloatsOf8BitsAreRefusedByName) {
  const std::string norm = "model.norm.weight", down = "model.layers.0.mlp.down_proj.weight";
  rename_tensor(norm, "kept.norm");
  rename_tensor(down, "kept.down");
  const struct {
    const char *type, *shown;
    size_t bytes;
  } types[] = {{"I8", "i8", 1}, {"U8", "u8", 1}, {"I32", "i32", 4}, {"I64", "i64", 8}, {"F8_E4M3", "fp8_e4m3", 1},
               {"F8_E5M2", "fp8_e5m2", 1}};
  for (const auto& type : types) {
    add_tensor(norm, type.type, {32}, 32 * type.bytes);
    expect_refusal(open(), StatusCode::data_loss, {"model.norm.weight", type.shown, "BF16"});
  }
  add_tensor(norm, "F32", {32}, 128);
  for (const auto& type : types) {
    add_tensor(down, type.type, {32, 48}, 32 * 48 * type.bytes);
    expect_refusal(open(), StatusCode::data_loss, {"down_proj", type.shown, "quantization_config"});
  }
}

}  // namespace
}  // namespace warpweave
