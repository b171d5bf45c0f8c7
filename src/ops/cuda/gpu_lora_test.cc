// Adapters on the GPU against double precision: every type, few and many rows, results in f32 and in the type; in kernels of
// their own and in those of GEMMs. Skipped
// without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/float16.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/lora.h"
#include "ops/cuda/stream_gemm.h"
#include "ops/cuda/testing/device_values.h"

namespace warpweave::gpu {
namespace {

// Values of a type, and what they are.
struct Values {
  std::vector<float> f32;
  std::vector<uint16_t> bits;
  DeviceBuffer device;

  Values() = default;
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

// A layer's GEMM with two parts, adapters for it in GPU memory, and rows of all of them and of none.
class Problem {
 public:
  static constexpr int64_t kStride = 816;  // of results: the last columns are of no part

  Problem(const Case& c, int64_t part_columns, int64_t other_columns) : case_(c), random_(c.rows) {
    shape_ = {c.in_features, 2, {0, part_columns}, {part_columns, other_columns}};
    model_.layers = {{}, {LoraSiteShape{}, LoraSiteShape{}, shape_, LoraSiteShape{}}};
    model_.max_rank = c.rank;
    std::vector<LoraSiteWeights> table(c.adapters * 2 * kLoraSites);
    for (int slot = 0; slot < c.adapters; ++slot) {
      fill(slot, table[slot * 2 * kLoraSites + kLoraSites + static_cast<int>(LoraSite::gate_up)]);
    }
    table_ = on_device(table);
    counters_ = on_device(std::vector<int32_t>(2, 0));
    model_.sites = table_.as<LoraSiteWeights>();
    model_.counters = counters_.as<int32_t>();
    slots_.resize(c.rows);
    for (int32_t& slot : slots_) slot = static_cast<int32_t>(random_() % (c.adapters + 1)) - 1;
    std::vector<LoraTile> tiles(max_lora_tiles(c.rows, c.adapters));
    std::vector<int32_t> places(c.rows);
    fill_lora_tiles(slots_, tiles, places);
    num_tiles_ = static_cast<int>(tiles.size());
    tiles_ = on_device(tiles);
    places_ = on_device(places);
    sums_ = DeviceBuffer::allocate(lora_sums_size(model_, c.rows, c.adapters) * sizeof(float), "a test").value();
    x_ = values(c.rows * c.in_features, 1);
  }

  Values values(int64_t count, float size) { return Values(case_.dtype, count, size, random_); }
  LoraCall call() const {
    return {.model = &model_, .place = {1, LoraSite::gate_up}, .tiles = tiles_.as<LoraTile>(), .places = places_.as<int32_t>(),
            .num_tiles = num_tiles_, .rows = case_.rows, .dtype = case_.dtype, .sums = sums_.as<float>()};
  }
  const Values& x() const { return x_; }
  const DeviceBuffer& counters() const { return counters_; }
  std::mt19937& random() { return random_; }

  // What a row's adapter adds to its columns.
  void add(int row, std::vector<double>& to) const {
    const int slot = slots_[row];
    if (slot < 0) return;
    const float* const a = kept_[slot * 3].f32.data();
    for (int part = 0; part < (slot == 1 ? 1 : 2); ++part) {
      const float* const b = kept_[slot * 3 + 1 + part].f32.data();
      for (int r = 0; r < case_.rank; ++r) {
        double middle = 0;
        for (int64_t k = 0; k < case_.in_features; ++k) {
          middle += double{x_.f32[row * case_.in_features + k]} * a[(part * case_.rank + r) * case_.in_features + k];
        }
        for (int64_t i = 0; i < shape_.columns[part]; ++i) {
          to[shape_.first_column[part] + i] += (0.5 + part) * middle * b[i * case_.rank + r];
        }
      }
    }
  }

 private:
  // The second adapter leaves the second part as it is.
  void fill(int slot, LoraSiteWeights& site) {
    kept_.push_back(values(2 * case_.rank * case_.in_features, 1 / std::sqrt(static_cast<float>(case_.in_features))));
    site.shrink = kept_.back().device.as<void>();
    site.ranks = 2 * case_.rank;
    for (int part = 0; part < 2; ++part) {
      kept_.push_back(values(case_.rank * shape_.columns[part], 1 / std::sqrt(static_cast<float>(case_.rank))));
      site.expand[part] = slot == 1 && part == 1 ? nullptr : kept_.back().device.as<void>();
      site.first_rank[part] = part * case_.rank;
      site.rank[part] = case_.rank;
      site.scale[part] = 0.5f + static_cast<float>(part);
    }
  }

