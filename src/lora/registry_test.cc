// Folders that hold no adapter of this model, and names that come and go.
#include "lora/registry.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "model/model_bundle.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;

const std::string kAdapter = "tests/golden/lora/llama-all-r8";

LoraTargets targets_of(const std::string& family) {
  auto bundle = open_model_bundle("tests/golden/families/" + family, {.tokenizer_path = {}, .skip_tokenizer = true});
  EXPECT_TRUE(bundle.ok()) << bundle.status().message();
  auto targets = lora_targets(bundle->config);
  EXPECT_TRUE(targets.ok()) << targets.status().message();
  return targets.ok() ? *targets : LoraTargets();
}

class LoraRegistryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("lora_registry_test_" + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_ / "adapters");
    fs::copy(kAdapter, root_ / "adapters" / "good");
    fs::copy(kAdapter, root_ / "outside");
  }
  void TearDown() override { fs::remove_all(root_); }

  LoraRegistryOptions options() const {
    return {.targets = targets_of("llama"),
            .limits = {.max_rank = 16, .modules = {}},
            .dtype = DType::f32,
            .placer = {},
            .max_loaded = 2,
            .root = (root_ / "adapters").string(),
            .reserved_names = {"base"}};
  }
  // The adapter with one text of its configuration replaced, and what loading it says.
  Status load_changed(const std::string& from, const std::string& to) {
    const fs::path folder = root_ / "adapters" / "changed";
    fs::remove_all(folder);
    fs::copy(kAdapter, folder);
    std::ifstream in(kAdapter + "/adapter_config.json");
    std::string text((std::istreambuf_iterator<char>(in)), {});
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    text.replace(at, from.size(), to);
    fs::remove(folder / "adapter_config.json");
    std::ofstream(folder / "adapter_config.json") << text;
    return LoraRegistry(options()).load("x", folder.string()).status();
  }
  // The adapter with tensor names of its header replaced by ones as long.
  Status load_renamed(const std::string& from, const std::string& to) {
    const fs::path folder = root_ / "adapters" / "renamed";
    fs::remove_all(folder);
    fs::copy(kAdapter, folder);
    std::ifstream in(kAdapter + "/adapter_model.safetensors", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    EXPECT_EQ(from.size(), to.size());
    const size_t at = bytes.find(from);
    EXPECT_NE(at, bytes.npos) << from;
    bytes.replace(at, from.size(), to);
    fs::remove(folder / "adapter_model.safetensors");
    std::ofstream(folder / "adapter_model.safetensors", std::ios::binary) << bytes;
    return LoraRegistry(options()).load("x", folder.string()).status();
  }

  fs::path root_;
};

TEST_F(LoraRegistryTest, LoadsFindsAndUnloads) {
  LoraRegistry registry(options());
  const auto loaded = registry.load("a", kAdapter);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->rank, 8);
  EXPECT_GT(loaded->bytes, 0u);
  EXPECT_EQ(registry.take("a")->weights, loaded->weights);
  ASSERT_EQ(registry.list().size(), 1u);
  EXPECT_EQ(registry.list()[0].requests, 1u);
  EXPECT_TRUE(registry.unload("a").ok());
  EXPECT_EQ(registry.take("a").status().code(), StatusCode::not_found);
  EXPECT_EQ(registry.unload("a").code(), StatusCode::not_found);
}

TEST_F(LoraRegistryTest, WhatRequestsHoldStaysAndCounts) {
  LoraRegistry registry(options());
  std::shared_ptr<const LoraAdapter> held = registry.load("a", kAdapter)->weights;
  const uint64_t first_id = held->id;
  ASSERT_TRUE(registry.unload("a").ok());
  ASSERT_TRUE(registry.load("a", kAdapter).ok());
  EXPECT_NE(registry.take("a")->weights->id, first_id);  // another adapter, though of the same name
  const Status full = registry.load("b", kAdapter).status();
  EXPECT_EQ(full.code(), StatusCode::resource_exhausted) << full.message();
  EXPECT_EQ(held->update(0, LoraSite::qkv).parts.size(), 3u);  // still whole
  held = nullptr;
  EXPECT_TRUE(registry.load("b", kAdapter).ok());
}

TEST_F(LoraRegistryTest, RefusesNames) {
  LoraRegistry registry(options());
  ASSERT_TRUE(registry.load("a", kAdapter).ok());
  for (const std::string& name : {std::string("a"), std::string("base"), std::string(), std::string("a b"),
                                  std::string("a:b"), std::string("\xff"), std::string(kMaxLoraNameBytes + 1, 'x')}) {
    const Status status = registry.load(name, kAdapter).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << name;
    EXPECT_EQ(status.field(), "lora_name");
  }
}

