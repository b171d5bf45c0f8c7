// Tokens of earlier steps may be read while the kernel before still runs (MlaParams::earlier_kv_settled); the newest one,
// which that kernel writes, may not.
#include <gtest/gtest.h>

#include <vector>

#include "attention/cuda/mla/testing.h"
#include "device/cuda/compute_capability.h"

namespace warpweave::cuda::testing {
namespace {

constexpr int kTokenBytes = mla_token_bytes(MlaFormat::same16);
constexpr int kSlowTokens = 128 << 10;  // milliseconds for one CTA

// Attention over one token, again and again: its latent part, slowly, to `out`.
class SlowCopy {
 public:
  SlowCopy(const char* token, void* out) {
    pool_ = DeviceBuffer::allocate(64 * kTokenBytes, "a test").value();
    for (int i = 0; i < 64; ++i) {
      EXPECT_EQ(cudaMemcpy(pool_.as<char>() + i * kTokenBytes, token, kTokenBytes, cudaMemcpyDeviceToDevice), cudaSuccess);
    }
    ints_ = DeviceBuffer::allocate((3 + kSlowTokens / 64) * sizeof(int32_t), "a test").value();
    const int32_t lengths[] = {kSlowTokens, 0, 1};
    EXPECT_EQ(cudaMemset(ints_.as<char>(), 0, (3 + kSlowTokens / 64) * sizeof(int32_t)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(ints_.as<char>(), lengths, sizeof lengths, cudaMemcpyHostToDevice), cudaSuccess);
    params_.q = pool_.as<char>();
    params_.q_token_stride = kMlaDim;
    params_.out = out;
    params_.out_token_stride = kMlaDim;
    params_.kv = pool_.as<char>();
    params_.token_stride_bytes = kTokenBytes;
    params_.page_stride_bytes = 64 * kTokenBytes;
    params_.kv_lens = ints_.as<int32_t>();
    params_.q_indptr = params_.kv_lens + 1;
    params_.page_table = params_.kv_lens + 3;
    params_.page_table_stride = kSlowTokens / 64;
    params_.num_requests = params_.num_heads = 1;
    params_.page_size = 64;
    params_.page_shift = 6;
    params_.scale = 0.01f;
    layout_ = mla_layout(kShape, params_, 1);
    workspace_ = DeviceBuffer::allocate(layout_.workspace_bytes, "a test").value();
    EXPECT_EQ(launch_mla_plan(layout_, params_, workspace_.as<char>(), nullptr), cudaSuccess);
  }
  void launch() {
    EXPECT_EQ(launch_mla_decode(kShape, layout_, params_, workspace_.as<char>(), true, nullptr), cudaSuccess);
  }

 private:
  static constexpr MlaShape kShape = {MlaElement::bf16, MlaFormat::same16, MlaFamily::wgmma};
  DeviceBuffer pool_, ints_, workspace_;
  MlaParams params_;
  MlaLayout layout_;
};

class MlaEarly : public ::testing::TestWithParam<int> {};

TEST_P(MlaEarly, TheNewestTokenIsAwaited) {
  if (current_compute_capability() != 90) GTEST_SKIP() << "not a GPU for these kernels";
  for (const int heads : {16, 128}) {
    for (const int kv_len : {40, 64, 257, 320, 1000}) {
      MlaCase c;
      c.page_size = GetParam();
      c.num_heads = heads;
      c.requests = {{1, kv_len}};
      MlaProblem problem(c);
      MlaParams p = problem.params();
      p.earlier_kv_settled = true;
      const MlaShape shape = {c.element, c.format, MlaFamily::wgmma};
      const MlaLayout layout = mla_layout(shape, p, 100);
      const DeviceBuffer workspace = DeviceBuffer::allocate(layout.workspace_bytes, "a test").value();
      ASSERT_EQ(launch_mla_plan(layout, p, workspace.as<char>(), nullptr), cudaSuccess);
      char* const newest = static_cast<char*>(const_cast<void*>(p.kv)) + problem.slot_of(0, kv_len - 1) * kTokenBytes;
      SlowCopy copy(newest, newest);
      ASSERT_EQ(cudaMemset(newest, 0xff, kMlaLatentDim * 2), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      copy.launch();
      ASSERT_EQ(launch_mla_decode(shape, layout, p, workspace.as<char>(), true, nullptr), cudaSuccess);
      const MlaRows got = problem.result(), wanted = problem.expected();
      ASSERT_LE(cosine_difference(got.out, wanted.out), 5e-6) << c.text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pages, MlaEarly, ::testing::Values(1, 64));

}  // namespace
}  // namespace warpweave::cuda::testing
