// The loop over layers: the order of parts, which mixer is the last, layers without a feed-forward, and failures.
#include "model/layers/layer.h"

#include <gtest/gtest.h>

#include <string>

#include "model/families/family.h"

namespace warpweave {
namespace {

// A device whose parts write down that they ran.
struct Notes {
  std::vector<std::string> ran;
  std::string failing;              // the part that fails
  void fork() { ran.push_back("("); }
  void join() { ran.push_back(")"); }
};
struct OnPaper {
  struct Cache {
    int group_of(int) const { return 0; }
  };
  using Residual = Notes;
  using Recurrent = void;
};
using Call = LayerCallOf<OnPaper>;

Status note(const Call& call, std::string_view part) {
  std::string line = std::to_string(call.layer) + std::string(part);
  if (call.last_mixer) line += "!";
  call.x.ran.push_back(line);
  return line == call.x.failing ? Status::internal("as told") : Status();
}

struct PaperMixer : MixerOf<OnPaper> {
  std::string_view name() const override { return "m"; }
  Status forward(const Call& call) override { return note(call, "m"); }
};
struct PaperFeedForward : FeedForwardOf<OnPaper> {
  std::string_view name() const override { return "f"; }
  Status forward(const Call& call) override { return note(call, "f"); }
};

class NoAttention : public AttentionBackend {
 public:
  const Caps& caps() const override { return caps_; }
  Status init_forward_metadata(const ForwardBatch&) override { return {}; }
  Status forward_extend(const ForwardBatch&, const AttentionCall&) override { return {}; }
  Status forward_decode(const ForwardBatch&, const AttentionCall&) override { return {}; }

 private:
  Caps caps_;
};

// Three layers, the middle one without a feed-forward.
struct LayerRun {
  Status status;
  std::vector<std::string> ran, seen;
};
LayerRun run(std::span<const int32_t> logits_rows, const std::string& failing = "", bool parallel = false) {
  std::vector<LayerOf<OnPaper>> layers(3);
  for (int i = 0; i < 3; ++i) {
    layers[i].mixer = std::make_unique<PaperMixer>();
    layers[i].parallel = parallel;
    if (i != 1) layers[i].feed_forward = std::make_unique<PaperFeedForward>();
  }
  ForwardBatch batch;
  batch.logits_rows = logits_rows;
  OnPaper::Cache cache;
  NoAttention attention;
  Notes notes{.ran = {}, .failing = failing};
  LayerRun out;
  const Call call{.batch = batch, .cache = cache, .attention = attention, .x = notes};
  out.status = run_layers<OnPaper>(layers, call, [&](int layer, std::string_view part) {
    out.seen.push_back(std::to_string(layer) + std::string(part));
  });
  out.ran = notes.ran;
  return out;
}

using Parts = std::vector<std::string>;
constexpr int32_t kRow[] = {0};

TEST(RunLayers, RunsEveryPartInOrderAndMarksTheLastMixer) {
  const LayerRun all = run(kRow);
  EXPECT_TRUE(all.status.ok());
  EXPECT_EQ(all.ran, (Parts{"0m", "0f", "1m", "2m!", "2f!"}));
  EXPECT_EQ(all.seen, (Parts{"0m", "0f", "1m", "2m", "2f"}));
}

TEST(RunLayers, HoldsTheRowsForBothBranchesOfParallelLayers) {
  EXPECT_EQ(run(kRow, "", true).ran, (Parts{"(", "0m", "0f", ")", "1m", "(", "2m!", "2f!", ")"}));
}

TEST(RunLayers, StopsAfterTheLastCacheWhereNoRowIsWanted) {
  const LayerRun none = run({});
  EXPECT_TRUE(none.status.ok());
  EXPECT_EQ(none.ran, (Parts{"0m", "0f", "1m", "2m!"}));
  EXPECT_EQ(none.seen, (Parts{"0m", "0f", "1m"}));
}

TEST(RunLayers, StopsAtAFailureAndReturnsIt) {
  const LayerRun mixer = run(kRow, "1m"), feed_forward = run(kRow, "0f");
  EXPECT_EQ(mixer.status.message(), "as told");
  EXPECT_EQ(mixer.ran, (Parts{"0m", "0f", "1m"}));
  EXPECT_EQ(feed_forward.status.code(), StatusCode::internal);
  EXPECT_EQ(feed_forward.ran, (Parts{"0m", "0f"}));
}

TEST(TransformerLayers, FollowTheConfiguration) {
  ModelConfig config;
  config.num_layers = 6;
  config.num_experts = 8;
  config.first_k_dense_replace = 1;
  config.decoder_sparse_step = 2;      // layers 1, 3 and 5
  config.mlp_only_layers = {3};
  config.sliding_window = 1024;
  config.sliding_layers = {true, true, false, true, true, false};
  config.local_rope = RopeConfig();
  std::string kinds;
  for (const LayerPlan& layer : transformer_layers(config)) {
    kinds += layer.feed_forward == FeedForwardKind::experts ? 'e' : 'd';
    EXPECT_EQ(layer.window_left == 1023, layer.rope_index == 1);
    kinds += layer.window_left == -1 ? 'f' : 'w';
  }
  EXPECT_EQ(kinds, "dwewdfdwdwef");
  config.num_experts = 0;
  for (const LayerPlan& layer : transformer_layers(config)) EXPECT_EQ(layer.feed_forward, FeedForwardKind::dense);
}

}  // namespace
}  // namespace warpweave
