// The GPU's sampling kernel, run on the host: the candidates that temperature, top_k, top_p and min_p leave, ties to the
// lower id, and the token at which a walk over them by id passes the draw. The CPU's sampler draws from the same ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "sample/cuda/sample_kernel.cuh"
#include "sample/row_sampler.h"

namespace warpweave::gpu {
namespace {

using host_cta::Order;

constexpr double kDraws[] = {0.37, 0.9999};
// Sums in f32 of a thread's share, added in another order: what lies nearer than this may go either way.
constexpr double kNear = 1e-5;

int32_t sampled(const std::vector<float>& logits, SampleRowParams params, Order order,
                const std::vector<int32_t>& guesses = {}) {
  const int vocab_size = static_cast<int>(logits.size());
  std::vector<float> matrix(vocab_size, 1e9f);  // another row, before it
  matrix.insert(matrix.end(), logits.begin(), logits.end());
  params.logits_row = 1;
  params.num_guesses = static_cast<int32_t>(guesses.size());
  int32_t out = -7;
  host_cta::run(kSampleThreads, order, [&] {
    sample_kernel({&params, 1, guesses.data(), matrix.data(), vocab_size, &out}, 1);
  });
  return out;
}

// The same by CTAs that share the row; `first` of them comes first, then those behind it.
int32_t sampled_by(unsigned slices, unsigned first, const std::vector<float>& logits, SampleRowParams params) {
  params.logits_row = 0;
  int32_t out = -7;
  SharedMaximum maximum;
  const auto vocab_size = static_cast<int>(logits.size());
  const SampleCall call = {&params, 1, nullptr, logits.data(), vocab_size, &out, &maximum};
  for (unsigned i = 0; i < slices; ++i) {
    EXPECT_EQ(out, -7) << "before the last one";
    host_cta::run(kSampleThreads, Order::random, [&] { sample_kernel(call, static_cast<int>(slices)); }, {(first + i) % slices});
  }
  EXPECT_EQ(maximum.key, 0u);
  EXPECT_EQ(maximum.arrived, 0);
  return out;
}

struct Candidates {
  std::vector<float> weights;  // 0: not kept
  bool sure = true;            // no sum was near a bound
};

Candidates expected(const std::vector<float>& logits, const SampleRowParams& params) {
  float top = -std::numeric_limits<float>::infinity();
  for (float x : logits) top = x > top ? x : top;
  Candidates out{std::vector<float>(logits.size(), 0), true};
  std::vector<int> order;
  std::vector<float> weights;
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float w = std::exp((logits[i] - top) * (1.0f / params.temperature));
    weights.push_back(w == w ? w : 0);
    total += weights.back();
    order.push_back(static_cast<int>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return weights[a] > weights[b]; });
  const float floor = std::max(params.min_p, static_cast<float>(total * 1e-12));
  std::erase_if(order, [&](int i) { return weights[i] < floor; });
  double mass = total;
  if (params.top_k > 0 && params.top_k < static_cast<int>(logits.size())) {
    order.resize(std::min<size_t>(order.size(), params.top_k));
    mass = 0;
    for (int i : order) mass += weights[i];
  }
  double sum = 0;
  for (int i : order) {
    if (params.top_p < 1) {
      out.sure &= std::abs(sum - mass * params.top_p) > kNear * mass;
      if (sum >= mass * params.top_p) break;
    }
    out.weights[i] = weights[i];
    sum += weights[i];
  }
  return out;
}

// -1 where two ids are as right.
int32_t walk(const std::vector<float>& weights, double draw) {
  double total = 0, sum = 0;
  for (float w : weights) total += w;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (draw > 0 && weights[i] > 0 && std::abs(sum - draw * total) < kNear * total) return -1;
    sum += weights[i];
    if (sum > draw * total) return static_cast<int32_t>(i);
  }
  return -1;
}

std::vector<float> random_logits(int vocab_size, float step, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 2.5f);
  std::vector<float> out(vocab_size);
  for (float& x : out) x = step > 0 ? std::round(normal(random) / step) * step : normal(random);
  return out;
}

struct Case {
  const char* name;
  int vocab_size;
  float step;  // logits are multiples of it: ties; 0: none
  float temperature;
  int32_t top_k;
  float top_p, min_p;
};

std::vector<float> logits_of(const Case& c) {
  std::vector<float> out = random_logits(c.vocab_size, c.step, 5);
  out[3] = -std::numeric_limits<float>::infinity();
  return out;
}

SampleRowParams params_of(const Case& c) {
  return {.temperature = c.temperature, .top_k = c.top_k, .top_p = c.top_p, .min_p = c.min_p};
}

class SampleKernel : public testing::TestWithParam<Case> {};

