// The order of decode rows and tiles against measured layers of Llama-3.1-8B's shape on an H200 (docs/gpu.md), and what
// late CTAs get where tiles come first.
#include "attention/cuda/mixed_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace warpweave::cuda {
namespace {

MixedWork llama_8b() {
  return {.num_sms = 132, .tile_rows = 128, .decode_may_be_first = true, .num_q_heads = 32, .num_kv_heads = 8,
          .head_dim = 128, .head_token_bytes = 512};
}

struct Prompt {
  int new_tokens, seen_tokens;
};

struct Batch {
  std::vector<int32_t> q_indptr = {0}, kv_lens;
  ForwardBatch view;

  Batch(int decode_rows, int decode_tokens, const std::vector<Prompt>& prompts) {
    for (int i = 0; i < decode_rows; ++i) add(1, decode_tokens);
    for (const Prompt& prompt : prompts) add(prompt.new_tokens, prompt.seen_tokens);
    view.mode = ForwardMode::mixed;
    view.num_reqs = static_cast<int>(kv_lens.size());
    view.num_tokens = q_indptr.back();
    view.q_indptr = q_indptr;
    view.kv_lens = kv_lens;
  }
  void add(int new_tokens, int seen_tokens) {
    q_indptr.push_back(q_indptr.back() + new_tokens);
    kv_lens.push_back(seen_tokens);
  }
};

// us of a layer's attention with decode under the tiles and with decode first, as measured.
struct Measured {
  int decode_rows, decode_tokens;
  std::vector<Prompt> prompts;
  double under_tiles_us, decode_first_us;
};

class MixedOrderMeasured : public testing::TestWithParam<Measured> {};

TEST_P(MixedOrderMeasured, TheFasterOneIsChosen) {
  const Measured& m = GetParam();
  const Batch batch(m.decode_rows, m.decode_tokens, m.prompts);
  const MixedOrder faster = m.decode_first_us < m.under_tiles_us ? MixedOrder::decode_first : MixedOrder::tiles_first;
  EXPECT_EQ(place_decode(batch.view, llama_8b()).order, faster);
}

INSTANTIATE_TEST_SUITE_P(
    H200, MixedOrderMeasured,
    testing::Values(Measured{3, 1090, {{1021, 1021}, {1024, 1024}}, 82.6, 69.1}, Measured{8, 1150, {{120, 600}}, 38.8, 36.4},
                    Measured{16, 4000, {{112, 8000}}, 121.0, 160.2}, Measured{32, 1150, {{224, 1000}}, 69.1, 65.7},
                    Measured{64, 1150, {{192, 1000}}, 105.7, 97.2}, Measured{64, 1150, {{448, 1000}}, 115.6, 102.8},
                    Measured{128, 1150, {{128, 1000}}, 172.4, 161.8}, Measured{250, 1150, {{6, 1000}}, 293.8, 283.2},
                    Measured{256, 1090, {{234, 1024}}, 298.5, 286.5},
                    Measured{100, 1090, {{1024, 1024}, {924, 1024}}, 189.6, 171.5},
                    Measured{176, 1090, {{1024, 1024}, {848, 1024}}, 269.1, 246.4}));

TEST(MixedOrder, LateCtasGetLessTheLongerATileTakes) {
  const MixedWork work = llama_8b();
  double last_share = 1;
  for (const int seen : {6000, 8000, 12000}) {
    const DecodePlace place = place_decode(Batch(64, 4000, {{112, seen}}).view, work);
    ASSERT_EQ(place.order, MixedOrder::tiles_first) << seen;
    EXPECT_EQ(place.early_sms, 132 - 32) << "one tile for each of 32 q heads";
    EXPECT_EQ(place.sms, 132);
    EXPECT_LT(place.late_share, last_share) << seen;
    last_share = place.late_share;
  }
}

TEST(MixedOrder, SmsWithATileAreLeftOutWhereItOutlastsDecode) {
  const DecodePlace place = place_decode(Batch(64, 1000, {{112, 30000}}).view, llama_8b());
  EXPECT_EQ(place.order, MixedOrder::tiles_first);
  EXPECT_EQ(place.sms, 100);
  EXPECT_EQ(place.early_sms, 100);
}

TEST(MixedOrder, KernelsThatCannotFollowDecodeComeFirst) {
  MixedWork work = llama_8b();
  work.decode_may_be_first = false;
  const DecodePlace few = place_decode(Batch(64, 1150, {{192, 1000}}).view, work);
  EXPECT_EQ(few.order, MixedOrder::tiles_first);
  EXPECT_EQ(few.early_sms, 132 - 64);
  const DecodePlace many = place_decode(Batch(64, 1150, {{2048, 2048}}).view, work);
  EXPECT_EQ(many.order, MixedOrder::tiles_first) << "more tiles than SMs: every CTA of decode is late";
  EXPECT_EQ(many.early_sms, 132);
  EXPECT_EQ(many.late_share, 1);
}

TEST(MixedOrder, AWindowBoundsWhatIsRead) {
  MixedWork work = llama_8b();
  const Batch batch(16, 40000, {{112, 80000}});
  EXPECT_EQ(place_decode(batch.view, work).order, MixedOrder::tiles_first);
  work.window_left = 500;
  EXPECT_EQ(place_decode(batch.view, work).order, MixedOrder::decode_first);
}

}  // namespace
}  // namespace warpweave::cuda
