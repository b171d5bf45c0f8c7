// Row-wise ops against scalar f64 references: the kernels of every tier this CPU can run, then
// the public functions.
#include "ops/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/float16.h"
#include "ops/elementwise_testing.h"
#include "ops/rope.h"

namespace warpweave {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
const int64_t kSizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 47, 64, 100, 257, 1024};

std::vector<float> normals(int64_t n, unsigned seed, float scale = 1) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

INSTANTIATE_TEST_SUITE_P(All, EachTier, each_tier(), tier_of_test);

TEST_P(EachTier, RmsNorm) {
  for (const int64_t n : kSizes) {
    const std::vector<float> x = normals(n, 1), weight = normals(n, 2);
    double square = 0;
    for (const float v : x) square += double{v} * v;
    const double scale = 1 / std::sqrt(square / n + 1e-5);
    for (const float offset : {0.0f, 1.0f}) {
      std::vector<float> out(n + 1, kNan), sum(n, 3.0f);
      std::vector<uint16_t> narrow(n + 1, 0x7fc1);
      RmsNormRow row{x.data(), weight.data(), n, offset, 1e-5f, out.data(), false, false};
      kernels.rms_norm(row);
      row.out = narrow.data();
      row.out_is_bf16 = true;
      kernels.rms_norm(row);
      row.out = sum.data();
      row.out_is_bf16 = false;
      row.accumulate = true;
      kernels.rms_norm(row);
      for (int64_t i = 0; i < n; ++i) {
        const double want = x[i] * scale * (weight[i] + offset);
        ASSERT_NEAR(out[i], want, 2e-6 * std::abs(want) + 1e-7) << n;
        ASSERT_EQ(narrow[i], f32_to_bf16(out[i]));
        ASSERT_NEAR(sum[i], 3 + want, 1e-5);
      }
      ASSERT_TRUE(std::isnan(out[n]));
      ASSERT_EQ(narrow[n], 0x7fc1);
    }
  }
}

TEST_P(EachTier, LayerNorm) {
  for (const int64_t n : kSizes) {
    std::vector<float> x = normals(n, 1);
    for (float& v : x) v += 3;  // the mean matters
    const std::vector<float> weight = normals(n, 2), bias = normals(n, 3);
    double mean = 0, variance = 0;
    for (const float v : x) mean += v / static_cast<double>(n);
    for (const float v : x) variance += (v - mean) * (v - mean) / static_cast<double>(n);
    for (const float* b : {bias.data(), static_cast<const float*>(nullptr)}) {
      std::vector<float> out(n + 1, kNan);
      std::vector<uint16_t> narrow(n + 1, 0x7fc1);
      LayerNormRow row{x.data(), weight.data(), b, n, 1e-5f, out.data(), false};
      kernels.layer_norm(row);
      row.out = narrow.data();
      row.out_is_bf16 = true;
      kernels.layer_norm(row);
      for (int64_t i = 0; i < n; ++i) {
        const double want = (x[i] - mean) / std::sqrt(variance + 1e-5) * weight[i] + (b != nullptr ? b[i] : 0);
        ASSERT_NEAR(out[i], want, n == 1 ? 1e-3 : 2e-5) << n;
        ASSERT_EQ(narrow[i], f32_to_bf16(out[i]));
      }
      ASSERT_TRUE(std::isnan(out[n]));
      ASSERT_EQ(narrow[n], 0x7fc1);
    }
  }
}

double gated(GluActivation activation, double gate, double up) {
  if (activation == GluActivation::silu) return gate / (1 + std::exp(-gate)) * up;
  if (activation == GluActivation::gelu_tanh) {
    const double inner = std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
    return gate / (1 + std::exp(-2 * inner)) * up;
  }
  if (activation == GluActivation::gelu) return 0.5 * gate * std::erfc(-gate / std::sqrt(2.0)) * up;
  gate = std::min(gate, 7.0);
  return (std::clamp(up, -7.0, 7.0) + 1) * gate / (1 + std::exp(-1.702 * gate));
}

