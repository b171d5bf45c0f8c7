// The operations of latent attention on the GPU against double precision. Skipped without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "base/float16.h"
#include "base/float8.h"
#include "device/cuda/cuda_device.h"
#include "kv/kv_codec.h"
#include "kv/latent_token.h"
#include "ops/cuda/latent.h"
#include "ops/cuda/testing/device_values.h"

namespace warpweave::gpu {
namespace {

constexpr int kRows = 37, kPositions = 100, kPageSize = 4, kPages = 16;
constexpr float kEps = 1e-6f;

std::vector<uint16_t> random_bf16(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> out(count);
  for (uint16_t& x : out) x = f32_to_bf16(normal(random));
  return out;
}

struct Case {
  int heads, nope, rank, rope;
  bool interleaved;
  KvFormat format;
};

class GpuLatentTest : public testing::TestWithParam<Case> {};

TEST_P(GpuLatentTest, NormsRotatesAndWrites) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  const Case c = GetParam();
  const bool fp8 = c.format == KvFormat::fp8_e4m3, packed = kv_format_is_packed(c.format);
  const int q_head = c.nope + c.rope, token_dim = c.rank + c.rope, row_dim = c.heads * q_head + token_dim, out_dim = c.heads * token_dim;
  const auto in = random_bf16(size_t{kRows} * row_dim, 1);
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> weight(c.rank), cosines(kPositions * c.rope / 2), sines(cosines.size());
  for (float& x : weight) x = 1 + 0.1f * normal(random);
  for (size_t i = 0; i < cosines.size(); ++i) {
    const float angle = normal(random);
    cosines[i] = std::cos(angle);
    sines[i] = std::sin(angle);
  }
  std::vector<int32_t> positions(kRows), slots(kRows);
  for (int i = 0; i < kRows; ++i) {
    positions[i] = static_cast<int32_t>(random() % kPositions);
    slots[i] = i % 5 == 3 ? -1 : (i * 7) % (kPageSize * kPages);
  }
  const size_t element = fp8 || packed ? 1 : 2;
  const int stored_dim = kv_stored_dim(c.format, token_dim);
  const std::vector<uint8_t> poison(size_t{kPages} * kPageSize * stored_dim * element, 0xee);
  const std::vector<uint16_t> unwritten(size_t{kRows} * out_dim, 0xffff);
  const std::vector<float> scale = {0.5f};
  const DeviceBuffer device_in = on_device(in), device_weight = on_device(weight), device_cos = on_device(cosines),
                     device_sin = on_device(sines), device_positions = on_device(positions), device_slots = on_device(slots),
                     device_pool = on_device(poison), device_out = on_device(unwritten), device_scale = on_device(scale);
  LatentRowsCall call;
  call.rows = kRows;
  call.num_heads = c.heads;
  call.kv_rank = c.rank;
  call.rope_dim = c.rope;
  call.q_rope = device_in.as<uint16_t>() + c.nope;  // stays as it is
  call.q_stride = call.token_stride = row_dim;
  call.q_head_stride = q_head;
  call.q_out = device_out.as<uint16_t>() + c.rank;
  call.q_out_stride = out_dim;
  call.q_out_head_stride = token_dim;
  call.token = device_in.as<uint16_t>() + c.heads * q_head;
  call.latent_norm = device_weight.as<float>();
  call.norm_eps = kEps;
  call.cos = device_cos.as<float>();
  call.sin = device_sin.as<float>();
  call.interleaved = c.interleaved;
  call.positions = device_positions.as<int32_t>();
  call.kv_slots = device_slots.as<int32_t>();
  call.page_size = kPageSize;
  call.out.data = device_pool.as<void>();
  call.out.format = c.format;
  call.out.token_stride = call.out.head_stride = stored_dim;
  call.out.page_stride = kPageSize * stored_dim;
  if (fp8) call.out.head_scales = device_scale.as<float>();
  norm_rope_write_latent(call, nullptr);