TEST_F(LoraRegistryTest, RequestsReadBelowTheRootAlone) {
  fs::create_directory_symlink(root_ / "outside", root_ / "adapters" / "link");
  LoraRegistry registry(options());
  for (const std::string& path :
       {std::string("../outside"), (root_ / "outside").string(), std::string("link"), std::string("."), std::string(),
        std::string("missing"), std::string("good/../.."), std::string("good\0x", 6)}) {
    const Status status = registry.load_from_root("x", path).status();
    EXPECT_EQ(status.code(), StatusCode::not_found) << path;
    EXPECT_EQ(status.field(), "lora_path");
  }
  EXPECT_TRUE(registry.load_from_root("relative", "good").ok());
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {  // links to files
    const fs::path linked = root_ / "adapters" / (std::string("linked ") + file);
    fs::copy(kAdapter, linked);
    fs::remove(linked / file);
    fs::create_symlink(root_ / "outside" / file, linked / file);
    const Status status = registry.load_from_root("x", linked.filename()).status();
    EXPECT_EQ(status.code(), StatusCode::not_found) << file;
    EXPECT_NE(status.message().find("outside --lora-root"), std::string::npos) << status.message();
    fs::remove(linked / file);
    fs::create_symlink(root_ / "adapters" / "good" / file, linked / file);
    EXPECT_TRUE(registry.load_from_root("within", linked.filename()).ok()) << file;
    EXPECT_TRUE(registry.unload("within").ok());
  }
  EXPECT_TRUE(registry.load_from_root("absolute", (root_ / "adapters" / "good").string()).ok());
  LoraRegistryOptions without = options();
  without.root.clear();
  EXPECT_EQ(LoraRegistry(without).load_from_root("x", "good").status().field(), "--lora-root");
}

TEST_F(LoraRegistryTest, RefusesFoldersThatDoNotFit) {
  EXPECT_EQ(LoraRegistry(options()).load("x", root_.string()).status().field(), "adapter_config.json");
  fs::remove(root_ / "adapters" / "good" / "adapter_model.safetensors");
  EXPECT_EQ(LoraRegistry(options()).load("x", (root_ / "adapters" / "good").string()).status().field(),
            "adapter_model.safetensors");
  EXPECT_EQ(load_changed("\"r\": 8", "\"r\": 4").code(), StatusCode::data_loss);
  EXPECT_EQ(load_changed("\"use_dora\": false", "\"use_dora\": true").field(), "use_dora");
  LoraRegistryOptions narrow = options();
  narrow.limits.max_rank = 4;
  EXPECT_EQ(LoraRegistry(narrow).load("x", kAdapter).status().field(), "--max-lora-rank");
  narrow = options();
  narrow.limits.modules = {"q_proj"};
  EXPECT_EQ(LoraRegistry(narrow).load("x", kAdapter).status().field(), "--lora-target-modules");
  LoraRegistryOptions other = options();
  other.targets = targets_of("starcoder2");
  EXPECT_FALSE(LoraRegistry(other).load("x", kAdapter).ok());
}

TEST_F(LoraRegistryTest, RefusesTensorsByName) {
  const std::string a = "model.layers.0.self_attn.q_proj.lora_A.weight";
  for (const char* to :
       {"model.layers.9.self_attn.q_proj.lora_A.weight", "model.layers.0.self_attn.x_proj.lora_A.weight",
        "model.layers.0.self_attn.q_proj.lora_C.weight", "model.layers.-.self_attn.q_proj.lora_A.weight"}) {
    const Status status = load_renamed(a, to);
    EXPECT_EQ(status.code(), StatusCode::unsupported) << to << ": " << status.message();
    EXPECT_NE(status.message().find(to), std::string::npos) << status.message();
  }
  const Status lacks = load_renamed("layers.0.mlp.up_proj.lora_B", "layers.0.mlp.up_proj.lora_A");
  EXPECT_FALSE(lacks.ok());
}

TEST_F(LoraRegistryTest, ThreadsLoadFindAndUnload) {
  LoraRegistry registry(options());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string name = "a" + std::to_string((t + i) % 2);
        (void)registry.load(name, kAdapter);
        if (const auto found = registry.take(name); found.ok()) {
          EXPECT_EQ(found->weights->name, name);
        }
        (void)registry.unload(name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(registry.list().size(), 2u);
}

}  // namespace
}  // namespace warpweave