TEST_P(EachTier, GatedActivations) {
  for (const int64_t n : kSizes) {
    std::vector<float> gate = normals(n, 3, 6), up = normals(n, 4, 6);
    gate[0] = 40;
    if (n > 1) gate[1] = -40;
    for (const auto activation :
         {GluActivation::silu, GluActivation::gelu_tanh, GluActivation::gelu, GluActivation::swiglu_oai}) {
      std::vector<float> out(n + 1, kNan);
      std::vector<uint16_t> narrow(n + 1, 0x7fc1);
      kernels.glu(activation, {.gate = gate.data(), .up = up.data(), .count = n, .out = out.data()});
      kernels.glu(activation,
                  {.gate = gate.data(), .up = up.data(), .count = n, .out = narrow.data(), .out_is_bf16 = true});
      for (int64_t i = 0; i < n; ++i) {
        const double want = gated(activation, gate[i], up[i]);
        // The tail of gelu near zero is exp of a rounded argument: absolute there.
        ASSERT_NEAR(out[i], want, 4e-6 * std::abs(want) + 1e-7) << gate[i] << " " << up[i];
        ASSERT_EQ(narrow[i], f32_to_bf16(out[i]));
      }
      ASSERT_TRUE(std::isnan(out[n]));
      ASSERT_EQ(narrow[n], 0x7fc1);
    }
  }
}

TEST_P(EachTier, SoftcapIsAccurateFromTinyToHuge) {
  std::vector<float> x;
  for (float v = 1e-6f; v < 1e4f; v *= 1.07f) {
    x.push_back(v);
    x.push_back(-v);
  }
  x.push_back(0);
  std::vector<float> y = x;
  kernels.softcap(y.data(), 30, static_cast<int64_t>(y.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = 30 * std::tanh(double{x[i]} / 30);
    ASSERT_NEAR(y[i], want, 2e-6 * std::abs(want)) << x[i];
  }
}

TEST_P(EachTier, ExponentialsOverTheWholeRange) {
  for (double v = -100; v <= 88; v += 0.0371) {
    const float x = static_cast<float>(v);
    const double got = kernels.sum_exp(&x, 0, 1), want = std::exp(double{x});
    ASSERT_NEAR(got, want, 2e-6 * want + 1.2e-38) << x;
  }
  const float odd[] = {-kInf, 0, kNan};
  EXPECT_EQ(kernels.sum_exp(&odd[0], 0, 1), 0.0f);
  EXPECT_EQ(kernels.sum_exp(&odd[1], 0, 1), 1.0f);
  EXPECT_TRUE(std::isnan(kernels.sum_exp(&odd[2], 0, 1)));
}

TEST_P(EachTier, ArgmaxBreaksTiesLowAndSkipsNan) {
  for (const int64_t n : kSizes) {
    std::vector<float> x(n, -kInf);
    EXPECT_EQ(kernels.argmax(x.data(), n), 0);
    x.assign(n, kNan);
    EXPECT_EQ(kernels.argmax(x.data(), n), 0);
    for (int64_t at = 0; at < n; at += 7) {
      x = normals(n, 5);
      x[at] = 50;
      if (at > 0) x[at - 1] = kNan;
      for (int64_t later = at + 1; later < n; later += 3) x[later] = 50;
      ASSERT_EQ(kernels.argmax(x.data(), n), at) << n;
    }
  }
}

TEST_P(EachTier, RotatesHeads) {
  for (const int half : {1, 4, 8, 16, 20, 32, 64}) {
    for (const bool interleaved : {false, true}) {
      const std::vector<float> head = normals(2 * half, 6);
      const std::vector<float> cos = normals(half, 7), sin = normals(half, 8);
      std::vector<float> out = head;
      out.push_back(kNan);
      kernels.rope(out.data(), cos.data(), sin.data(), half, interleaved);
      for (int i = 0; i < half; ++i) {
        const int first = interleaved ? 2 * i : i, second = interleaved ? 2 * i + 1 : i + half;
        const double a = head[first], b = head[second];
        ASSERT_NEAR(out[first], a * cos[i] - b * sin[i], 1e-5);
        ASSERT_NEAR(out[second], b * cos[i] + a * sin[i], 1e-5);
      }
      ASSERT_TRUE(std::isnan(out[2 * half]));
    }
  }
}

TEST_P(EachTier, ConvertsEveryHalfPrecisionValue) {
  std::vector<uint16_t> bits(65536 + 5);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  const int64_t n = static_cast<int64_t>(bits.size());
  std::vector<float> wide(n);
  std::vector<uint16_t> back(n);
  for (const bool bf16 : {false, true}) {
    (bf16 ? kernels.bf16_to_f32 : kernels.f16_to_f32)(bits.data(), n, wide.data());
    (bf16 ? kernels.f32_to_bf16 : kernels.f32_to_f16)(wide.data(), n, back.data());
    for (int64_t i = 0; i < n; ++i) {
      const float want = bf16 ? bf16_to_f32(bits[i]) : f16_to_f32(bits[i]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(wide[i])) << bits[i];
        ASSERT_TRUE(std::isnan(bf16 ? bf16_to_f32(back[i]) : f16_to_f32(back[i]))) << bits[i];
      } else {
        ASSERT_EQ(wide[i], want) << bits[i];
        ASSERT_EQ(back[i], bits[i]);
      }
    }
  }
}

