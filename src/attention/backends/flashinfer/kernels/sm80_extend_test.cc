// The prefill kernel of mma.sync and the worklist that it follows, run on the host: whatever the lengths, pages,
// formats and masks. K and V arrive in shared memory when they are waited for, not before. Threads take their turns in
// several orders: every one of them gives the same bits.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "attention/cuda/extend_plan.cuh"
#include "attention/cuda/testing/paged_problem.h"

#include "attention/cuda/testing/shared_array.h"

#include "attention/backends/flashinfer/kernels/sm80_extend.cuh"

namespace warpweave::cuda {
namespace {

using host_cta::Order;
using testing::Case;
using testing::Request;

template <class C>
class Run {
 public:
  explicit Run(const Case& c) : c_(c), problem_(c) {}

  std::vector<uint32_t> run(Order order) {
    problem_.forget();
    const AttentionParams p = problem_.params();
    const PlanInput in = problem_.plan_input();
    std::vector<ExtendItem> items(problem_.tokens() * c_.group / C::kTileRows + c_.requests.size());
    ExtendHeader header;
    host_cta::run(kPlanThreads, order, [&] { extend_plan(in, C::kTileRows, c_.group, items.data(), &header); });
    ExtendWorklist work;
    work.items = items.data();
    work.header = &header;
    for (unsigned item = 0; item < items.size(); ++item) {
      for (int head = 0; head < c_.num_kv_heads; ++head) {
        std::memset(smem, 0xff, sizeof(smem));
        ptx::set_shared_memory(smem, C::kSmemBytes, C::kThreads);
        host_cta::run(C::kThreads, order, [&] { sm80_extend<C>(p, work); }, {static_cast<unsigned>(head), item});
      }
    }
    return problem_.bits();
  }

  void check() const {
    problem_.check(std::is_same_v<typename C::Element, ptx::Bf16> ? 2e-2 : 3e-3,
                   [&](const Request& r) { return r.q_len > c_.decode_q_len; });
  }

 private:
  const Case& c_;
  testing::PagedProblem<typename C::Element, C::kStorage, C::kDim> problem_;
};

template <class C>
void expect_right(const Case& c) {
  SCOPED_TRACE(c.name);
  Run<C> run(c);
  const std::vector<uint32_t> bits = run.run(Order::ascending);
  run.check();
  EXPECT_EQ(run.run(Order::descending), bits) << "another order of threads";
  EXPECT_EQ(run.run(Order::random), bits) << "a random order of threads";
}

using ptx::Bf16;
using ptx::F16;
constexpr KvStorage k16 = KvStorage::same16, kE4m3 = KvStorage::e4m3, kE5m2 = KvStorage::e5m2, kFp4 = KvStorage::e2m1;

// Whole prompts, pieces of them, one that the decode kernel takes.
const std::vector<Request> kLengths = {{2, 2}, {17, 17}, {33, 150}, {1, 90}, {40, 64}};

TEST(ExtendKernel, Lengths) {
  expect_right<ExtendConfig<Bf16, k16, 128, 4>>({.name = "bf16 d128", .requests = kLengths});
  expect_right<ExtendConfig<F16, k16, 64, 8>>({.name = "f16 d64", .requests = kLengths, .num_kv_heads = 3, .group = 5});
  expect_right<ExtendConfig<F16, k16, 256, 4>>(
      {.name = "f16 d256", .requests = {{9, 70}, {20, 20}}, .num_kv_heads = 1, .group = 2});
}

TEST(ExtendKernel, Pages) {
  for (const int page_size : {1, 3, 64}) {
    expect_right<ExtendConfig<F16, k16, 64, 4>>(
        {.name = "pages of " + std::to_string(page_size), .requests = kLengths, .page_size = page_size});
  }
}

TEST(ExtendKernel, MaskedAndCapped) {
  using C = ExtendConfig<F16, k16, 64, 4>;
  expect_right<C>({.name = "window", .requests = kLengths, .window_left = 20});
  expect_right<C>({.name = "softcap and sinks", .requests = kLengths, .softcap = 2, .sinks = true});
  expect_right<C>({.name = "rising scores", .requests = {{20, 300}}, .rising = true});
  expect_right<C>({.name = "both directions", .requests = kLengths, .causal = false});
  const std::vector<Request> trees = {{8, 8}, {17, 100}, {32, 96}};
  expect_right<C>({.name = "tree", .requests = trees, .tree = true});
  expect_right<C>({.name = "tree, window", .requests = trees, .window_left = 30, .tree = true});
}

TEST(ExtendKernel, Formats) {
  const Case c = {.name = "scaled", .requests = kLengths, .head_scales = true};
  expect_right<ExtendConfig<Bf16, kE4m3, 64, 4>>(c);
  expect_right<ExtendConfig<Bf16, kE5m2, 128, 4>>(c);
  expect_right<ExtendConfig<F16, kE4m3, 128, 8>>(c);
  expect_right<ExtendConfig<F16, kE5m2, 64, 4>>(c);
  expect_right<ExtendConfig<Bf16, kFp4, 128, 4>>(c);
  expect_right<ExtendConfig<F16, kFp4, 64, 8>>(c);
  expect_right<ExtendConfig<Bf16, kFp4, 256, 4>>(
      {.name = "fp4 d256", .requests = {{9, 70}, {20, 20}}, .num_kv_heads = 1, .group = 2});
}

}  // namespace
}  // namespace warpweave::cuda
