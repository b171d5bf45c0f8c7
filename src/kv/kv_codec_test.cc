#include "kv/kv_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/float8.h"

namespace warpweave {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(KvCodec, Fp8DividesByTheScaleOfTheHead) {
  std::vector<uint8_t> data(32, 0x7f);
  const float scales[] = {1.0f, 0.25f};
  KvPoolView view;
  view.data = data.data();
  view.format = KvFormat::fp8_e4m3;
  view.head_stride = 16;
  view.head_scales = scales;
  const float values[] = {0.25f, -1.0f, 112.0f, 1000.0f, kNaN};
  kv_encode_run(view, 1, 16, 5, values);
  EXPECT_EQ(data[16], 0x38);  // 0.25 / 0.25 = 1
  EXPECT_EQ(data[17], 0x80 | 0x48);
  EXPECT_EQ(data[18], 0x7e);  // 448
  EXPECT_EQ(data[19], 0x7e);  // saturated
  EXPECT_EQ(data[20], 0x7f);
  EXPECT_EQ(data[15], 0x7f);
  EXPECT_EQ(data[21], 0x7f);
  float out[5];
  kv_decode_run(view, 1, 16, 5, out);
  EXPECT_EQ(out[0], 0.25f);
  EXPECT_EQ(out[1], -1.0f);
  EXPECT_EQ(out[2], 112.0f);
  EXPECT_EQ(out[3], 112.0f);
  EXPECT_TRUE(std::isnan(out[4]));
}

struct Fp4Run {
  std::vector<uint8_t> bytes = std::vector<uint8_t>(16);
  std::vector<uint8_t> scales = std::vector<uint8_t>(2, 0x7f);
  KvPoolView view;
  Fp4Run() {
    view.data = bytes.data();
    view.format = KvFormat::fp4_e2m1;
    view.block_scales = scales.data();
  }
};

TEST(KvCodec, Fp4KeepsAScalePerSixteenValues) {
  Fp4Run run;
  std::vector<float> values(32);
  for (int i = 0; i < 16; ++i) values[i] = e2m1_to_f32(static_cast<uint8_t>(i));
  values[16] = -12.0f;  // scale 2
  values[17] = 1.0f;
  kv_encode_run(run.view, 0, 0, 32, values.data());
  EXPECT_EQ(run.scales[0], 0x38);  // 1
  EXPECT_EQ(run.scales[1], 0x40);  // 2
  EXPECT_EQ(run.bytes[0], 0x10);   // 0 in the low half, 0.5 in the high one
  EXPECT_EQ(run.bytes[8], 0x1f);   // -6 * 2, 0.5 * 2
  std::vector<float> out(32, kNaN);
  kv_decode_run(run.view, 0, 0, 32, out.data());
  EXPECT_EQ(out, values);
}

TEST(KvCodec, Fp4MultipliesBothScales) {
  Fp4Run run;
  const float scale = 64.0f;
  run.view.head_scales = &scale;
  std::vector<float> values(16, 0.0f), out(16);
  values[3] = 64 * 6 * 448.0f;  // needs the largest block scale
  values[4] = -64 * 448.0f;
  kv_encode_run(run.view, 0, 0, 16, values.data());
  EXPECT_EQ(run.scales[0], 0x7e);
  kv_decode_run(run.view, 0, 0, 16, out.data());
  EXPECT_EQ(out, values);
}

TEST(KvCodec, Fp4BlocksOfZerosTinyHugeAndNaNValues) {
  Fp4Run run;
  std::vector<float> out(32);
  std::vector<float> values(32, 0.0f);
  kv_encode_run(run.view, 0, 0, 32, values.data());
  EXPECT_EQ(run.scales[0], 1) << "never 0, which had no inverse";
  kv_decode_run(run.view, 0, 0, 32, out.data());
  EXPECT_EQ(out, values);

  values[0] = 1e-30f;
  values[16] = -1e30f;
  values[17] = kInf;
  kv_encode_run(run.view, 0, 0, 32, values.data());
  kv_decode_run(run.view, 0, 0, 32, out.data());
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(out[16], -kv_format_max(KvFormat::fp4_e2m1));
  EXPECT_EQ(out[17], kv_format_max(KvFormat::fp4_e2m1));

  values[5] = kNaN;
  kv_encode_run(run.view, 0, 0, 16, values.data());
  kv_decode_run(run.view, 0, 0, 16, out.data());
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(std::isnan(out[i])) << "a NaN shows in its whole block";
}

}  // namespace
}  // namespace warpweave
