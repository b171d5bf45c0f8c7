// Norm, rotation and the K/V write on the GPU against f64: both kernels (usual head dims, all others), with and
// without norms, bf16 and fp8 pools; the norm of the residual stream that adds partial sums. Skipped without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "base/float16.h"
#include "base/float8.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/rope_places.h"
#include "ops/cuda/testing/device_values.h"
#include "ops/rope.h"

namespace warpweave::gpu {
namespace {

struct Case {
  int head_dim, rotary_dim;
  bool interleaved, norms;
  KvFormat format;
  int splits = 0;  // partial sums in place of qkv
};

constexpr int kRows = 37, kQHeads = 6, kKvHeads = 2, kHeads = kQHeads + 2 * kKvHeads;
constexpr int kPositions = 100, kPageSize = 4, kPages = 16;
constexpr float kEps = 1e-5f, kOffset = 0.5f;

class GpuRopeTest : public testing::TestWithParam<Case> {};

// One head as the kernel should leave it.
struct Angles {
  const float *cosines, *sines;
};

std::vector<double> expected_head(const Case& c, const uint16_t* head, const std::vector<float>* norm, bool rotate,
                                  Angles angles) {
  const auto [cosines, sines] = angles;
  std::vector<double> out(c.head_dim);
  for (int i = 0; i < c.head_dim; ++i) out[i] = bf16_to_f32(head[i]);
  if (norm != nullptr) {
    double squares = 0;
    for (double x : out) squares += x * x;
    for (int i = 0; i < c.head_dim; ++i) out[i] *= ((*norm)[i] + kOffset) / std::sqrt(squares / c.head_dim + kEps);
  }
  for (int i = 0; rotate && i < c.rotary_dim / 2; ++i) {
    const int first = c.interleaved ? 2 * i : i, second = c.interleaved ? first + 1 : i + c.rotary_dim / 2;
    const double a = out[first], b = out[second];
    out[first] = a * cosines[i] - b * sines[i];
    out[second] = b * cosines[i] + a * sines[i];
  }
  return out;
}

// What a call reads, and what it left: the queries and both pools.
struct Scene {
  const Case c;
  const size_t element = c.format == KvFormat::fp8_e4m3 ? 1 : 2;
  std::vector<uint16_t> qkv = std::vector<uint16_t>(kRows * kHeads * c.head_dim);
  std::vector<float> norms = std::vector<float>(2 * c.head_dim), sums;
  std::vector<float> cosines = std::vector<float>(kPositions * c.rotary_dim / 2), sines = cosines;
  std::vector<int32_t> positions = std::vector<int32_t>(kRows), slots = positions;
  const std::vector<float> scales = {0.5f, 2.0f};
  const int64_t sums_stride = int64_t{kRows} * kHeads * c.head_dim + 8;
  const std::vector<uint8_t> poison = std::vector<uint8_t>(kPages * kPageSize * kKvHeads * c.head_dim * element, 0xee);

  explicit Scene(const Case& of) : c(of) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (uint16_t& x : qkv) x = f32_to_bf16(normal(random));
    for (float& x : norms) x = 1 + 0.1f * normal(random);
    for (size_t i = 0; i < cosines.size(); ++i) {
      const float angle = normal(random);
      cosines[i] = std::cos(angle);
      sines[i] = std::sin(angle);
    }
    for (int i = 0; i < kRows; ++i) {
      positions[i] = static_cast<int32_t>(random() % kPositions);
      slots[i] = i % 5 == 3 ? -1 : (i * 7) % (kPageSize * kPages);
    }
    sums.resize(c.splits * sums_stride);
    for (size_t i = 0; i < qkv.size() && c.splits > 0; ++i) {
      float rest = bf16_to_f32(qkv[i]);
      for (int split = 1; split < c.splits; ++split) rest -= sums[split * sums_stride + i] = normal(random);
      sums[i] = rest;
    }
  }