TEST_P(SampleKernel, CutsWhereTheParametersSay) {
  const std::vector<float> logits = logits_of(GetParam());
  const SampleRowParams params = params_of(GetParam());
  const Candidates candidates = expected(logits, params);
  ASSERT_TRUE(candidates.sure) << "choose another seed";
  const int vocab_size = static_cast<int>(logits.size());
  Row row{logits.data(), vocab_size, -std::numeric_limits<float>::infinity(), 1 / params.temperature};
  for (float x : logits) row.max = x > row.max ? x : row.max;
  double total = 0;
  for (int i = 0; i < vocab_size; ++i) total += row.weight(i);
  for (const Order order : {Order::ascending, Order::descending, Order::random}) {
    static Shared shared;
    std::vector<Cut> cuts(kSampleThreads);
    host_cta::run(kSampleThreads, order, [&] { cuts[threadIdx.x] = find_cut(row, params, total, shared); });
    for (const Cut& cut : cuts) {
      ASSERT_EQ(cut.bits, cuts[0].bits) << "threads that do not agree";
      ASSERT_EQ(cut.last_tied_id, cuts[0].last_tied_id) << "threads that do not agree";
    }
    for (int i = 0; i < vocab_size; ++i) {
      const uint32_t bits = __float_as_uint(row.weight(i));
      const bool kept = bits > cuts[0].bits || (bits == cuts[0].bits && i <= cuts[0].last_tied_id);
      ASSERT_EQ(kept, candidates.weights[i] > 0) << "token " << i;
    }
  }
}

TEST_P(SampleKernel, WalksTheCandidatesById) {
  const std::vector<float> logits = logits_of(GetParam());
  SampleRowParams params = params_of(GetParam());
  const Candidates candidates = expected(logits, params);
  int compared = 0;
  for (const double draw : kDraws) {
    params.draw = draw;
    const int32_t wanted = walk(candidates.weights, draw);
    if (wanted < 0) continue;
    ++compared;
    EXPECT_EQ(sampled(logits, params, Order::random), wanted) << draw;
  }
  EXPECT_GE(compared, 1);
}

TEST_P(SampleKernel, TheCpusSamplerDrawsFromTheSameCandidates) {
  const Case& c = GetParam();
  const std::vector<float> logits = logits_of(c);
  const Candidates candidates = expected(logits, params_of(c));
  ASSERT_TRUE(candidates.sure) << "choose another seed";
  SamplingParams cpu;
  cpu.temperature = c.temperature;
  cpu.top_k = c.top_k;
  cpu.top_p = c.top_p;
  cpu.min_p = c.min_p;
  RowScratch scratch;
  for (int i = 0; i < 300; ++i) {
    const int32_t id = sample_row(logits, cpu, uniform_draw(1, i), scratch);
    EXPECT_GT(candidates.weights[id], 0) << "token " << id;
  }
}

