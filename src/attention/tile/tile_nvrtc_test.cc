// NVRTC compiles every kind of configuration that the CUDA backends ask for; no GPU is needed. Skips
// where there is no NVRTC.
#include <gtest/gtest.h>

#include "attention/tile/tile_spec.h"
#include "device/cuda/nvrtc.h"

namespace warpweave::tile {
namespace {

struct Wanted {
  const char* name;
  TileShape shape;
  int rows;
  int compute_capability = 90;
};

TileShape shape(int dim, KvFormat format, DType dtype, bool dual_chunk = false) {
  TileShape shape;
  shape.head_dim = shape.v_head_dim = dim;
  shape.kv_format = format;
  shape.q_dtype = shape.out_dtype = dtype;
  shape.dual_chunk = dual_chunk;
  return shape;
}

TileShape latent(KvFormat format, DType dtype) {
  TileShape rows = shape(576, format, dtype);
  rows.v_head_dim = 512;
  rows.latent = true;
  return rows;
}

const Wanted kWanted[] = {
    {"PrefillBf16", shape(128, KvFormat::bf16, DType::bf16), 1 << 20},
    {"PrefillBf16Sm80", shape(128, KvFormat::bf16, DType::bf16), 1 << 20, 80},
    {"DecodeF16", shape(64, KvFormat::f16, DType::f16), 8},
    {"SmallFp8", shape(128, KvFormat::fp8_e4m3, DType::bf16), 40},
    {"SmallFp8F16", shape(80, KvFormat::fp8_e5m2, DType::f16), 40},
    {"DecodeFp4Dim256", shape(256, KvFormat::fp4_e2m1, DType::bf16), 8, 80},
    {"PlainF32", shape(64, KvFormat::f32, DType::f32), 1 << 20},
    {"PlainF32OverBf16", shape(13, KvFormat::bf16, DType::f32), 1, 80},
    {"WideDim512", shape(512, KvFormat::bf16, DType::bf16), 1 << 20},
    {"PlainDim512", shape(512, KvFormat::f32, DType::f32), 1 << 20},
    {"Latent", latent(KvFormat::bf16, DType::bf16), 1 << 20},
    {"LatentDecodeF16", latent(KvFormat::f16, DType::f16), 16},
    {"LatentFp8", latent(KvFormat::fp8_e4m3, DType::bf16), 1 << 20},
    {"LatentDecodeFp8", latent(KvFormat::fp8_e4m3, DType::bf16), 8},
    {"LatentFp4", latent(KvFormat::fp4_mla, DType::bf16), 1 << 20},
    {"LatentDecodeFp4", latent(KvFormat::fp4_mla, DType::bf16), 8},
    {"LatentDsMla", latent(KvFormat::fp8_ds_mla, DType::bf16), 1 << 20},
    {"LatentDecodeDsMla", latent(KvFormat::fp8_ds_mla, DType::bf16), 8},
    {"LatentF32", latent(KvFormat::f32, DType::f32), 1 << 20},
    {"DualChunk", shape(128, KvFormat::bf16, DType::bf16, true), 1 << 20},
    {"DualChunkDecodeFp8", shape(64, KvFormat::fp8_e4m3, DType::bf16, true), 8, 80},
    {"DualChunkF32", shape(64, KvFormat::f32, DType::f32, true), 8},
};

class TileNvrtc : public testing::TestWithParam<Wanted> {};

TEST_P(TileNvrtc, Compiles) {
  const auto nvrtc = Nvrtc::get();
  if (!nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message();
  const Wanted& wanted = GetParam();
  const size_t local_bytes = size_t{wanted.compute_capability == 90 ? 227u : 163u} << 10;
  auto spec = choose_tile(wanted.shape, wanted.rows,
                          {.lanes = LaneKind::mma, .local_memory_bytes = local_bytes, .even_splits = true});
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  spec->aligned_rows = wanted.shape.head_dim % 8 == 0;
  const auto cubin = (*nvrtc)->compile({tile_source(spec->lanes), tile_defines(*spec), wanted.compute_capability});
  EXPECT_TRUE(cubin.ok()) << cubin.status().message();
}

INSTANTIATE_TEST_SUITE_P(Configurations, TileNvrtc, testing::ValuesIn(kWanted),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace warpweave::tile