  struct Result {
    std::vector<uint16_t> out;
    std::vector<uint8_t> pools[2];
    bool operator==(const Result&) const = default;
  };
  // `places` [3, kRows] with the axes of frequencies, or none.
  Result run(const std::vector<int32_t>& places = {}, const std::vector<uint8_t>& axes = {}) const {
    DeviceBuffer device_qkv = on_device(qkv), device_norms = on_device(norms), device_cos = on_device(cosines),
                 device_sin = on_device(sines), device_positions = on_device(positions), device_slots = on_device(slots),
                 device_k = on_device(poison), device_v = on_device(poison), device_scales = on_device(scales),
                 device_sums = on_device(sums), device_places = on_device(places);
    QkvRowsCall call;
    call.qkv = device_qkv.as<void>();
    call.rows = kRows;
    call.num_q_heads = kQHeads;
    call.num_kv_heads = kKvHeads;
    call.head_dim = c.head_dim;
    if (c.norms) {
      call.q_norm = device_norms.as<float>();
      call.k_norm = call.q_norm + c.head_dim;
    }
    call.norm_weight_offset = kOffset;
    call.norm_eps = kEps;
    call.cos = device_cos.as<float>();
    call.sin = device_sin.as<float>();
    call.rotary_dim = c.rotary_dim;
    call.interleaved = c.interleaved;
    call.positions = device_positions.as<int32_t>();
    call.kv_slots = device_slots.as<int32_t>();
    call.page_size = kPageSize;
    RopePlaces row_places;
    if (!places.empty()) row_places.positions = device_places.as<int32_t>();
    row_places.set_axes(axes);
    for (auto [pool, memory] : {std::pair{&call.k_out, &device_k}, std::pair{&call.v_out, &device_v}}) {
      pool->data = memory->as<void>();
      pool->format = c.format;
      pool->head_stride = c.head_dim;
      pool->token_stride = kKvHeads * c.head_dim;
      pool->page_stride = kPageSize * pool->token_stride;
      if (element == 1) pool->head_scales = device_scales.as<float>();
    }
    if (c.splits > 0) {
      call.partials = {device_sums.as<float>(), c.splits, sums_stride};
      EXPECT_EQ(cudaMemset(device_qkv.as<void>(), 0xff, qkv.size() * 2), cudaSuccess);
      EXPECT_TRUE(rope_takes_partials(call));
    }
    norm_rope_write_kv(call, row_places, nullptr);
    return {from_device<uint16_t>(device_qkv, qkv.size()),
            {from_device<uint8_t>(device_k, poison.size()), from_device<uint8_t>(device_v, poison.size())}};
  }

  // Each head of each row against f64, its frequencies turned by `place`(row, frequency).
  template <typename Place>
  void check(const Result& got, Place&& place) const {
    const std::vector<float> q_norm(norms.begin(), norms.begin() + c.head_dim), k_norm(norms.begin() + c.head_dim, norms.end());
    std::vector<float> row_cosines(c.rotary_dim / 2), row_sines(c.rotary_dim / 2);
    size_t written = 0;
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < c.rotary_dim / 2; ++i) {
        const size_t at = size_t{1} * place(row, i) * c.rotary_dim / 2 + i;
        row_cosines[i] = cosines[at];
        row_sines[i] = sines[at];
      }
      for (int head = 0; head < kHeads; ++head) {
        const bool is_q = head < kQHeads, is_v = head >= kQHeads + kKvHeads;
        const size_t at = (size_t{1} * row * kHeads + head) * c.head_dim;
        const std::vector<float>* norm = !c.norms || is_v ? nullptr : is_q ? &q_norm
                                                                           : &k_norm;
        const auto expected = expected_head(c, qkv.data() + at, norm, !is_v, {row_cosines.data(), row_sines.data()});
        if (!is_q && slots[row] < 0) continue;
        const int kv_head = (head - kQHeads) % kKvHeads;
        for (int i = 0; i < c.head_dim; ++i) {
          double value = bf16_to_f32(got.out[at + i]), tolerance = 1e-3 + 0.01 * std::abs(expected[i]);
          if (!is_q) {
            const size_t in_pool = (size_t{1} * slots[row] * kKvHeads + kv_head) * c.head_dim + i;
            const uint8_t* bytes = got.pools[is_v].data() + in_pool * element;
            value = element == 1 ? e4m3_to_f32(*bytes) * scales[kv_head]
                                 : bf16_to_f32(static_cast<uint16_t>(bytes[0] | bytes[1] << 8));
            if (element == 1) tolerance = 0.01 + 0.07 * std::abs(expected[i]);
            written += element;
          }
          ASSERT_NEAR(value, expected[i], tolerance) << "row " << row << " head " << head << " element " << i;
        }
      }
    }
    size_t changed = 0;  // nothing beside the slots
    for (const auto& pool : got.pools) {
      for (size_t i = 0; i < pool.size(); ++i) changed += pool[i] != poison[i];
    }
    EXPECT_LE(changed, written);
  }
};

TEST_P(GpuRopeTest, WritesQueriesKeysAndValues) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  const Scene scene(GetParam());
  scene.check(scene.run(), [&](int row, int) { return scene.positions[row]; });
}

