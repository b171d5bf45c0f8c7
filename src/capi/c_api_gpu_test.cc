// The C interface on a GPU against the same plan on the CPU. Skipped where there is no GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/float16.h"
#include "warpweave/c.h"

namespace {

constexpr int kQHeads = 8, kKvHeads = 2, kDim = 128, kPageSize = 16, kPages = 400;
constexpr ww_dtype kBf16 = {WW_DTYPE_BFLOAT, 16, 1}, kF32 = {WW_DTYPE_FLOAT, 32, 1};

// The same bytes on both sides; a tensor of either.
struct Both {
  std::vector<char> host;
  void* device = nullptr;
  std::vector<int64_t> shape;
  ww_dtype dtype;
  ww_tensor tensor[2]{};

  Both(std::vector<int64_t> dims, ww_dtype type, uint64_t seed)
      : shape(std::move(dims)), dtype(type) {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    host.resize(count * type.bits / 8);
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < count && seed != 0; ++i) {
      const float value = normal(random);
      type.bits == 32 ? (void)(reinterpret_cast<float*>(host.data())[i] = value)
                      : (void)(reinterpret_cast<uint16_t*>(host.data())[i] = warpweave::f32_to_bf16(value));
    }
    EXPECT_EQ(cudaMalloc(&device, host.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // it may not have arrived yet, and no stream of a test waits for it
    for (int gpu = 0; gpu < 2; ++gpu) {
      tensor[gpu] = {gpu ? device : host.data(), {gpu ? WW_DEVICE_CUDA : WW_DEVICE_CPU, 0},
                     static_cast<int32_t>(shape.size()), dtype, shape.data(), nullptr, 0};
    }
  }
  ~Both() { cudaFree(device); }
  Both(const Both&) = delete;

  // The GPU's values beside the host's: the largest difference.
  double difference() const {
    std::vector<char> copy(host.size());
    EXPECT_EQ(cudaMemcpy(copy.data(), device, copy.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    double top = 0;
    for (size_t i = 0; i < copy.size() * 8 / dtype.bits; ++i) {
      const float a = dtype.bits == 32 ? reinterpret_cast<const float*>(host.data())[i]
                                       : warpweave::bf16_to_f32(reinterpret_cast<const uint16_t*>(host.data())[i]);
      const float b = dtype.bits == 32 ? reinterpret_cast<float*>(copy.data())[i]
                                       : warpweave::bf16_to_f32(reinterpret_cast<uint16_t*>(copy.data())[i]);
      if (a == b) continue;
      const double here = std::fabs(static_cast<double>(a) - b);
      if (!(here <= top)) top = here;
    }
    return top;
  }
};

class CApiGpu : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(ww_context_create(nullptr, &context_), WW_OK);
    ASSERT_EQ(ww_workspace_create(context_, 0, &workspace_), WW_OK);
    ww_plan_options options = this->options(true);
    ww_plan* plan = nullptr;
    if (ww_plan_create(workspace_, &options, &plan) == WW_UNSUPPORTED)
      GTEST_SKIP() << ww_last_error();
    ww_plan_destroy(plan);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    ww_workspace_destroy(workspace_);
    ww_context_destroy(context_);
  }

  static ww_plan_options options(bool gpu) {
    ww_plan_options options = WW_PLAN_OPTIONS_INIT;
    options.num_q_heads = kQHeads;
    options.num_kv_heads = kKvHeads;
    options.head_dim = kDim;
    options.page_size = kPageSize;
    options.q_dtype = kBf16;
    options.device.device_type = gpu ? WW_DEVICE_CUDA : WW_DEVICE_CPU;
    return options;
  }

  // Runs the batch on both; out and lse must agree.
  void compare(ww_plan_options options, const std::vector<std::pair<int, int>>& requests,
               const char* what) {
    SCOPED_TRACE(what);
    const char* const backend = options.backend;  // the CPU chooses its own
    std::vector<int32_t> q_indptr = {0}, kv_lens, table;
    const int stride = 64;
    for (const auto& [q_len, kv_len] : requests) {
      q_indptr.push_back(q_indptr.back() + q_len);
      kv_lens.push_back(kv_len);
      for (int p = 0; p < stride; ++p)
        table.push_back(static_cast<int32_t>((table.size() * 37 + 11) % kPages));
    }
    Both q({q_indptr.back(), kQHeads, kDim}, kBf16, 1),
        k({kPages, kPageSize, kKvHeads, kDim}, kBf16, 2);
    Both v({kPages, kPageSize, kKvHeads, kDim}, kBf16, 3), sinks({kQHeads}, kF32, 4);
    Both out({q_indptr.back(), kQHeads, kDim}, kBf16, 0), lse({q_indptr.back(), kQHeads}, kF32, 0);
    for (int gpu = 0; gpu < 2; ++gpu) {
      options.device.device_type = gpu ? WW_DEVICE_CUDA : WW_DEVICE_CPU;
      options.backend = gpu ? backend : nullptr;
      ww_plan* plan = nullptr;
      ASSERT_EQ(ww_plan_create(workspace_, &options, &plan), WW_OK) << ww_last_error();
      ww_batch batch = WW_BATCH_INIT;
      batch.num_requests = static_cast<int32_t>(requests.size());
      batch.q_indptr = q_indptr.data();
      batch.kv_lens = kv_lens.data();
      batch.page_table = table.data();
      batch.page_table_stride = stride;
      batch.stream = gpu ? stream_ : nullptr;
      ww_kv_cache kv = WW_KV_CACHE_INIT;
      kv.k = &k.tensor[gpu];
      kv.v = &v.tensor[gpu];
      ww_run_args args = WW_RUN_ARGS_INIT;
      args.q = &q.tensor[gpu];
      args.kv = &kv;
      args.out = &out.tensor[gpu];
      args.lse_ln = &lse.tensor[gpu];
      args.sinks = options.use_sinks ? &sinks.tensor[gpu] : nullptr;
      args.stream = batch.stream;
      for (int step = 0; step < 2;
           ++step) {  // a plan is planned again while the last run may still be going
        ASSERT_EQ(ww_plan_batch(plan, &batch), WW_OK) << ww_last_error();
        for (int layer = 0; layer < 2; ++layer)
          ASSERT_EQ(ww_plan_run(plan, &args), WW_OK) << ww_last_error();
      }
      if (gpu) {
        ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
        std::printf("%s: %s\n", what, std::string(ww_plan_explain(plan)).substr(0, 60).c_str());
      }
      ww_plan_destroy(plan);
    }
    EXPECT_LE(out.difference(), 0.02);
    EXPECT_LE(lse.difference(), 0.01);
  }

  ww_context* context_ = nullptr;
  ww_workspace* workspace_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

TEST_F(CApiGpu, GivesWhatTheCpuGives) {
  const std::vector<std::pair<int, int>> decode = {{1, 700}, {1, 1}, {1, 129}, {1, 1000}};
  const std::vector<std::pair<int, int>> mixed = {
      {100, 300}, {1, 700}, {64, 64}, {3, 0}, {17, 900}};
  compare(options(true), decode, "decode");
  compare(options(true), mixed, "mixed");
  compare(options(true), {{70, 20}, {5, 600}}, "more rows than tokens");
  ww_plan_options changed = options(true);
  changed.window_left = 100;
  changed.logit_softcap = 20;
  changed.use_sinks = 1;
  compare(changed, mixed, "window, softcap, sinks");
  changed = options(true);
  changed.causal = 0;
  compare(changed, mixed, "both ways");
  changed = options(true);
  changed.backend = "flashinfer";
  compare(changed, mixed, "flashinfer by name");
}

TEST_F(CApiGpu, RefusesWhatKernelsCannotRead) {
  ww_plan_options options = this->options(true);
  ww_plan* plan = nullptr;
  ASSERT_EQ(ww_plan_create(workspace_, &options, &plan), WW_OK) << ww_last_error();
  const int32_t q_indptr[] = {0, 1}, kv_lens[] = {5}, table[] = {0};
  ww_batch batch = WW_BATCH_INIT;
  batch.num_requests = 1;
  batch.q_indptr = q_indptr;
  batch.kv_lens = kv_lens;
  batch.page_table = table;
  batch.page_table_stride = 1;
  batch.stream = stream_;
  ASSERT_EQ(ww_plan_batch(plan, &batch), WW_OK) << ww_last_error();
  Both q({1, kQHeads, kDim}, kBf16, 1), k({1, kPageSize, kKvHeads, kDim}, kBf16, 2),
      out({1, kQHeads, kDim}, kBf16, 0);
  ww_kv_cache kv = WW_KV_CACHE_INIT;
  kv.k = kv.v = &k.tensor[1];
  ww_run_args args = WW_RUN_ARGS_INIT;
  args.q = &q.tensor[0];
  args.kv = &kv;
  args.out = &out.tensor[1];
  args.stream = stream_;
  EXPECT_EQ(ww_plan_run(plan, &args), WW_UNSUPPORTED) << "q on the host";
  args.q = &q.tensor[1];
  q.tensor[1].device.device_id = 1;
  EXPECT_EQ(ww_plan_run(plan, &args), WW_UNSUPPORTED) << "q on another GPU";
  q.tensor[1].device.device_id = 0;
  q.tensor[1].byte_offset = 2;
  EXPECT_EQ(ww_plan_run(plan, &args), WW_INVALID_ARGUMENT);
  EXPECT_NE(std::string(ww_last_error()).find("multiples of 16 bytes"), std::string::npos)
      << ww_last_error();
  ww_plan_destroy(plan);
}

// As DLPack hands over a K of no tokens: without an address.
TEST_F(CApiGpu, RowsThatHaveNoTokensToSeeAreZero) {
  for (const char* backend : {"", "fa3", "flashinfer", "triton", "torch_native", "flex_attention"}) {
    SCOPED_TRACE(backend);
    ww_plan_options options = this->options(true);
    options.page_size = 0;
    options.backend = backend;
    ww_plan* plan = nullptr;
    ASSERT_EQ(ww_plan_create(workspace_, &options, &plan), WW_OK) << ww_last_error();
    for (const int rows : {1, 70}) {  // decode, prompts
      const int32_t q_indptr[] = {0, rows, 2 * rows}, kv_indptr[] = {0, 0, 0};
      ww_batch batch = WW_BATCH_INIT;
      batch.num_requests = 2;
      batch.q_indptr = q_indptr;
      batch.kv_indptr = kv_indptr;
      batch.stream = stream_;
      ASSERT_EQ(ww_plan_batch(plan, &batch), WW_OK) << ww_last_error();
      Both q({2 * rows, kQHeads, kDim}, kBf16, 1), out({2 * rows, kQHeads, kDim}, kBf16, 2);
      Both lse({2 * rows, kQHeads}, kF32, 3);
      std::fill(out.host.begin(), out.host.end(), 0);
      std::fill_n(reinterpret_cast<float*>(lse.host.data()), 2 * rows * kQHeads, -INFINITY);
      int64_t shape[] = {0, kKvHeads, kDim};
      const ww_tensor none = {nullptr, {WW_DEVICE_CUDA, 0}, 3, kBf16, shape, nullptr, 0};
      ww_kv_cache kv = WW_KV_CACHE_INIT;
      kv.k = kv.v = &none;
      ww_run_args args = WW_RUN_ARGS_INIT;
      args.q = &q.tensor[1];
      args.kv = &kv;
      args.out = &out.tensor[1];
      args.lse_ln = &lse.tensor[1];
      args.stream = stream_;
      ASSERT_EQ(ww_plan_run(plan, &args), WW_OK) << ww_last_error();
      ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
      EXPECT_EQ(out.difference(), 0) << rows;
      EXPECT_EQ(lse.difference(), 0) << rows;
    }
    ww_plan_destroy(plan);
  }
}

// A decode batch of three requests over shuffled pages, to be planned with other lengths again.
struct DecodeBatch {
  std::vector<int32_t> q_indptr = {0, 1, 2, 3}, kv_lens, table;
  static constexpr int kWidth = 64;

  DecodeBatch() {
    for (int i = 0; i < 3 * kWidth; ++i) table.push_back((i * 37 + 11) % kPages);
  }
  ww_batch with(std::vector<int32_t> lens, void* stream) {
    kv_lens = std::move(lens);
    ww_batch batch = WW_BATCH_INIT;
    batch.num_requests = 3;
    batch.q_indptr = q_indptr.data();
    batch.kv_lens = kv_lens.data();
    batch.page_table = table.data();
    batch.page_table_stride = kWidth;
    batch.stream = stream;
    return batch;
  }
};

TEST_F(CApiGpu, AGraphSeesTheBatchPlannedLast) {
  Both q({3, kQHeads, kDim}, kBf16, 1), k({kPages, kPageSize, kKvHeads, kDim}, kBf16, 2),
      v({kPages, kPageSize, kKvHeads, kDim}, kBf16, 3), out({3, kQHeads, kDim}, kBf16, 0);
  ww_plan* plans[2];
  for (int gpu = 0; gpu < 2; ++gpu) {
    ww_plan_options options = this->options(gpu == 1);
    options.max_pages_per_request = gpu ? DecodeBatch::kWidth : 0;
    ASSERT_EQ(ww_plan_create(workspace_, &options, &plans[gpu]), WW_OK) << ww_last_error();
  }
  DecodeBatch batch;
  ww_kv_cache kv[2] = {WW_KV_CACHE_INIT, WW_KV_CACHE_INIT};
  ww_run_args args[2] = {WW_RUN_ARGS_INIT, WW_RUN_ARGS_INIT};
  for (int gpu = 0; gpu < 2; ++gpu) {
    kv[gpu].k = &k.tensor[gpu];
    kv[gpu].v = &v.tensor[gpu];
    args[gpu].q = &q.tensor[gpu];
    args[gpu].kv = &kv[gpu];
    args[gpu].out = &out.tensor[gpu];
    args[gpu].stream = gpu ? stream_ : nullptr;
  }
  ww_batch planned = batch.with({1000, 40, 5}, stream_);
  ASSERT_EQ(ww_plan_batch(plans[1], &planned), WW_OK) << ww_last_error();
  ASSERT_EQ(ww_plan_run(plans[1], &args[1]), WW_OK) << ww_last_error();
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);

  cudaStream_t capturing;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaStreamCreateWithFlags(&capturing, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(capturing, cudaStreamCaptureModeGlobal), cudaSuccess);
  args[1].stream = capturing;
  for (int layer = 0; layer < 2; ++layer)
    ASSERT_EQ(ww_plan_run(plans[1], &args[1]), WW_OK) << ww_last_error();
  ww_batch captured = batch.with({1, 1, 1}, capturing);
  EXPECT_EQ(ww_plan_batch(plans[1], &captured), WW_UNSUPPORTED);
  ASSERT_EQ(cudaStreamEndCapture(capturing, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);

  for (const std::vector<int32_t>& lens : {std::vector<int32_t>{3, 33, 1}, {1000, 7, 600}}) {
    planned = batch.with(lens, stream_);
    ASSERT_EQ(ww_plan_batch(plans[1], &planned), WW_OK) << ww_last_error();
    ASSERT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    planned = batch.with(lens, nullptr);
    ASSERT_EQ(ww_plan_batch(plans[0], &planned), WW_OK) << ww_last_error();
    ASSERT_EQ(ww_plan_run(plans[0], &args[0]), WW_OK) << ww_last_error();
    EXPECT_LE(out.difference(), 0.02);
  }
  planned = batch.with({1, 1, 1}, stream_);
  planned.num_requests = 2;
  EXPECT_EQ(ww_plan_batch(plans[1], &planned), WW_INVALID_ARGUMENT) << "another shape";
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(capturing), cudaSuccess);
  for (ww_plan* plan : plans) ww_plan_destroy(plan);
}

TEST_F(CApiGpu, AppendsAndMergesWhatTheCpuDoes) {
  Both k_new({4, kKvHeads, kDim}, kBf16, 1), v_new({4, kKvHeads, kDim}, kBf16, 2);
  Both k({8, kPageSize, kKvHeads, kDim}, kBf16, 3), v({8, kPageSize, kKvHeads, kDim}, kBf16, 4);
  const int64_t slots[] = {5, -1, 127, 16};
  Both outs({6, 3, kQHeads, kDim}, kF32, 5), lses({6, 3, kQHeads}, kF32, 6);
  Both out({6, kQHeads, kDim}, kF32, 0), lse({6, kQHeads}, kF32, 0);
  for (int gpu = 0; gpu < 2; ++gpu) {
    ww_kv_cache kv = WW_KV_CACHE_INIT;
    kv.k = &k.tensor[gpu];
    kv.v = &v.tensor[gpu];
    ww_append_args append = WW_APPEND_ARGS_INIT;
    append.k_new = &k_new.tensor[gpu];
    append.v_new = &v_new.tensor[gpu];
    append.slots = slots;
    append.kv = &kv;
    append.stream = gpu ? stream_ : nullptr;
    ASSERT_EQ(ww_append_kv(context_, &append), WW_OK) << ww_last_error();
    ww_merge_args merge = WW_MERGE_ARGS_INIT;
    merge.outs = &outs.tensor[gpu];
    merge.lses_ln = &lses.tensor[gpu];
    merge.out = &out.tensor[gpu];
    merge.lse_ln = &lse.tensor[gpu];
    merge.stream = append.stream;
    ASSERT_EQ(ww_merge_states(context_, &merge), WW_OK) << ww_last_error();
  }
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(k.difference(), 0);
  EXPECT_EQ(v.difference(), 0);
  EXPECT_LE(out.difference(), 1e-5);
  EXPECT_LE(lse.difference(), 1e-5);
}

}  // namespace