TEST_P(EachTier, RoundsToNearestEven) {
  std::mt19937 rng(9);
  std::vector<float> x(20011);
  for (float& v : x) {
    uint32_t bits = static_cast<uint32_t>(rng());
    if (rng() % 2) bits &= 0xffffe000u + (rng() % 2 ? 0x1000u : 0);  // ties of both formats
    std::memcpy(&v, &bits, 4);
    if (std::isnan(v)) v = 1.0f;
  }
  std::vector<uint16_t> bf16(x.size()), f16(x.size());
  kernels.f32_to_bf16(x.data(), static_cast<int64_t>(x.size()), bf16.data());
  kernels.f32_to_f16(x.data(), static_cast<int64_t>(x.size()), f16.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(bf16[i], f32_to_bf16(x[i])) << x[i];
    ASSERT_EQ(f16[i], f32_to_f16(x[i])) << x[i];
  }
}

TEST_P(EachTier, AddsAndScales) {
  for (const int64_t n : kSizes) {
    const std::vector<float> x = normals(n, 1), y = normals(n, 2);
    std::vector<float> sum = x, scaled_sum = x, scaled = x, shifted(n);
    kernels.add(sum.data(), y.data(), n);
    kernels.add_scaled(scaled_sum.data(), y.data(), 0.25f, n);
    kernels.scale(scaled.data(), 3, n);
    kernels.subtract(x.data(), 0.5f, n, shifted.data());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_EQ(sum[i], x[i] + y[i]);
      ASSERT_EQ(scaled_sum[i], x[i] + 0.25f * y[i]);
      ASSERT_EQ(scaled[i], x[i] * 3);
      ASSERT_EQ(shifted[i], x[i] - 0.5f);
    }
  }
}

TEST(Elementwise, LogSoftmaxOfALargeRow) {
  const int64_t n = 32003;
  std::vector<float> x = normals(n, 12, 4);
  x[77] = -kInf;  // masked by a grammar or a logit bias
  double sum = 0;
  for (const float v : x) sum += std::exp(double{v});
  std::vector<float> out(n);
  EXPECT_NEAR(log_softmax(x.data(), n, out.data()), std::log(sum), 2e-6 * std::log(sum));
  for (int64_t i = 0; i < n; ++i) {
    if (i == 77) continue;
    ASSERT_NEAR(out[i], x[i] - std::log(sum), 4e-6);
  }
  EXPECT_EQ(out[77], -kInf);
}

