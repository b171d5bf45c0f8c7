// The example plug-in serves: the goldens, alone and beside a built-in backend; and a forward that
// it ran is recorded and run again.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "attention/plugin.h"
#include "base/testing/temporary_folder.h"
#include "engine/testing/asking.h"
#include "replay/compare.h"

namespace warpweave {
namespace {

constexpr const char* kModel = "models/tale-llama";
constexpr int kNewTokens = 24;

class PluginServing : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const Result<const Caps*> caps = load_attention_plugin(WW_PLUGIN_DIR "/online_softmax.so");
    ASSERT_TRUE(caps.ok()) << caps.status().message();
    const auto golden = nlohmann::json::parse(std::ifstream(std::string(kModel) + "/golden.json"));
    prompt_ = golden["prompts"][0]["input_ids"].get<std::vector<int32_t>>();
    expected_ = golden["prompts"][0]["greedy_ids"].get<std::vector<int32_t>>();
    expected_.resize(kNewTokens);
  }

  static std::vector<int32_t> greedy(ServerArgs args) {
    args.dtype = "float32";
    args.device = "cpu";
    args.model_path = kModel;
    auto served = create_engine({.args = args, .model_path = kModel, .on_weights_progress = {}});
    EXPECT_TRUE(served.ok()) << served.status().message();
    if (!served.ok()) return {};
    return ask(*served, {prompt_}, kNewTokens)[0].ids;
  }

  static inline std::vector<int32_t> prompt_, expected_;
};

TEST_F(PluginServing, AloneAndBesideAnother) {
  ServerArgs args;
  args.attention_backend = "online_softmax";
  args.page_size = 7;
  EXPECT_EQ(greedy(args), expected_);
  args = {};
  args.prefill_attention_backend = "online_softmax";
  args.decode_attention_backend = "intel_amx";
  EXPECT_EQ(greedy(args), expected_);
  args = {};
  args.prefill_attention_backend = "torch_native";
  args.decode_attention_backend = "online_softmax";
  EXPECT_EQ(greedy(args), expected_);
}

TEST_F(PluginServing, RecordedForwardIsTheReferences) {
  const TemporaryFolder folder;
  const std::string path = folder / "forward.wwb";
  ServerArgs args;
  args.attention_backend = "online_softmax";
  args.dump_batch = 3;
  args.dump_batch_file = path;
  greedy(args);
  const Result<Recording> recording = read_recording(path);
  ASSERT_TRUE(recording.ok()) << recording.status().message();
  EXPECT_EQ(recording->backend, "online_softmax");
  EXPECT_EQ(recording->mode, ForwardMode::decode);
  ThreadTeam team(1);
  for (const char* backend : {"online_softmax", "intel_amx"}) {
    const auto differences = replay(*recording, {.backend = backend}, team);
    ASSERT_TRUE(differences.ok()) << differences.status().message();
    EXPECT_EQ(differences->size(), 4u) << "layers of tale-llama";
    for (const LayerDifference& d : *differences)
      EXPECT_FALSE(d.first) << backend << " layer " << d.layer;
  }
}

}  // namespace
}  // namespace warpweave
