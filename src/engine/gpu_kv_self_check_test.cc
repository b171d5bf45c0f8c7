// The GPU's check of a KV format finds what the CPU's finds. Skipped without a GPU.
#include "engine/gpu_kv_self_check.h"

#include <gtest/gtest.h>

#include "attention/select.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/stream.h"
#include "model/build_decoder.h"
#include "model/gpu_weights.h"
#include "model/model_bundle.h"

namespace warpweave {
namespace {

constexpr int kContext = 128;
const ModelBundleOptions kNoTokenizer = {.load_format = "auto", .tokenizer_path = {}, .skip_tokenizer = true};

TEST(GpuKvSelfCheck, AgreesWithTheCpu) {
  const Result<CudaDeviceInfo> gpu = probe_cuda_device();
  if (!gpu.ok()) GTEST_SKIP() << gpu.status().message();
  const auto arch = arch_of_compute_capability(gpu->compute_capability);
  ASSERT_TRUE(arch.has_value());
  ThreadTeam team(2);
  const BuildOptions build = {.dtype = DType::bf16, .max_positions = kContext, .progress = {}};

  auto host_bundle = open_model_bundle("models/tale-llama", kNoTokenizer);
  ASSERT_TRUE(host_bundle.ok()) << host_bundle.status().message();
  auto host = build_decoder(host_bundle->config, host_bundle->weights, build, team);
  ASSERT_TRUE(host.ok()) << host.status().message();

  auto bundle = open_model_bundle("models/tale-llama", kNoTokenizer);
  ASSERT_TRUE(bundle.ok());
  auto weights = load_gpu_weights(bundle->config, bundle->weights, build, team);
  ASSERT_TRUE(weights.ok()) << weights.status().message();
  auto model = GpuDecoder::create(bundle->config, build, std::move(weights).value(),
                                  {.max_tokens = kContext, .max_logits_rows = kContext});
  ASSERT_TRUE(model.ok()) << model.status().message();
  auto stream = create_stream();
  ASSERT_TRUE(stream.ok());

  for (KvFormat format : {KvFormat::fp8_e4m3, KvFormat::fp8_e5m2, KvFormat::fp4_e2m1}) {
    SCOPED_TRACE(kv_format_name(format));
    const auto expected = check_kv_format(**host, format, kContext, team);
    ASSERT_TRUE(expected.ok()) << expected.status().message();
    const auto found = check_gpu_kv_format(**model, format, {.arch = *arch, .dtype = DType::bf16,
                                                             .max_tokens = kContext, .stream = stream->get(),
                                                             .team = &team});
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->tokens, expected->tokens);
    EXPECT_EQ(found->fits, expected->fits);
    // bf16 activations round differently; what is measured does not change by much.
    EXPECT_NEAR(found->k.largest, expected->k.largest, 0.05 * expected->k.largest);
    EXPECT_NEAR(found->v.largest, expected->v.largest, 0.05 * expected->v.largest);
    EXPECT_NEAR(found->k.relative_error, expected->k.relative_error, 0.1 * expected->k.relative_error);
    EXPECT_NEAR(found->v.relative_error, expected->v.relative_error, 0.1 * expected->v.relative_error);
  }
}

}  // namespace
}  // namespace warpweave