TEST(Elementwise, RowsDoNotDependOnTheBatchOrTheTeam) {
  ThreadTeam one(1), four(4);
  const int64_t rows = 200, cols = 513;
  const std::vector<float> x = normals(rows * cols, 1), weight = normals(cols, 2);
  std::vector<float> all(rows * cols), last(cols);
  RmsNormCall call{.x = x.data(), .rows = rows, .cols = cols, .x_stride = cols,
                   .weight = weight.data(), .out = all.data(), .out_stride = cols};
  rms_norm(call, four);
  call.x += (rows - 1) * cols;
  call.rows = 1;
  call.out = last.data();
  rms_norm(call, one);
  EXPECT_EQ(0, std::memcmp(last.data(), &all[(rows - 1) * cols], cols * sizeof(float)));
}

TEST(Elementwise, SoftcapSplitsLargeRowsWithoutGaps) {
  ThreadTeam team(3);
  const int64_t n = 3 * 32000 + 7;
  std::vector<float> x = normals(n, 3, 20), y = x;
  y.push_back(kNan);
  softcap_inplace(y.data(), 30, n, team);
  for (int64_t i = 0; i < n; ++i) ASSERT_NEAR(y[i], 30 * std::tanh(x[i] / 30), 1e-4);
  EXPECT_TRUE(std::isnan(y[n]));
}

TEST(Elementwise, GathersEmbeddings) {
  ThreadTeam team(2);
  const int64_t vocab = 40, cols = 64;
  std::vector<uint16_t> table(vocab * cols);
  for (size_t i = 0; i < table.size(); ++i) table[i] = f32_to_bf16(static_cast<float>(i) * 0.01f);
  TensorView view;
  view.data = table.data();
  view.dtype = DType::bf16;
  view.rank = 2;
  view.shape = {vocab, cols};
  LinearPart part;
  part.weight = view;
  auto packed = PackedLinear::pack({&part, 1}, {}, team);
  ASSERT_TRUE(packed.ok());
  const int32_t ids[] = {39, 0, 17, 17};
  std::vector<float> direct(4 * cols), tied(4 * cols);
  embedding_gather(view, {ids, 2.0f, direct.data()}, team);
  embedding_gather(*packed, {ids, 2.0f, tied.data()}, team);
  for (int i = 0; i < 4; ++i) {
    for (int64_t c = 0; c < cols; ++c) {
      ASSERT_EQ(direct[i * cols + c], 2 * bf16_to_f32(table[ids[i] * cols + c]));
      ASSERT_EQ(tied[i * cols + c], direct[i * cols + c]);
    }
  }
}

struct QkvFixture {
  static constexpr int64_t kRows = 5;
  static constexpr int kHeads = 4, kKvHeads = 2, kDim = 24, kVDim = 16, kPage = 4;
  static constexpr int64_t kStride = (kHeads + kKvHeads) * kDim + kKvHeads * kVDim;
  std::vector<float> qkv = normals(kRows * kStride, 21);
  std::vector<float> q_norm = normals(kDim, 22), k_norm = normals(kDim, 23);
  std::vector<int32_t> positions = {7, 0, 3, 30, 2};
  std::vector<int32_t> slots = {5, -1, 0, 11, 6};
  RopeTable rope;

  QkvRowsCall call(float* rows) {
    QkvRowsCall c;
    c.rows = kRows;
    c.num_q_heads = kHeads;
    c.num_kv_heads = kKvHeads;
    c.head_dim = kDim;
    c.v_head_dim = kVDim;
    c.q = rows;
    c.k = rows + kHeads * kDim;
    c.v = rows + (kHeads + kKvHeads) * kDim;
    c.q_stride = c.k_stride = c.v_stride = kStride;
    c.q_norm = q_norm.data();
    c.k_norm = k_norm.data();
    c.rope = &rope;
    c.positions = positions.data();
    c.kv_slots = slots.data();
    c.page_size = kPage;
    return c;
  }
};