  const auto out = from_device<uint16_t>(device_out, unwritten.size());
  const auto pool = from_device<uint8_t>(device_pool, poison.size());
  const auto rotated = [&](int row, int from, int i) {
    const int half = c.rope / 2, pair = c.interleaved ? i / 2 : i % half;
    const bool first = c.interleaved ? i % 2 == 0 : i < half;
    const int other = c.interleaved ? i ^ 1 : (i + half) % c.rope;
    const double x = bf16_to_f32(in[size_t{1} * row * row_dim + from + i]), y = bf16_to_f32(in[size_t{1} * row * row_dim + from + other]);
    const size_t at = size_t{1} * positions[row] * half + pair;
    return x * cosines[at] + (first ? -1 : 1) * y * sines[at];
  };
  size_t written = 0;
  for (int row = 0; row < kRows; ++row) {
    for (int head = 0; head < c.heads; ++head) {
      for (int i = 0; i < token_dim; ++i) {
        const uint16_t got = out[size_t{1} * row * out_dim + head * token_dim + i];
        if (i < c.rank) {
          ASSERT_EQ(got, 0xffff) << "the latent part is not this kernel's";
        } else {
          const double wanted = rotated(row, head * q_head + c.nope, i - c.rank);
          ASSERT_NEAR(bf16_to_f32(got), wanted, 1e-3 + 0.01 * std::abs(wanted)) << row << " " << head << " " << i;
        }
      }
    }
    if (slots[row] < 0) continue;
    const int token_at = c.heads * q_head;
    double squares = 0;
    for (int i = 0; i < c.rank; ++i) squares += std::pow(bf16_to_f32(in[size_t{1} * row * row_dim + token_at + i]), 2);
    std::vector<float> stored(token_dim);
    if (packed) {
      const KvPoolView view = {.data = pool.data(), .format = c.format};
      kv_decode_run(view, 0, int64_t{slots[row]} * stored_dim, token_dim, stored.data());
      written += stored_dim;
    }
    for (int i = 0; i < token_dim; ++i) {
      const double normed = bf16_to_f32(in[size_t{1} * row * row_dim + token_at + i]) / std::sqrt(squares / c.rank + kEps);
      const double wanted = i < c.rank ? normed * weight[i] : rotated(row, token_at + c.rank, i - c.rank);
      if (packed) {
        // fp4: half of the step that the block's largest value has, between 4 and 6, and its scale's rounding.
        const double coded = c.format == KvFormat::fp4_mla ? 0.7 : 2e-4 + 0.07 * std::abs(wanted);
        const double bound = i < c.rank ? coded : 1e-3 + 0.01 * std::abs(wanted);
        ASSERT_NEAR(stored[i], wanted, bound) << row << " " << i;
        continue;
      }
      const uint8_t* bytes = pool.data() + (size_t{1} * slots[row] * token_dim + i) * element;
      const double got = fp8 ? e4m3_to_f32(*bytes) * scale[0] : bf16_to_f32(static_cast<uint16_t>(bytes[0] | bytes[1] << 8));
      ASSERT_NEAR(got, wanted, fp8 ? 0.01 + 0.07 * std::abs(wanted) : 1e-3 + 0.01 * std::abs(wanted)) << row << " " << i;
      written += element;
    }
  }
  size_t changed = 0;  // nothing beside the slots
  for (size_t i = 0; i < pool.size(); ++i) changed += pool[i] != poison[i];
  EXPECT_LE(changed, written);
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuLatentTest,
                         testing::Values(Case{16, 128, 512, 64, true, KvFormat::bf16}, Case{3, 16, 32, 8, false, KvFormat::bf16},
                                         Case{5, 128, 512, 64, true, KvFormat::fp8_e4m3},
                                         Case{16, 128, 512, 64, true, KvFormat::fp8_ds_mla},
                                         Case{2, 128, 512, 64, false, KvFormat::fp8_ds_mla},
                                         Case{3, 128, 512, 64, true, KvFormat::fp4_mla}));

// What the host packs of the same values, which an f32 pool keeps.
TEST(GpuLatent, PackedTokensHaveTheHostsBits) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  const auto in = random_bf16(size_t{kRows} * kPackedTokenDim, 3);
  std::vector<float> weight(kPackedLatentDim);
  // From values that every scale is too large for to those that none holds.
  for (int i = 0; i < kPackedLatentDim; ++i) weight[i] = std::ldexp(1.0f, i / 16 - 16);
  std::vector<int32_t> slots(kRows);
  std::iota(slots.begin(), slots.end(), 0);
  const DeviceBuffer device_in = on_device(in), device_weight = on_device(weight), device_slots = on_device(slots);
  const auto write = [&](KvFormat format) {
    const int stored = kv_stored_dim(format, kPackedTokenDim);
    const DeviceBuffer pool = on_device(std::vector<uint8_t>(size_t{kRows + kPageSize} * stored * kv_format_bits(format) / 8));
    LatentRowsCall call;
    call.rows = kRows;
    call.kv_rank = kPackedLatentDim;
    call.rope_dim = kPackedRopeDim;
    call.token = device_in.as<void>();
    call.token_stride = kPackedTokenDim;
    call.latent_norm = device_weight.as<float>();
    call.positions = call.kv_slots = device_slots.as<int32_t>();
    call.page_size = kPageSize;
    call.out = {.data = pool.as<void>(), .format = format, .page_stride = int64_t{kPageSize} * stored, .token_stride = stored};
    norm_rope_write_latent(call, nullptr);
    return from_device<uint8_t>(pool, size_t{kRows} * stored * kv_format_bits(format) / 8);
  };
  const std::vector<uint8_t> values = write(KvFormat::f32);
  for (const KvFormat format : {KvFormat::fp8_ds_mla, KvFormat::fp4_mla}) {
    const std::vector<uint8_t> got = write(format);
    std::vector<uint8_t> wanted(got.size());
    for (int row = 0; row < kRows; ++row) {
      pack_latent_token(format, reinterpret_cast<const float*>(values.data()) + row * kPackedTokenDim,
                        reinterpret_cast<std::byte*>(wanted.data()) + row * kv_stored_dim(format, kPackedTokenDim));
    }
    EXPECT_EQ(got, wanted) << kv_format_name(format);
  }
}

