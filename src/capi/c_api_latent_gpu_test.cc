// Latent attention through the C interface on a GPU against the same plan on the CPU. Skipped without a GPU for it.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/float16.h"
#include "capi/testing_scene.h"
#include "warpweave/c.h"

namespace warpweave::capi::testing {
namespace {

constexpr int kHeads = 16, kRank = 512, kRowDim = 576, kPage = 16, kPages = 90, kStride = 40;

// A compact tensor of the GPU with the bytes of `host`.
struct OnGpu {
  explicit OnGpu(Array& host, std::vector<int64_t> dims, ww_dtype dtype) : shape(std::move(dims)) {
    bytes = host.size() * dtype.bits / 8;
    EXPECT_EQ(cudaMalloc(&data, bytes), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data, host.bytes(), bytes, cudaMemcpyHostToDevice), cudaSuccess);
    tensor = {data, {WW_DEVICE_CUDA, 0}, static_cast<int32_t>(shape.size()), dtype, shape.data(), nullptr, 0};
  }
  ~OnGpu() { cudaFree(data); }
  OnGpu(const OnGpu&) = delete;
  void copy_to(Array& host) const {
    EXPECT_EQ(cudaMemcpy(host.bytes(), data, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
  }

  void* data = nullptr;
  size_t bytes = 0;
  std::vector<int64_t> shape;
  ww_tensor tensor{};
};

Array random_bf16(std::vector<int64_t> shape, uint64_t seed) {
  Array values(std::move(shape), kBf16);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; i < values.size(); ++i) values.halves()[i] = f32_to_bf16(normal(random));
  return values;
}

TEST(CApiLatentGpu, GivesWhatTheCpuGives) {
  const std::vector<int32_t> q_indptr = {0, 1, 2, 5}, kv_lens = {600, 33, 64};
  std::vector<int32_t> table;
  for (int i = 0; i < 3 * kStride; ++i) table.push_back((i * 37 + 11) % kPages);
  const int64_t rows = q_indptr.back();
  Array q = random_bf16({rows, kHeads, kRowDim}, 1), cache = random_bf16({kPages, kPage, 1, kRowDim}, 2);
  Array out({rows, kHeads, kRank}, kBf16), gpu_out({rows, kHeads, kRank}, kBf16);
  Array lse({rows, kHeads}), gpu_lse({rows, kHeads});
  const Context context;
  const auto run = [&](ww_device device, const ww_tensor* of_q, const ww_tensor* of_k, const ww_tensor* of_out,
                       const ww_tensor* of_lse) {
    ww_plan_options options = latent_options_of(kHeads, kRowDim, kRank, kPage);
    options.q_dtype = kBf16;
    options.scale = 1 / std::sqrt(192.0f);
    options.device = device;
    ww_plan* plan = nullptr;
    ww_status status = ww_plan_create(context.workspace, &options, &plan);
    if (status != WW_OK) return status;
    const ww_batch batch = batch_of(q_indptr, kv_lens, table, kStride);
    status = ww_plan_batch(plan, &batch);
    ww_kv_cache kv = WW_KV_CACHE_INIT;
    kv.k = of_k;
    ww_run_args args = WW_RUN_ARGS_INIT;
    args.q = of_q;
    args.kv = &kv;
    args.out = of_out;
    args.lse_ln = of_lse;
    if (status == WW_OK) status = ww_plan_run(plan, &args);
    ww_plan_destroy(plan);
    return status;
  };
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no GPU";
  const OnGpu q_there(q, {rows, kHeads, kRowDim}, kBf16), cache_there(cache, {kPages, kPage, 1, kRowDim}, kBf16);
  const OnGpu out_there(gpu_out, {rows, kHeads, kRank}, kBf16), lse_there(gpu_lse, {rows, kHeads}, kF32);
  const ww_status status =
      run({WW_DEVICE_CUDA, 0}, &q_there.tensor, &cache_there.tensor, &out_there.tensor, &lse_there.tensor);
  if (status == WW_UNSUPPORTED) GTEST_SKIP() << ww_last_error();
  ASSERT_EQ(status, WW_OK) << ww_last_error();
  ASSERT_EQ(run({WW_DEVICE_CPU, 0}, q.tensor(), cache.tensor(), out.tensor(), lse.tensor()), WW_OK) << ww_last_error();
  out_there.copy_to(gpu_out);
  lse_there.copy_to(gpu_lse);
  for (size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(gpu_lse[i], lse[i], 2e-2) << i;
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_NEAR(bf16_to_f32(gpu_out.halves()[i]), bf16_to_f32(out.halves()[i]), 2e-2) << i;
  }
}

}  // namespace
}  // namespace warpweave::capi::testing