  const Case case_;
  std::mt19937 random_;
  LoraSiteShape shape_;
  LoraModel model_;
  std::vector<Values> kept_;
  std::vector<int32_t> slots_;
  int num_tiles_ = 0;
  DeviceBuffer table_, counters_, tiles_, places_, sums_;
  Values x_;
};

class GpuLora : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(GpuLora, AddsWhatTheAdaptersOfTheRowsMake) {
  const Case c = GetParam();
  Problem p(c, 512, 288);
  const int64_t stride = Problem::kStride;
  const Values y(c.y_dtype, c.rows * stride, 1, p.random());
  lora_shrink(p.call(), p.x().device.as<void>(), nullptr);
  lora_expand(p.call(), {.data = y.device.as<void>(), .dtype = c.y_dtype, .row_stride = stride}, nullptr);

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
    p.add(row, wanted);
    for (int64_t i = 0; i < stride; ++i) ASSERT_NEAR(got[row * stride + i], wanted[i], bound * (1 + std::abs(wanted[i]))) << row << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuLora,
                         testing::Values(Case{DType::f32, DType::f32, 5, 3, 16, 256}, Case{DType::f32, DType::f32, 300, 2, 16, 640},
                                         Case{DType::bf16, DType::bf16, 1, 1, 16, 512}, Case{DType::bf16, DType::f32, 64, 8, 16, 2056},
                                         Case{DType::bf16, DType::bf16, 300, 3, 64, 1024}, Case{DType::f16, DType::f16, 33, 2, 128, 72},
                                         Case{DType::f16, DType::f32, 257, 4, 32, 4096}));

// A GEMM's result before adapters, in double precision.
std::vector<double> gemm_row(const Values& x, const Values& w, int row, int64_t columns, int64_t depth) {
  std::vector<double> out(columns);
  for (int64_t column = 0; column < columns; ++column) {
    for (int64_t k = 0; k < depth; ++k) out[column] += double{x.f32[row * depth + k]} * w.f32[column * depth + k];
  }
  return out;
}

class GpuLoraGemm : public GpuLora {};

// Partial sums of a streamed GEMM, several times one after the other: the counters are as before each time.
TEST_P(GpuLoraGemm, JoinsItsPartialSums) {
  const Case c = GetParam();
  Problem p(c, 512, 288);
  const int64_t columns = 816;
  const Values w = p.values(columns * c.in_features, 1 / std::sqrt(static_cast<float>(c.in_features)));
  const GpuLinear linear = {.weight = w.device.as<void>(), .dtype = c.dtype, .in_features = c.in_features, .out_features = columns};
  const LoraCall adapters = p.call();
  const GemmCall call = {.linear = &linear, .x = p.x().device.as<void>(), .rows = c.rows, .y_dtype = DType::f32, .y_stride = columns,
                         .adapters = &adapters};
  if (!stream_gemm_takes(call)) GTEST_SKIP() << "needs wgmma";
  for (const StreamPlan& plan : {StreamPlan{128, 1, 1, 1}, StreamPlan{128, 4, 3, 9}, StreamPlan{192, 3, 2, 3}, stream_plan(call)}) {
    const DeviceBuffer sums = on_device(std::vector<float>(plan.splits * c.rows * columns, NAN));
    for (int again = 0; again < 3; ++again) stream_gemm(call, plan, sums.as<float>(), nullptr);
    const std::vector<float> got = from_device<float>(sums, plan.splits * c.rows * columns);
    for (int row = 0; row < c.rows; ++row) {
      std::vector<double> wanted = gemm_row(p.x(), w, row, columns, c.in_features);
      p.add(row, wanted);
      for (int64_t i = 0; i < columns; ++i) {
        double sum = 0;
        for (int split = 0; split < plan.splits; ++split) sum += got[(split * c.rows + row) * columns + i];
        ASSERT_NEAR(sum, wanted[i], 0.02 * (1 + std::abs(wanted[i]))) << row << " " << i << ", " << plan.tile << " by " << plan.splits;
      }
    }
    EXPECT_EQ(from_device<int32_t>(p.counters(), 2), std::vector<int32_t>(2, 0));
  }
}

TEST_P(GpuLoraGemm, JoinsGatesAndUpsBeforeTheyAreActivated) {
  const Case c = GetParam();
  const int64_t columns = 400;
  Problem p(c, columns, columns);
  const Values w = p.values(2 * columns * c.in_features, 1 / std::sqrt(static_cast<float>(c.in_features)));
  const GpuLinear linear = {.weight = w.device.as<void>(), .dtype = c.dtype, .in_features = c.in_features, .out_features = 2 * columns,
                            .glu = GluActivation::silu};
  const LoraCall adapters = p.call();
  const DeviceBuffer y = on_device(std::vector<uint16_t>(c.rows * columns, 0x7fff));
  const GemmCall call = {.linear = &linear, .x = p.x().device.as<void>(), .rows = c.rows, .y = y.as<void>(), .y_dtype = c.dtype,
                         .y_stride = columns, .fused_glu = true, .adapters = &adapters};
  if (!stream_gemm_takes(call)) GTEST_SKIP() << "needs wgmma";
  stream_gemm(call, stream_plan(call), nullptr, nullptr);
  const std::vector<uint16_t> got = from_device<uint16_t>(y, c.rows * columns);
  for (int row = 0; row < c.rows; ++row) {
    std::vector<double> both = gemm_row(p.x(), w, row, 2 * columns, c.in_features);
    p.add(row, both);
    for (int64_t i = 0; i < columns; ++i) {
      const double wanted = both[i] / (1 + std::exp(-both[i])) * both[columns + i];
      const uint16_t bits = got[row * columns + i];
      ASSERT_NEAR(c.dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits), wanted, 0.03 * (1 + std::abs(wanted))) << row << " " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, GpuLoraGemm,
                         testing::Values(Case{DType::bf16, DType::bf16, 64, 8, 16, 4096}, Case{DType::bf16, DType::bf16, 17, 2, 80, 520},
                                         Case{DType::f16, DType::f16, 40, 40, 32, 1024}, Case{DType::f16, DType::f16, 63, 3, 160, 14336},
                                         Case{DType::bf16, DType::bf16, 33, 1, 16, 64},
                                         Case{DType::bf16, DType::bf16, 17, 1, 16, 28672}));

}  // namespace
}  // namespace warpweave::gpu