TEST(GpuLatent, NormsCompressedQueries) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  constexpr int kCols = 1536, kStride = 2112;
  const auto in = random_bf16(size_t{kRows} * kStride, 4);
  std::vector<float> weight(kCols);
  for (int i = 0; i < kCols; ++i) weight[i] = 0.5f + 0.001f * static_cast<float>(i);
  const DeviceBuffer device_in = on_device(in), device_weight = on_device(weight);
  const DeviceBuffer device_out = on_device(std::vector<uint16_t>(size_t{kRows} * kCols, 0xffff));
  norm_rows({.x = device_in.as<void>(), .x_stride = kStride, .rows = kRows, .cols = kCols, .weight = device_weight.as<float>(),
             .eps = kEps, .out = device_out.as<void>()}, nullptr);
  const auto out = from_device<uint16_t>(device_out, size_t{kRows} * kCols);
  for (int row = 0; row < kRows; ++row) {
    double squares = 0;
    for (int i = 0; i < kCols; ++i) squares += std::pow(bf16_to_f32(in[size_t{1} * row * kStride + i]), 2);
    for (int i = 0; i < kCols; ++i) {
      const double wanted = bf16_to_f32(in[size_t{1} * row * kStride + i]) / std::sqrt(squares / kCols + kEps) * weight[i];
      ASSERT_NEAR(bf16_to_f32(out[size_t{1} * row * kCols + i]), wanted, 1e-3 + 0.01 * std::abs(wanted)) << row << " " << i;
    }
  }
}

struct Heads {
  int rows, heads, in_dim, out_dim;
  bool by_rows = false;
};

class GpuHeadGemm : public testing::TestWithParam<Heads> {};

TEST_P(GpuHeadGemm, AreThoseOfDoublePrecision) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  const Heads c = GetParam();
  const int x_head = c.in_dim + 64, y_head = c.out_dim + 64;
  const auto weight = random_bf16(size_t{1} * c.heads * c.out_dim * c.in_dim, 5), x = random_bf16(size_t{1} * c.rows * c.heads * x_head, 6);
  const DeviceBuffer device_weight = on_device(weight), device_x = on_device(x);
  const DeviceBuffer device_y = on_device(std::vector<uint16_t>(size_t{1} * c.rows * c.heads * y_head, 0xffff));
  head_gemm({.weight = device_weight.as<void>(), .weight_head_stride = int64_t{1} * c.out_dim * c.in_dim, .rows = c.rows, .num_heads = c.heads, .in_dim = c.in_dim,
             .out_dim = c.out_dim, .x = device_x.as<void>(), .x_stride = int64_t{1} * c.heads * x_head, .x_head_stride = x_head,
             .y = device_y.as<void>(), .y_stride = int64_t{1} * c.heads * y_head, .y_head_stride = y_head,
             .by_rows = c.by_rows}, nullptr);
  const auto y = from_device<uint16_t>(device_y, size_t{1} * c.rows * c.heads * y_head);
  for (size_t i = 0; i < y.size(); ++i) {
    const size_t row_head = i / y_head;
    const int column = static_cast<int>(i % y_head), head = static_cast<int>(row_head % c.heads);
    if (column >= c.out_dim) {
      ASSERT_EQ(y[i], 0xffff);
      continue;
    }
    if ((i * 2654435761u >> 7) % 13 != 0) continue;  // a part of them
    double wanted = 0;
    for (int k = 0; k < c.in_dim; ++k) {
      wanted += double{bf16_to_f32(weight[(size_t{1} * head * c.out_dim + column) * c.in_dim + k])} * bf16_to_f32(x[row_head * x_head + k]);
    }
    ASSERT_NEAR(bf16_to_f32(y[i]), wanted, 0.02 + 0.01 * std::abs(wanted)) << row_head << " " << column;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GpuHeadGemm,
                         testing::Values(Heads{1, 16, 128, 512}, Heads{16, 16, 512, 128}, Heads{31, 4, 128, 512},
                                         Heads{65, 4, 512, 128}, Heads{200, 3, 128, 512}, Heads{256, 16, 512, 128}, Heads{129, 2, 384, 64}, Heads{5, 4, 16, 32}, Heads{7, 4, 32, 12},
                                         Heads{64, 16, 128, 512, true}, Heads{33, 5, 512, 128, true}, Heads{256, 16, 512, 128, true},
                                         Heads{200, 3, 128, 512, true}, Heads{129, 2, 384, 96, true}, Heads{70, 3, 64, 128, true}));

}  // namespace
}  // namespace warpweave::gpu
