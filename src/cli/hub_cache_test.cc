// Models in the local Hub cache, laid out as Hugging Face's programs leave them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/testing/temporary_folder.h"
#include "cli/model_facts.h"
#include "cli/model_search.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;

class HubCache : public testing::Test {
 protected:
  HubCache() {
    for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) unsetenv(name);
    setenv("HF_HOME", folder_.path().c_str(), 1);
  }
  ~HubCache() override { unsetenv("HF_HOME"); }

  fs::path add(const std::string& owner, const std::string& name, const std::string& revision) {
    const fs::path snapshot = repository(owner, name) / "snapshots" / revision;
    fs::create_directories(snapshot);
    fs::copy_file("models/tale-llama/config.json", snapshot / "config.json");
    return snapshot;
  }
  void point(const std::string& owner, const std::string& name, const std::string& revision) {
    fs::create_directories(repository(owner, name) / "refs");
    std::ofstream(repository(owner, name) / "refs" / "main") << revision;
  }
  fs::path repository(const std::string& owner, const std::string& name) const {
    return folder_.path() / "hub" / ("models--" + owner + "--" + name);
  }
  static std::string found(const std::string& id) {
    const Result<ModelSource> source = find_model(id);
    return source.ok() ? source->path() : source.status().message();
  }

  TemporaryFolder folder_;
};

TEST_F(HubCache, FindsTheSnapshotOfMain) {
  const fs::path first = add("someone", "small-model", "aaaa");
  EXPECT_EQ(found("someone/small-model"), first) << "the only one";
  const fs::path second = add("someone", "small-model", "bbbb");
  EXPECT_NE(found("someone/small-model").find("no complete snapshot"), std::string::npos);
  point("someone", "small-model", "bbbb\n");
  EXPECT_EQ(found("someone/small-model"), second);
  EXPECT_EQ(found("small-model"), second);
  point("someone", "small-model", "../../../etc");
  EXPECT_NE(found("someone/small-model").find("no complete snapshot"), std::string::npos);
}

TEST_F(HubCache, ANameOfSeveralOwnersIsAmbiguous) {
  const fs::path one = add("one", "model", "aaaa"), two = add("two", "model", "bbbb");
  const std::string message = found("model");
  EXPECT_NE(message.find(one.string()), std::string::npos) << message;
  EXPECT_NE(message.find(two.string()), std::string::npos) << message;
  EXPECT_EQ(found("two/model"), two);
}

TEST_F(HubCache, OddNamesAreNotLookedUp) {
  for (const char* id : {"../x", "a/../b", "a/b/c", "/", "", "..", "a--b/.."}) {
    const Result<ModelSource> source = find_model(id);
    if (source.ok()) {
      EXPECT_STREQ(id, "");
      continue;
    }
    EXPECT_EQ(source.status().code(), StatusCode::not_found) << id;
  }
  EXPECT_NE(found("no/such-model").find(hub_cache_folder()), std::string::npos);
}

TEST_F(HubCache, IsAskedBeforeThePublishedConfigurations) {
  ServerArgs args;
  args.model_path = "Qwen/Qwen3-8B";
  auto model = describe_model(args);
  ASSERT_TRUE(model.ok()) << model.status().message();
  ASSERT_EQ(model->notes.size(), 1u);
  EXPECT_NE(model->notes[0].find("published"), std::string::npos);
  add("Qwen", "Qwen3-8B", "cccc");
  model = describe_model(args);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_TRUE(model->notes.empty());
  EXPECT_EQ(model->facts->architecture, "LlamaForCausalLM") << "what lies there";
}

TEST_F(HubCache, EnvironmentNamesTheFolder) {
  EXPECT_EQ(hub_cache_folder(), (folder_.path() / "hub").string());
  setenv("HF_HUB_CACHE", "/somewhere", 1);
  EXPECT_EQ(hub_cache_folder(), "/somewhere");
  unsetenv("HF_HUB_CACHE");
}

}  // namespace
}  // namespace warpweave
