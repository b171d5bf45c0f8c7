// How decode rows and tiles share the SMs, held to measured layers of Llama-3.1-8B's shape on an H200
// (docs/gpu-tuning.md).
#include "attention/cuda/mixed_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
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

constexpr std::array<int, 10> kTileSms = {4, 8, 12, 16, 24, 32, 44, 56, 72, 88};

// us of a layer's attention, one kernel after the other, with decode first, and side by side with so many SMs for the
// tiles.
struct Measured {
  int decode_rows, decode_tokens;
  std::vector<Prompt> prompts;
  double apart_us, decode_first_us;
  std::array<double, kTileSms.size()> side_by_side_us;

  double of(const SmShares& shares) const {
    if (shares.order == MixedOrder::apart) return apart_us;
    if (shares.order == MixedOrder::decode_first) return decode_first_us;
    if (shares.tile_sms >= kTileSms.back()) return side_by_side_us.back();
    const auto above = std::lower_bound(kTileSms.begin(), kTileSms.end(), shares.tile_sms) - kTileSms.begin();
    if (kTileSms[above] == shares.tile_sms) return side_by_side_us[above];
    const double part =
        static_cast<double>(shares.tile_sms - kTileSms[above - 1]) / (kTileSms[above] - kTileSms[above - 1]);
    return side_by_side_us[above - 1] + part * (side_by_side_us[above] - side_by_side_us[above - 1]);
  }
};

class MixedOrderMeasured : public testing::TestWithParam<Measured> {};

TEST_P(MixedOrderMeasured, WithoutDecodeFirstItTakesLittleMoreThanTheBest) {
  const Measured& m = GetParam();
  MixedWork work = llama_8b();
  work.decode_may_be_first = false;
  const SmShares shares = share_sms(Batch(m.decode_rows, m.decode_tokens, m.prompts).view, work);
  EXPECT_NE(shares.order, MixedOrder::decode_first);
  const double least = std::min(m.apart_us, *std::min_element(m.side_by_side_us.begin(), m.side_by_side_us.end()));
  EXPECT_LE(m.of(shares), 1.06 * least) << shares.tile_sms << " SMs for tiles";
}

TEST_P(MixedOrderMeasured, DecodeIsFirstUnlessThatTakesMuchLonger) {
  const Measured& m = GetParam();
  const SmShares shares = share_sms(Batch(m.decode_rows, m.decode_tokens, m.prompts).view, llama_8b());
  EXPECT_NE(shares.order, MixedOrder::apart);
  const double least = *std::min_element(m.side_by_side_us.begin(), m.side_by_side_us.end());
  const bool much = m.decode_first_us > 1.4 * least;
  EXPECT_EQ(shares.order, much ? MixedOrder::side_by_side : MixedOrder::decode_first);
}

