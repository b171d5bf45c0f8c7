// Adapters on the GPU against double precision: every type, few and many rows, results in f32 and in the type. Skipped
// without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/float16.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/lora.h"
#include "ops/cuda/testing/device_values.h"

namespace warpweave::gpu {
namespace {

// Values of a type, and what they are.
struct Values {
  std::vector<float> f32;
  std::vector<uint16_t> bits;
  DeviceBuffer device;

  Values(DType dtype, int64_t count, float size, std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count; ++i) {
      float value = size * normal(random);
      if (dtype == DType::bf16) value = bf16_to_f32(bits.emplace_back(f32_to_bf16(value)));
      if (dtype == DType::f16) value = f16_to_f32(bits.emplace_back(f32_to_f16(value)));
      f32.push_back(value);
    }
    device = dtype == DType::f32 ? on_device(f32) : on_device(bits);
  }
};

struct Case {
  DType dtype, y_dtype;
  int rows, adapters, rank;
  int64_t in_features;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << dtype_info(c.dtype).name << " to " << dtype_info(c.y_dtype).name << ", " << c.rows << " rows, " << c.adapters
       << " adapters of rank " << c.rank << ", " << c.in_features << " deep";
}

class GpuLora : public testing::TestWithParam<Case> {};

TEST_P(GpuLora, AddsWhatTheAdaptersOfTheRowsMake) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  const Case c = GetParam();
  std::mt19937 random(c.rows);
  LoraModel model;
  const LoraSiteShape shape = {c.in_features, 2, {0, 512}, {512, 288}};
  model.layers = {{}, {LoraSiteShape{}, LoraSiteShape{}, shape, LoraSiteShape{}}};
  model.max_rank = c.rank;
  const LoraPlace place = {1, LoraSite::gate_up};
  std::vector<LoraSiteWeights> table(c.adapters * 2 * kLoraSites);
  std::vector<Values> kept;
  for (int slot = 0; slot < c.adapters; ++slot) {
    LoraSiteWeights& site = table[slot * 2 * kLoraSites + kLoraSites + static_cast<int>(place.site)];
    kept.emplace_back(c.dtype, 2 * c.rank * c.in_features, 1 / std::sqrt(static_cast<float>(c.in_features)), random);
    site.shrink = kept.back().device.as<void>();
    site.ranks = 2 * c.rank;
    for (int part = 0; part < 2; ++part) {
      kept.emplace_back(c.dtype, c.rank * shape.columns[part], 1 / std::sqrt(static_cast<float>(c.rank)), random);
      site.expand[part] = slot == 1 && part == 1 ? nullptr : kept.back().device.as<void>();
      site.first_rank[part] = part * c.rank;
      site.rank[part] = c.rank;
      site.scale[part] = 0.5f + static_cast<float>(part);
    }
  }
  const DeviceBuffer device_table = on_device(table);
  model.sites = device_table.as<LoraSiteWeights>();

  std::vector<int32_t> slots(c.rows);
  for (int32_t& slot : slots) slot = static_cast<int32_t>(random() % (c.adapters + 1)) - 1;
  std::vector<LoraTile> tiles(max_lora_tiles(c.rows, c.adapters));
  std::vector<int32_t> places(c.rows);
  fill_lora_tiles(slots, tiles, places);
  const DeviceBuffer device_tiles = on_device(tiles);
  const int64_t stride = 816;
  const Values x(c.dtype, c.rows * c.in_features, 1, random);
  Values y(c.y_dtype, c.rows * stride, 1, random);
  const auto sums = DeviceBuffer::allocate(lora_sums_size(model, c.rows, c.adapters) * sizeof(float), "a test");
  const LoraCall call = {.model = &model, .place = place, .tiles = device_tiles.as<LoraTile>(),
                         .num_tiles = static_cast<int>(tiles.size()), .rows = c.rows, .dtype = c.dtype, .sums = sums->as<float>()};
  lora_shrink(call, x.device.as<void>(), nullptr);
  lora_expand(call, {.data = y.device.as<void>(), .dtype = c.y_dtype, .row_stride = stride}, nullptr);

  std::vector<float> got;
  if (c.y_dtype == DType::f32) {
    got = from_device<float>(y.device, y.f32.size());
  } else {
    for (const uint16_t bits : from_device<uint16_t>(y.device, y.f32.size())) {
      got.push_back(c.y_dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits));
    }
  }
  const double bound = c.dtype == DType::f32 ? 1e-5 : c.dtype == DType::f16 ? 5e-3 : 4e-2;
  for (int row = 0; row < c.rows; ++row) {
    std::vector<double> wanted(y.f32.begin() + row * stride, y.f32.begin() + (row + 1) * stride);
    if (slots[row] >= 0) {
      const float* const a = kept[slots[row] * 3].f32.data();
      for (int part = 0; part < (slots[row] == 1 ? 1 : 2); ++part) {
        const float* const b = kept[slots[row] * 3 + 1 + part].f32.data();
        for (int r = 0; r < c.rank; ++r) {
          double middle = 0;
          for (int64_t k = 0; k < c.in_features; ++k) {
            middle += double{x.f32[row * c.in_features + k]} * a[(part * c.rank + r) * c.in_features + k];
          }
          for (int64_t i = 0; i < shape.columns[part]; ++i) {
            wanted[shape.first_column[part] + i] += (0.5 + part) * middle * b[i * c.rank + r];
          }
        }
      }
    }
    for (int64_t i = 0; i < stride; ++i) ASSERT_NEAR(got[row * stride + i], wanted[i], bound * (1 + std::abs(wanted[i]))) << row << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuLora,
                         testing::Values(Case{DType::f32, DType::f32, 5, 3, 16, 256}, Case{DType::f32, DType::f32, 300, 2, 16, 640},
                                         Case{DType::bf16, DType::bf16, 1, 1, 16, 512}, Case{DType::bf16, DType::f32, 64, 8, 16, 2056},
                                         Case{DType::bf16, DType::bf16, 300, 3, 64, 1024}, Case{DType::f16, DType::f16, 33, 2, 128, 72},
                                         Case{DType::f16, DType::f32, 257, 4, 32, 4096}));

}  // namespace
}  // namespace warpweave::gpu