std::vector<double> normed_and_rotated(const float* head, const std::vector<float>& norm,
                                       const std::vector<double>& inv_freq, int position) {
  const int dim = static_cast<int>(norm.size()), half = static_cast<int>(inv_freq.size());
  double square = 0;
  for (int i = 0; i < dim; ++i) square += double{head[i]} * head[i];
  std::vector<double> out(dim);
  for (int i = 0; i < dim; ++i) out[i] = head[i] / std::sqrt(square / dim + 1e-6) * norm[i];
  for (int i = 0; i < half; ++i) {
    const double a = out[i], b = out[i + half], angle = position * inv_freq[i];
    out[i] = a * std::cos(angle) - b * std::sin(angle);
    out[i + half] = b * std::cos(angle) + a * std::sin(angle);
  }
  return out;
}

TEST(Rope, NormsRotatesAndWritesTheKvPool) {
  QkvFixture f;
  const std::vector<double> inv_freq = {1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003};
  f.rope = RopeTable::make(inv_freq, 32);
  ThreadTeam team(2);
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::vector<float> rows = f.qkv;
    QkvRowsCall call = f.call(rows.data());
    // Pool of 3 pages; heads outside tokens in a page; one spare element per head row.
    const int64_t head = (f.kDim + 1) * f.kPage, page = f.kKvHeads * head;
    const size_t bytes = dtype_info(dtype).block_bytes;
    std::vector<unsigned char> k_pool(3 * page * bytes, 0xff), v_pool(3 * page * bytes, 0xff);
    call.k_out = {k_pool.data(), kv_format_of(dtype).value(), page, f.kDim + 1, head, nullptr, nullptr};
    call.v_out = {v_pool.data(), kv_format_of(dtype).value(), page, f.kDim + 1, head, nullptr, nullptr};
    norm_rope_write_kv(call, team);
    const auto pool_value = [&](const std::vector<unsigned char>& pool, int32_t slot, int h, int i) {
      float value;
      dequantize_row(dtype, &pool[(slot / f.kPage * page + slot % f.kPage * (f.kDim + 1) +
                                   h * head + i) * bytes], 1, &value);
      return value;
    };
    const double step = dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1.0 / 256 : 1.0 / 2048;
    for (int64_t r = 0; r < f.kRows; ++r) {
      const float* before = &f.qkv[r * f.kStride];
      for (int h = 0; h < f.kHeads + f.kKvHeads; ++h) {
        const auto want = normed_and_rotated(before + h * f.kDim,
                                             h < f.kHeads ? f.q_norm : f.k_norm, inv_freq,
                                             f.positions[r]);
        for (int i = 0; i < f.kDim; ++i) {
          ASSERT_NEAR(rows[r * f.kStride + h * f.kDim + i], want[i], 1e-5);
          if (h >= f.kHeads && f.slots[r] >= 0) {
            ASSERT_NEAR(pool_value(k_pool, f.slots[r], h - f.kHeads, i), want[i],
                        1e-5 + step * std::abs(want[i]));
          }
        }
      }
      if (f.slots[r] < 0) continue;
      const float* v = before + (f.kHeads + f.kKvHeads) * f.kDim;
      for (int h = 0; h < f.kKvHeads; ++h) {
        for (int i = 0; i < f.kVDim; ++i) {
          const float want = v[h * f.kVDim + i];
          ASSERT_NEAR(pool_value(v_pool, f.slots[r], h, i), want, step * std::abs(want));
        }
      }
    }
    // Slot 1 belongs to nobody: untouched.
    ASSERT_TRUE(std::isnan(pool_value(k_pool, 1, 0, 0)));
    ASSERT_TRUE(std::isnan(pool_value(v_pool, 1, 1, 3)));
  }
}

}  // namespace
}  // namespace warpweave
