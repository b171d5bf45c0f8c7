// The decode kernel and the plans that it follows, run on the host: whatever the lengths, pages, formats and workers. K
// and V arrive in shared memory when they are waited for, not before. Threads take their turns in several orders, CTAs
// in two: every one of them gives the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "attention/cuda/decode_plan.cuh"
#include "attention/cuda/fixed_split_plan.cuh"
#include "attention/cuda/testing/paged_problem.h"

#include "attention/cuda/testing/shared_array.h"

#include "attention/backends/flashinfer/kernels/sm80_decode.cuh"

namespace warpweave::cuda {
namespace {

using host_cta::Order;
using testing::Case;
using testing::Request;

constexpr int kSplitTokens = 128;  // fixed splits

struct Launch {
  int num_workers = 7;
  bool early = false;             // K and V of earlier tokens are read before Q is there
  int most_cut_units = 1 << 20;   // fixed splits
};

template <class C>
class Run {
 public:
  Run(const Case& c, const Launch& launch) : c_(c), launch_(launch), problem_(c) {}

  std::vector<uint32_t> run(Order order, bool last_cta_first) {
    problem_.forget();
    AttentionParams p = problem_.params();
    p.earlier_kv_settled = launch_.early;
    if (C::kFixedSplits) p.decode_q_len = tokens_per_piece();
    const DecodeWorkspace w = workspace(order);
    const int lockstep = C::kFixedSplits ? 1 : lockstep_heads(c_.num_kv_heads / C::kHeads, launch_.num_workers);
    const std::vector<uint32_t> unwritten = problem_.bits();
    std::vector<uint32_t> before = unwritten, after;
    for (int i = 0; i < launch_.num_workers; ++i) {
      const int block = last_cta_first ? launch_.num_workers - 1 - i : i;
      std::memset(smem, 0xff, sizeof(smem));
      ptx::set_shared_memory(smem, C::kSmemBytes, C::kThreads);
      if (launch_.early) ptx::predecessor = problem_.take_newest();
      host_cta::run(C::kThreads, order, [&] { sm80_decode<C>(p, w, lockstep); }, {.x = static_cast<unsigned>(block)});
      after = problem_.bits();
      for (size_t at = 0; at < after.size(); ++at) {
        EXPECT_TRUE(before[at] == unwritten[at] || before[at] == after[at])
            << "written before all its pieces were there";
      }
      before = after;
    }
    EXPECT_EQ(counters_, std::vector<int32_t>(counters_.size(), 0)) << "counters of the next launch";
    return problem_.bits();
  }

  void check() const {
    // P is rounded to the type of the MMAs' operands, the output to the element.
    const bool bf16_mma = std::is_same_v<typename C::Arithmetic, ptx::Bf16>,
               bf16 = std::is_same_v<typename C::Element, ptx::Bf16>;
    problem_.check(bf16_mma ? 2e-2 : bf16 ? 1.2e-2 : 3e-3,
                   [&](const Request& r) { return C::kFixedSplits || r.q_len <= c_.decode_q_len; });
  }

 private:
  int tokens_per_piece() const { return C::kHeadRows / c_.group; }