INSTANTIATE_TEST_SUITE_P(
    H200, MixedOrderMeasured,
    testing::Values(
        Measured{64, 1150, {{192, 1000}}, 95.3, 86.7, {213.1, 133.9, 111.0, 99.4, 83.6, 79.2, 78.3, 78.4, 86.4, 108.0}},
        Measured{64, 1150, {{64, 1000}}, 94.5, 86.1, {107.1, 81.2, 78.0, 79.0, 79.3, 78.7, 78.0, 76.5, 84.3, 106.5}},
        Measured{
            64, 1150, {{448, 1000}}, 96.1, 87.5, {391.3, 222.0, 169.7, 143.5, 111.2, 90.3, 80.7, 80.7, 89.1, 109.7}},
        Measured{176,
                 1090,
                 {{1024, 1024}, {848, 1024}},
                 229.1,
                 214.2,
                 {1220.4, 641.0, 468.2, 383.6, 277.5, 219.7, 205.4, 205.9, 224.0, 280.6}},
        Measured{100,
                 1090,
                 {{1024, 1024}, {924, 1024}},
                 165.9,
                 145.6,
                 {1216.1, 610.6, 446.5, 372.6, 264.7, 210.5, 157.6, 125.6, 137.1, 176.8}},
        Measured{3,
                 1090,
                 {{1021, 1021}, {1024, 1024}},
                 57.1,
                 48.0,
                 {1078.5, 548.9, 391.9, 280.3, 208.5, 148.0, 111.7, 107.5, 75.2, 68.4}},
        Measured{8, 1150, {{120, 600}}, 35.9, 30.6, {93.2, 56.3, 45.6, 38.9, 37.2, 27.4, 25.1, 24.7, 23.2, 22.5}},
        Measured{16,
                 4000,
                 {{112, 8000}},
                 161.2,
                 150.1,
                 {762.3, 402.8, 309.3, 230.1, 221.1, 132.3, 128.2, 120.0, 110.0, 101.4}},
        Measured{32, 1150, {{224, 1000}}, 62.9, 55.2, {241.3, 136.3, 104.8, 84.1, 67.3, 55.4, 52.2, 50.5, 50.1, 59.0}},
        Measured{128,
                 1150,
                 {{128, 1000}},
                 159.0,
                 146.5,
                 {195.3, 142.3, 142.2, 144.9, 149.2, 144.3, 147.5, 142.8, 154.2, 202.0}},
        Measured{256,
                 1090,
                 {{234, 1024}},
                 289.9,
                 280.6,
                 {335.8, 280.5, 284.2, 286.2, 299.2, 287.9, 296.2, 282.0, 314.6, 403.5}},
        Measured{250,
                 1150,
                 {{6, 1000}},
                 292.9,
                 277.1,
                 {277.6, 282.6, 283.7, 288.3, 298.0, 286.7, 291.8, 283.7, 304.7, 395.3}},
        Measured{8,
                 1150,
                 {{2040, 2040}},
                 82.8,
                 78.4,
                 {1756.9, 908.4, 647.1, 468.8, 327.8, 241.2, 179.0, 154.3, 119.5, 95.9}},
        Measured{
            60, 1150, {{452, 700}}, 87.9, 80.1, {320.3, 186.9, 140.7, 123.8, 99.9, 88.0, 76.3, 77.0, 84.0, 104.6}}));

TEST(MixedOrder, EachHasSmsOfItsOwn) {
  for (const int rows : {12, 16, 30}) {
    const SmShares shares = share_sms(Batch(rows, 4000, {{112, 8000}}).view, llama_8b());
    ASSERT_EQ(shares.order, MixedOrder::side_by_side) << rows;
    EXPECT_EQ(shares.tile_sms + shares.decode_sms, 132);
    EXPECT_GT(shares.decode_sms, 0);
  }
}

TEST(MixedOrder, LongTilesGetMoreSmsThanShortOnes) {
  const SmShares few = share_sms(Batch(64, 2000, {{192, 8000}}).view, llama_8b());
  const SmShares many = share_sms(Batch(64, 2000, {{192, 20000}}).view, llama_8b());
  EXPECT_LT(few.tile_sms, many.tile_sms);
}

TEST(MixedOrder, KernelsThatCannotFollowDecodeAreBesideItOrApart) {
  MixedWork work = llama_8b();
  work.decode_may_be_first = false;
  EXPECT_EQ(share_sms(Batch(64, 1150, {{192, 1000}}).view, work).order, MixedOrder::side_by_side);
  const SmShares many = share_sms(Batch(2, 50, {{8192, 8192}}).view, work);
  EXPECT_EQ(many.order, MixedOrder::apart);
  EXPECT_EQ(many.tile_sms, 132);
  EXPECT_EQ(many.decode_sms, 132);
}

TEST(MixedOrder, AWindowBoundsWhatIsRead) {
  MixedWork work = llama_8b();
  const Batch batch(16, 40000, {{112, 80000}});
  const SmShares whole = share_sms(batch.view, work);
  work.window_left = 500;
  const SmShares windowed = share_sms(batch.view, work);
  EXPECT_EQ(whole.order, MixedOrder::side_by_side);
  EXPECT_EQ(windowed.order, MixedOrder::decode_first);
}

}  // namespace
}  // namespace warpweave::cuda