// By the same draws, but that the CPU walks candidates in another order: where both draw the same token, both keep the
// same one, and a token that was not drawn is a guess.
TEST_P(SampleKernel, KeepsTheGuessesThatTheCpuKeeps) {
  const Case& c = GetParam();
  const std::vector<float> logits = logits_of(c);
  SamplingParams cpu;
  cpu.temperature = c.temperature;
  cpu.top_k = c.top_k;
  cpu.top_p = c.top_p;
  cpu.min_p = c.min_p;
  RowScratch scratch;
  const auto likeliest = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const std::vector<int32_t> guesses = {3, likeliest, 11, 29};  // the first is impossible
  int replaced = 0;
  for (int i = 0; i < 6; ++i) {
    SampleRowParams params = params_of(c);
    params.draw = uniform_draw(1, i);
    const int32_t drawn = sampled(logits, params, Order::random);
    const bool one_by_one = i % 3 == 0;
    params.accept_single = one_by_one ? 0.01f : 1;
    params.accept_acc = one_by_one ? 1 : 0.3f;
    params.accept_draw = acceptance_draw(1, i);
    const int32_t kept = sampled(logits, params, Order::random, guesses);
    if (kept != drawn) {
      EXPECT_TRUE(std::find(guesses.begin() + 1, guesses.end(), kept) != guesses.end()) << kept;
      ++replaced;
    }
    if (sample_row(logits, cpu, params.draw, scratch) != drawn) continue;
    const RowGuesses on_cpu = {guesses, {params.accept_single, params.accept_acc}, params.accept_draw};
    EXPECT_EQ(sample_row(logits, cpu, params.draw, scratch, on_cpu), kept) << i;
  }
  if (std::string(c.name) == "everything") {
    EXPECT_GT(replaced, 0) << "else nothing was proven";
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SampleKernel,
    testing::Values(Case{"everything", 1000, 0, 0.8f, -1, 1, 0}, Case{"odd_row", 997, 0, 1.3f, -1, 1, 0},
                    Case{"top_k", 1000, 0, 1, 40, 1, 0}, Case{"top_k_among_ties", 997, 1.5f, 1, 23, 1, 0},
                    Case{"top_k_of_all", 40, 0, 1, 40, 1, 0}, Case{"top_p", 1000, 0, 0.9f, -1, 0.9f, 0},
                    Case{"top_p_among_ties", 997, 1.5f, 1, -1, 0.7f, 0}, Case{"top_p_of_the_first", 1000, 0, 1, -1, 1e-4f, 0},
                    Case{"min_p", 997, 0, 1, -1, 1, 0.05f}, Case{"top_k_and_top_p", 1000, 0, 1, 50, 0.8f, 0},
                    Case{"both_among_ties", 1000, 1.5f, 1.1f, 30, 0.85f, 0},
                    Case{"all_three", 1000, 0.5f, 1.4f, 60, 0.9f, 0.02f}),
    [](const auto& info) { return info.param.name; });

TEST(SampleKernelOrders, EveryOrderOfThreadsGivesTheSameToken) {
  const std::vector<float> logits = random_logits(997, 0.5f, 9);
  const SampleRowParams params{.draw = 0.4, .temperature = 1, .top_k = 50, .top_p = 0.9f};
  const int32_t token = sampled(logits, params, Order::ascending);
  EXPECT_EQ(sampled(logits, params, Order::descending), token);
  EXPECT_EQ(sampled(logits, params, Order::random), token);
}

TEST(SampleKernelGreedy, TheLargestLogitAndOfEqualOnesTheFirst) {
  for (const int vocab_size : {1, 30, 512, 2050, 4100}) {
    std::vector<float> logits = random_logits(vocab_size, 0.25f, 3);
    int32_t best = -1;
    for (int i = 0; i < vocab_size; ++i) {
      if (best < 0 || logits[i] > logits[best]) best = i;
    }
    EXPECT_EQ(sampled(logits, {}, Order::random), best) << vocab_size;
  }
}

TEST(SampleKernelGreedy, RowsWithANaNOrNothingGiveNoTokenAndInfinityItself) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const SampleRowParams params{.draw = 0.5, .temperature = 1, .top_k = 3};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sampled(std::vector<float>(100, -kInfinity), params, Order::ascending), kNoToken);
  EXPECT_EQ(sampled(std::vector<float>(100, nan), params, Order::ascending), kNoToken);
  EXPECT_EQ(sampled(std::vector<float>(100, -nan), params, Order::ascending), kNoToken);
  for (const size_t at : {0u, 57u, 99u}) {
    std::vector<float> some(100, 1.0f);
    some[at] = nan;
    EXPECT_EQ(sampled(some, params, Order::random), kNoToken) << at;
    EXPECT_EQ(sampled(some, {}, Order::random), kNoToken) << at;
  }
  std::vector<float> one(100, 0.0f);
  one[41] = kInfinity;
  EXPECT_EQ(sampled(one, params, Order::ascending), 41);
}

TEST(SampleKernelSlices, CtasThatShareARowGiveTheTokenOfOneAlone) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const int vocab_size : {3, 997, 1000, 4100}) {
    std::vector<float> logits = random_logits(vocab_size, 0.25f, 3);
    for (const SampleRowParams& params : {SampleRowParams{}, SampleRowParams{.draw = 0.4, .temperature = 1, .top_k = 50}}) {
      const int32_t token = sampled(logits, params, Order::random);
      for (const unsigned slices : {2u, 3u, 7u}) {
        for (const unsigned first : {0u, slices - 1}) EXPECT_EQ(sampled_by(slices, first, logits, params), token) << vocab_size;
      }
    }
    std::vector<float> equal(vocab_size, -kInfinity);
    EXPECT_EQ(sampled_by(3, 1, equal, {}), kNoToken);
    equal.front() = equal.back() = 2;
    EXPECT_EQ(sampled_by(3, 2, equal, {}), 0) << "of equal ones the first";
    equal.back() = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(sampled_by(3, 1, equal, {}), kNoToken);
  }
}

TEST(SampleKernelSlots, ATokenGoesWhereItsRowSays) {
  const std::vector<float> logits = {0, 3, 1, 2};
  const SampleRowParams rows[] = {
      {.logits_row = 0, .token_slot = 2}, {.logits_row = -1, .token_slot = 0}, {.logits_row = 0}};
  std::vector<int32_t> out(4, -7);
  for (unsigned block = 0; block < 3; ++block) {
    const auto kernel = [&] { sample_kernel({rows, 3, nullptr, logits.data(), 4, out.data()}, 1); };
    host_cta::run(kSampleThreads, Order::random, kernel, {block});
  }
  EXPECT_EQ(out, (std::vector<int32_t>{0, -7, 1, -7}));
  out.assign(4, -7);
  host_cta::run(kSampleThreads, Order::random, [&] { sample_kernel({rows, 3, nullptr, logits.data(), 4, out.data()}, 1); });
  EXPECT_EQ(out, (std::vector<int32_t>{-7, -7, 1, -7}));
}

TEST(SampleKernelGreedy, PaddingGivesTokenZero) {
  const SampleRowParams params;
  int32_t out = -7;
  host_cta::run(kSampleThreads, Order::ascending, [&] { sample_kernel({&params, 1, nullptr, nullptr, 100, &out}, 1); });
  EXPECT_EQ(out, 0);
}

}  // namespace
}  // namespace warpweave::gpu