  DecodeWorkspace workspace(Order order) {
    PlanInput in = weighed_for_decode(problem_.plan_input());
    in.num_kv_heads /= C::kHeads;
    workers_.assign(launch_.num_workers, {});
    DecodeWorkspace w;
    size_t slots = 2 * static_cast<size_t>(launch_.num_workers);
    if constexpr (C::kFixedSplits) {
      slots = std::max(slots, plan_fixed_splits(in, order));
      w.pieces = pieces_.data();
      w.split_tokens = kSplitTokens;
    } else {
      const int lockstep = lockstep_heads(in.num_kv_heads, launch_.num_workers);
      host_cta::run(kPlanThreads, order, [&] {
        decode_plan(of_lockstep(in, lockstep), workers_.data(), launch_.num_workers, launch_.num_workers / lockstep,
                    lockstep);
      });
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    partial_out_.assign(slots * C::kRows * C::kDim, nan);
    partial_max_sum_.assign(slots * C::kRows * 2, nan);
    counters_.assign(slots, 0);
    w.workers = workers_.data();
    w.partial_out = partial_out_.data();
    w.partial_max_sum = partial_max_sum_.data();
    w.counters = counters_.data();
    w.plan_is_older = launch_.early;
    return w;
  }

  // The units of the line.
  size_t plan_fixed_splits(const PlanInput& in, Order order) {
    pieces_.assign(num_fixed_pieces(problem_.tokens(), in.num_requests, tokens_per_piece()), {});
    std::vector<long long> unit_ends(pieces_.size());
    FixedSplitPlan plan;
    plan.tokens_per_piece = tokens_per_piece();
    plan.split_tokens = kSplitTokens;
    plan.max_cut_units = launch_.most_cut_units;
    plan.pieces = pieces_.data();
    plan.unit_ends = unit_ends.data();
    plan.workers = workers_.data();
    plan.num_workers = launch_.num_workers;
    host_cta::run(kPlanThreads, order, [&] { fixed_split_plan(in, plan); });
    return static_cast<size_t>(*std::max_element(unit_ends.begin(), unit_ends.end()));
  }

  const Case& c_;
  const Launch launch_;
  testing::PagedProblem<typename C::Element, C::kStorage, C::kDim> problem_;
  std::vector<DecodeWorker> workers_;
  std::vector<DecodePiece> pieces_;
  std::vector<float> partial_out_, partial_max_sum_;
  std::vector<int32_t> counters_;
};

template <class C>
void expect_right(const Case& c, const Launch& launch = {}) {
  SCOPED_TRACE(c.name);
  Run<C> run(c, launch);
  const std::vector<uint32_t> bits = run.run(Order::ascending, false);
  run.check();
  EXPECT_EQ(run.run(Order::descending, true), bits) << "other orders of threads and CTAs";
  EXPECT_EQ(run.run(Order::random, false), bits) << "a random order of threads";
}

const std::vector<Request> kLengths = {{1, 1}, {1, 63}, {1, 64}, {1, 65}, {1, 517}, {1, 130}};

using ptx::Bf16;
using ptx::F16;
constexpr KvStorage k16 = KvStorage::same16, kE4m3 = KvStorage::e4m3, kE5m2 = KvStorage::e5m2, kFp4 = KvStorage::e2m1;

TEST(DecodeKernel, Lengths) {
  expect_right<DecodeConfig<Bf16, k16, 128, 1, false>>({.name = "bf16 d128", .requests = kLengths});
  expect_right<DecodeConfig<F16, k16, 64, 1, false>>(
      {.name = "f16 d64", .requests = kLengths, .num_kv_heads = 3, .group = 5});
  expect_right<DecodeConfig<Bf16, k16, 256, 2, false>>(
      {.name = "bf16 d256, 16 q heads a kv head", .requests = {{1, 40}, {1, 300}}, .num_kv_heads = 1, .group = 16},
      {.num_workers = 3});
}

TEST(DecodeKernel, PairsAreCutBetweenManyWorkers) {
  expect_right<DecodeConfig<Bf16, k16, 64, 1, false>>(
      {.name = "33 pieces", .requests = {{1, 8700}, {1, 5}}, .num_kv_heads = 1, .group = 2}, {.num_workers = 40});
  expect_right<DecodeConfig<Bf16, k16, 64, 1, false>>(
      {.name = "heads side by side", .requests = {{1, 900}, {1, 1300}}, .num_kv_heads = 8, .group = 2},
      {.num_workers = 32});
}

TEST(DecodeKernel, Pages) {
  for (const int page_size : {1, 3, 64}) {
    expect_right<DecodeConfig<F16, k16, 64, 1, false>>(
        {.name = "pages of " + std::to_string(page_size), .requests = kLengths, .page_size = page_size});
  }
}

TEST(DecodeKernel, MaskedAndCapped) {
  expect_right<DecodeConfig<F16, k16, 64, 1, false>>({.name = "window", .requests = kLengths, .window_left = 100});
  expect_right<DecodeConfig<F16, k16, 64, 1, false>>(
      {.name = "softcap and sinks", .requests = kLengths, .softcap = 2, .sinks = true});
  expect_right<DecodeConfig<F16, k16, 64, 1, false>>({.name = "rising scores", .requests = kLengths, .rising = true});
  expect_right<DecodeConfig<F16, k16, 64, 1, false>>(
      {.name = "beside prompts", .requests = {{1, 70}, {5, 90}, {1, 300}, {2, 2}}});
  expect_right<DecodeConfig<F16, k16, 64, 1, false>>({.name = "earlier K and V first", .requests = kLengths},
                                                     {.early = true});
}

TEST(DecodeKernel, SeveralRowsARequest) {
  const std::vector<Request> requests = {{4, 4}, {1, 70}, {3, 260}, {4, 64}};
  using C = DecodeConfig<F16, k16, 64, 2, true>;
  expect_right<C>({.name = "causal", .requests = requests, .decode_q_len = 4});
  expect_right<C>({.name = "causal, window", .requests = requests, .decode_q_len = 4, .window_left = 33});
  expect_right<C>({.name = "tree", .requests = requests, .decode_q_len = 4, .tree = true});
  expect_right<C>({.name = "tree, window", .requests = requests, .decode_q_len = 4, .window_left = 40, .tree = true},
                  {.early = true});
  expect_right<DecodeConfig<Bf16, k16, 128, 4, true>>(
      {.name = "32 rows, Q in shared memory", .requests = {{8, 100}, {6, 70}}, .num_kv_heads = 1, .decode_q_len = 8},
      {.num_workers = 3});
}

TEST(DecodeKernel, Fp8) {
  const Case c = {.name = "fp8", .requests = kLengths, .head_scales = true};
  expect_right<DecodeConfig<Bf16, kE4m3, 128, 1, false>>(c);
  expect_right<DecodeConfig<Bf16, kE5m2, 64, 1, false>>(c);
  expect_right<DecodeConfig<F16, kE4m3, 64, 1, false>>(c);
  expect_right<DecodeConfig<F16, kE5m2, 64, 1, false>>(c);
}

TEST(DecodeKernel, Fp4) {
  const Case c = {.name = "fp4", .requests = kLengths};
  expect_right<DecodeConfig<Bf16, kFp4, 64, 1, false>>(c);
  expect_right<DecodeConfig<F16, kFp4, 128, 1, false>>(c);
  expect_right<DecodeConfig<F16, kFp4, 256, 1, false>>(c);
  const Case pairs = {.name = "fp4, kv heads in pairs", .requests = kLengths, .num_kv_heads = 4};
  expect_right<DecodeConfig<Bf16, kFp4, 128, 1, false, false, kHeadPairs>>(pairs);
  expect_right<DecodeConfig<F16, kFp4, 128, 1, false, false, kHeadPairsOfFour>>(pairs);
}

TEST(DecodeKernel, FixedSplits) {
  const std::vector<Request> requests = {{1, 1}, {1, 700}, {5, 260}, {2, 129}};
  using C = DecodeConfig<F16, k16, 64, 2, true, true>;
  expect_right<C>({.name = "cut pairs", .requests = requests});
  expect_right<C>({.name = "whole pairs", .requests = requests}, {.most_cut_units = 0});
  expect_right<C>({.name = "window", .requests = requests, .window_left = 150});
  expect_right<DecodeConfig<Bf16, kE4m3, 128, 2, true, true>>(
      {.name = "fp8", .requests = requests, .head_scales = true});
}

}  // namespace
}  // namespace warpweave::cuda