// M-RoPE, whose sections follow each other or take every third frequency.
TEST_P(GpuRopeTest, TurnsEachFrequencyByThePositionOfItsAxis) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  const Scene scene(GetParam());
  std::vector<int32_t> places(3 * kRows), equal;
  std::mt19937 random(4);
  for (int32_t& place : places) place = static_cast<int32_t>(random() % kPositions);
  for (int axis = 0; axis < 3; ++axis) equal.insert(equal.end(), scene.positions.begin(), scene.positions.end());
  const int half = scene.c.rotary_dim / 2, third = half / 3;
  for (const bool interleaved : {false, true}) {
    SCOPED_TRACE(interleaved ? "interleaved" : "one after the other");
    const std::vector<uint8_t> axes = rope_axes(std::vector<int>{half - 2 * third + 1, third, third - 1}, interleaved);
    scene.check(scene.run(places, axes), [&](int row, int i) { return places[axes[i] * kRows + row]; });
    EXPECT_EQ(scene.run(equal, axes), scene.run()) << "equal positions give the bits of one";
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuRopeTest,
                         testing::Values(Case{128, 128, false, false, KvFormat::bf16}, Case{64, 64, false, true, KvFormat::bf16},
                                         Case{256, 256, false, true, KvFormat::bf16},
                                         Case{128, 128, false, false, KvFormat::fp8_e4m3},
                                         Case{128, 64, false, true, KvFormat::bf16}, Case{128, 128, true, false, KvFormat::bf16},
                                         Case{96, 96, false, true, KvFormat::fp8_e4m3},
                                         Case{128, 128, false, false, KvFormat::bf16, 4}, Case{64, 64, false, true, KvFormat::bf16, 3},
                                         Case{256, 256, false, true, KvFormat::fp8_e4m3, 1}));

// What one call of the norm reads and leaves.
struct Norm {
  int rows, cols, splits;
  std::vector<float> x, sums, weight;

  Norm(int rows, int cols, int splits) : rows(rows), cols(cols), splits(splits), x(count()), sums(splits * count() + 4), weight(cols) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 1);
    for (std::vector<float>* values : {&x, &sums, &weight}) {
      for (float& v : *values) v = normal(random);
    }
  }
  size_t count() const { return size_t{1} * rows * cols; }

  struct Result {
    std::vector<uint16_t> out;
    std::vector<float> x;
  };
  // Of the first `taken` rows.
  Result run(int taken) const {
    const size_t elements = size_t{1} * taken * cols;
    DeviceBuffer device_x = on_device(x), device_sums = on_device(sums), device_weight = on_device(weight);
    DeviceBuffer device_out = on_device(std::vector<uint16_t>(elements, 0xffff));
    RmsNormCall call;
    call.x = device_x.as<float>();
    call.partials = {splits > 0 ? device_sums.as<float>() : nullptr, splits, static_cast<int64_t>(count())};
    call.rows = taken;
    call.cols = cols;
    call.weight = device_weight.as<float>();
    call.weight_offset = kOffset;
    call.eps = kEps;
    call.out = device_out.as<void>();
    rms_norm(call, nullptr);
    Result result = {std::vector<uint16_t>(elements), std::vector<float>(elements)};
    EXPECT_EQ(cudaMemcpy(result.out.data(), call.out, elements * 2, cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(result.x.data(), call.x, elements * 4, cudaMemcpyDeviceToHost), cudaSuccess);
    return result;
  }
};

TEST(GpuNormTest, AddsPartialSumsInTheirOrder) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  for (const int cols : {96, 1024, 2052, 4096, 5120, 12288}) {
    for (int splits = 0; splits <= 4; ++splits) {
      for (const int rows : {3, kRows}) {
        SCOPED_TRACE(testing::Message() << rows << " rows of " << cols << " columns, " << splits << " sums");
        Norm norm(rows, cols, splits);
        const Norm::Result result = norm.run(rows);
        for (int row = 0; row < rows; ++row) {
          double squares = 0;
          for (size_t i = size_t{1} * row * cols; i < size_t(row + 1) * cols; ++i) {
            for (int split = 0; split < splits; ++split) norm.x[i] += norm.sums[split * norm.count() + i];
            ASSERT_EQ(result.x[i], norm.x[i]) << "element " << i;
            squares += double{norm.x[i]} * norm.x[i];
          }
          const double inverse = 1 / std::sqrt(squares / cols + kEps);
          for (int i = 0; i < cols; ++i) {
            const size_t at = size_t{1} * row * cols + i;
            const double expected = norm.x[at] * inverse * (norm.weight[i] + kOffset);
            ASSERT_NEAR(bf16_to_f32(result.out[at]), expected, 1e-5 + 0.005 * std::abs(expected));
          }
        }
      }
    }
  }
}

// Few rows with partial sums are shared by several CTAs each, of many a thread does two threads' work: the same bits.
TEST(GpuNormTest, ARowsBitsDoNotDependOnTheNumberOfRows) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  for (const auto& [rows, cols, splits] : {std::tuple{600, 1024, 0}, {600, 2052, 0}, {600, 4096, 0}, {600, 5120, 0}, {400, 12292, 0},
                                           {128, 4096, 4}, {128, 8192, 2}}) {
    const Norm norm(rows, cols, splits);
    const Norm::Result all = norm.run(rows);
    for (const int fewer : {1, 32, 33, 100}) {
      SCOPED_TRACE(testing::Message() << fewer << " of " << rows << " rows of " << cols << " columns");
      const Norm::Result some = norm.run(fewer);
      EXPECT_TRUE(std::equal(some.out.begin(), some.out.end(), all.out.begin()));
      EXPECT_TRUE(std::equal(some.x.begin(), some.x.end(), all.x.begin()));
    }
  }
}

}  // namespace
}  // namespace warpweave::gpu
