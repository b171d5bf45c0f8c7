// write_latent_and_absorb leaves the bits of the two kernels that it stands for. Skipped without a GPU.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/float16.h"
#include "device/cuda/cuda_device.h"
#include "kv/kv_codec.h"
#include "ops/cuda/latent.h"
#include "ops/cuda/testing/device_values.h"

namespace warpweave::gpu {
namespace {

constexpr int kPositions = 100, kPageSize = 4;

struct Case {
  int rows, heads, nope, rank, rope;
  KvFormat format;
  bool rotates = true, by_rows = false;
};

template <typename Number>
std::vector<Number> random_values(size_t count, unsigned seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Number> out(count);
  for (Number& x : out) {
    if constexpr (std::is_same_v<Number, uint16_t>)
      x = f32_to_bf16(scale * normal(random));
    else
      x = scale * normal(random);
  }
  return out;
}

class Problem {
 public:
  explicit Problem(const Case& c) : c_(c) {
    std::mt19937 random(7);
    std::vector<int32_t> positions(c.rows), slots(c.rows);
    for (int i = 0; i < c.rows; ++i) {
      positions[i] = static_cast<int32_t>(random() % kPositions);
      slots[i] = i % 5 == 3 ? -1 : i + 2;
    }
    in_ = on_device(random_values<uint16_t>(size_t{1} * c.rows * row_dim(), 1));
    weight_ = on_device(random_values<uint16_t>(size_t{1} * c.heads * c.rank * c.nope, 2, 0.1f));
    norm_ = on_device(random_values<float>(c.rank, 3));
    cos_ = on_device(random_values<float>(size_t{kPositions} * c.rope / 2, 4));
    sin_ = on_device(random_values<float>(size_t{kPositions} * c.rope / 2, 5));
    positions_ = on_device(positions);
    slots_ = on_device(slots);
    scale_ = on_device(std::vector<float>{0.5f});
  }

  struct Result {
    std::vector<uint16_t> queries;
    std::vector<uint8_t> pool;
  };
  Result run(bool fused) const {
    const int stored = kv_stored_dim(c_.format, token_dim());
    const size_t pool_bytes = size_t{1} * (c_.rows + 2 + kPageSize) * stored * 2, queries = size_t{1} * c_.rows * c_.heads * token_dim();
    const DeviceBuffer out = on_device(std::vector<uint16_t>(queries, 0xffff));
    const DeviceBuffer pool = on_device(std::vector<uint8_t>(pool_bytes, 0xee));
    const LatentRowsCall rows = rows_call(out, pool, stored);
    const HeadGemmCall absorb = {
        .weight = weight_.as<void>(),
        .weight_head_stride = int64_t{1} * c_.rank * c_.nope,
        .rows = c_.rows,
        .num_heads = c_.heads,
        .in_dim = c_.nope,
        .out_dim = c_.rank,
        .x = in_.as<void>(),
        .x_stride = row_dim(),
        .x_head_stride = c_.nope + c_.rope,
        .y = out.as<void>(),
        .y_stride = c_.heads * token_dim(),
        .y_head_stride = token_dim(),
        .by_rows = c_.by_rows,
    };
    if (fused) {
      write_latent_and_absorb(rows, absorb, nullptr);
    } else {
      norm_rope_write_latent(rows, nullptr);
      head_gemm(absorb, nullptr);
    }
    return {from_device<uint16_t>(out, queries), from_device<uint8_t>(pool, pool_bytes)};
  }

 private:
  int token_dim() const { return c_.rank + c_.rope; }
  int row_dim() const { return c_.heads * (c_.nope + c_.rope) + token_dim(); }

  LatentRowsCall rows_call(const DeviceBuffer& out, const DeviceBuffer& pool, int stored) const {
    LatentRowsCall call;
    call.rows = c_.rows;
    call.num_heads = c_.heads;
    call.kv_rank = c_.rank;
    call.rope_dim = c_.rope;
    call.q_rope = in_.as<uint16_t>() + c_.nope;
    call.q_stride = call.token_stride = row_dim();
    call.q_head_stride = c_.nope + c_.rope;
    call.q_out = out.as<uint16_t>() + c_.rank;
    call.q_out_stride = c_.heads * token_dim();
    call.q_out_head_stride = token_dim();
    call.token = in_.as<uint16_t>() + c_.heads * (c_.nope + c_.rope);
    call.latent_norm = norm_.as<float>();
    if (c_.rotates) {
      call.cos = cos_.as<float>();
      call.sin = sin_.as<float>();
    }
    call.interleaved = c_.heads % 2 == 0;
    call.positions = positions_.as<int32_t>();
    call.kv_slots = slots_.as<int32_t>();
    call.page_size = kPageSize;
    call.out.data = pool.as<void>();
    call.out.format = c_.format;
    call.out.token_stride = call.out.head_stride = stored;
    call.out.page_stride = kPageSize * stored;
    if (c_.format == KvFormat::fp8_e4m3) call.out.head_scales = scale_.as<float>();
    return call;
  }

  const Case c_;
  DeviceBuffer in_, weight_, norm_, cos_, sin_, positions_, slots_, scale_;
};

class GpuLatentInputs : public testing::TestWithParam<Case> {};

TEST_P(GpuLatentInputs, AreThoseOfTwoKernels) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  const Problem problem(GetParam());
  const Problem::Result wanted = problem.run(false), got = problem.run(true);
  EXPECT_EQ(got.queries, wanted.queries);
  EXPECT_EQ(got.pool, wanted.pool);
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuLatentInputs,
                         testing::Values(Case{1, 16, 128, 512, 64, KvFormat::bf16}, Case{8, 128, 128, 512, 64, KvFormat::bf16},
                                         Case{17, 5, 128, 512, 64, KvFormat::fp8_e4m3},
                                         Case{40, 16, 128, 512, 64, KvFormat::fp8_ds_mla},
                                         Case{33, 5, 128, 512, 64, KvFormat::fp4_mla},
                                         Case{200, 16, 128, 512, 64, KvFormat::bf16, false},
                                         Case{200, 5, 128, 512, 64, KvFormat::fp8_ds_mla, false, true},
                                         Case{9, 4, 256, 256, 32, KvFormat::bf16}, Case{6, 3, 16, 32, 8, KvFormat::bf16}));

}  // namespace
}  // namespace warpweave::gpu
