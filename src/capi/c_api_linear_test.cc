// ww_linear_attention from outside, through libwarpweave.so: GDN and KDA against the recurrence in double, and what it
// refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "capi/testing.h"
#include "warpweave/c.h"

namespace warpweave::capi::testing {
namespace {

constexpr int kKHeads = 2, kVHeads = 4, kKDim = 32, kVDim = 48;

// A call's tensors: two requests, of 70 tokens and of one, in slots 2 and 0 of three.
struct Problem {
  explicit Problem(bool kda)
      : kda(kda), q({tokens, kKHeads, kKDim}), k({tokens, kKHeads, kKDim}), v({tokens, kVHeads, kVDim}),
        g(kda ? std::vector<int64_t>{tokens, kVHeads, kKDim} : std::vector<int64_t>{tokens, kVHeads}),
        beta({tokens, kVHeads}), state({3, kVHeads, kVDim, kKDim}), out({tokens, kVHeads, kVDim}) {
    q.fill(1), k.fill(2), v.fill(3), g.fill(4), beta.fill(5), state.fill(6);
    for (size_t i = 0; i < g.size(); ++i) g.floats()[i] = -std::abs(g[i]);
    for (size_t i = 0; i < beta.size(); ++i) beta.floats()[i] = 1 / (1 + std::exp(-beta[i]));
    ww_context_options options = WW_CONTEXT_OPTIONS_INIT;
    options.threads = 2;
    EXPECT_EQ(ww_context_create(&options, &context), WW_OK) << ww_last_error();
    args.kind = kda ? WW_LINEAR_KDA : WW_LINEAR_GDN;
    args.q = q.tensor(), args.k = k.tensor(), args.v = v.tensor(), args.g = g.tensor(), args.beta = beta.tensor();
    args.state = state.tensor(), args.out = out.tensor();
    args.num_requests = 2, args.q_indptr = indptr, args.slots = slots;
    args.l2norm = 1;
  }
  ~Problem() { ww_context_destroy(context); }
  ww_status run() { return ww_linear_attention(context, &args); }

  static constexpr int tokens = 71;
  static constexpr int32_t indptr[3] = {0, 70, 71}, slots[2] = {2, 0};
  const bool kda;
  Array q, k, v, g, beta, state, out;
  ww_context* context = nullptr;
  ww_linear_args args = WW_LINEAR_ARGS_INIT;
};

// The recurrence over tokens `begin` to `end` in one v head, in double; `state` [v_dim, k_dim] goes on.
std::vector<double> recurrence(Problem& p, std::vector<double>& state, int head, int begin, int end) {
  std::vector<double> outs;
  const int k_head = head / (kVHeads / kKHeads);
  const auto normed = [&](Array& rows, int t) {
    std::vector<double> x(kKDim);
    double squares = 1e-6;
    for (int i = 0; i < kKDim; ++i) x[i] = rows[(t * kKHeads + k_head) * kKDim + i], squares += x[i] * x[i];
    for (double& value : x) value /= std::sqrt(squares);
    return x;
  };
  for (int t = begin; t < end; ++t) {
    const std::vector<double> q = normed(p.q, t), k = normed(p.k, t);
    for (int i = 0; i < kVDim; ++i) {
      double* row = &state[i * kKDim];
      double found = 0, out = 0;
      for (int c = 0; c < kKDim; ++c) {
        row[c] *= std::exp(double{p.kda ? p.g[(t * kVHeads + head) * kKDim + c] : p.g[t * kVHeads + head]});
        found += row[c] * k[c];
      }
      const double change = p.beta[t * kVHeads + head] * (p.v[(t * kVHeads + head) * kVDim + i] - found);
      for (int c = 0; c < kKDim; ++c) row[c] += change * k[c], out += row[c] * q[c];
      outs.push_back(out / std::sqrt(double{kKDim}));
    }
  }
  return outs;
}

void expect_right(Problem& p, bool from_zeros) {
  Array before = p.state;
  p.args.from_zeros = from_zeros;
  ASSERT_EQ(p.run(), WW_OK) << ww_last_error();
  constexpr int kHeadSize = kVDim * kKDim;
  for (int r = 0; r < 2; ++r) {
    for (int head = 0; head < kVHeads; ++head) {
      const int at = (p.slots[r] * kVHeads + head) * kHeadSize;
      std::vector<double> state(kHeadSize);
      for (int i = 0; !from_zeros && i < kHeadSize; ++i) state[i] = before[at + i];
      const std::vector<double> outs = recurrence(p, state, head, p.indptr[r], p.indptr[r + 1]);
      for (int i = 0; i < kHeadSize; ++i) ASSERT_NEAR(p.state[at + i], state[i], 2e-5) << r << " " << head << " " << i;
      for (size_t i = 0; i < outs.size(); ++i) {
        const int token = p.indptr[r] + static_cast<int>(i) / kVDim;
        ASSERT_NEAR(p.out[(token * kVHeads + head) * kVDim + i % kVDim], outs[i], 2e-5) << r << " " << head << " " << i;
      }
    }
  }
  // The slot of nobody.
  for (int i = 0; i < kVHeads * kHeadSize; ++i)
    ASSERT_EQ(p.state[kVHeads * kHeadSize + i], before[kVHeads * kHeadSize + i]);
}

TEST(CLinearAttention, IsTheRecurrence) {
  for (bool kda : {false, true}) {
    for (bool from_zeros : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "kda " << kda << ", from zeros " << from_zeros);
      Problem p(kda);
      expect_right(p, from_zeros);
    }
  }
}

TEST(CLinearAttention, TakesAStructWithoutItsLastField) {
  Problem p(false);
  p.args.struct_size = offsetof(ww_linear_args, deterministic);
  p.args.deterministic = 7;  // not read
  expect_right(p, false);
}

// One token each, without q_indptr, continues as one call for both tokens does.
TEST(CLinearAttention, StepsAreOnePrompt) {
  Problem at_once(false), by_steps(false);
  const int32_t whole[] = {0, 2}, slot[] = {1};
  at_once.args.num_requests = 1, at_once.args.q_indptr = whole, at_once.args.slots = slot;
  ASSERT_EQ(at_once.run(), WW_OK) << ww_last_error();
  by_steps.args.num_requests = 1, by_steps.args.q_indptr = nullptr, by_steps.args.slots = slot;
  for (int t = 0; t < 2; ++t) {
    const auto token = [t](Array& array, std::vector<int64_t> shape) {
      int64_t row = 1;
      for (size_t i = 1; i < shape.size(); ++i) row *= shape[i];
      return array.view({}, shape, t * row);
    };
    by_steps.args.q = token(by_steps.q, {1, kKHeads, kKDim}), by_steps.args.k = token(by_steps.k, {1, kKHeads, kKDim});
    by_steps.args.v = token(by_steps.v, {1, kVHeads, kVDim}), by_steps.args.g = token(by_steps.g, {1, kVHeads});
    by_steps.args.beta = token(by_steps.beta, {1, kVHeads}),
    by_steps.args.out = token(by_steps.out, {1, kVHeads, kVDim});
    ASSERT_EQ(by_steps.run(), WW_OK) << ww_last_error();
  }
  for (int i = 0; i < 2 * kVHeads * kVDim; ++i) ASSERT_NEAR(by_steps.out[i], at_once.out[i], 2e-5) << i;
}

// One token, one slot and batches of one: along dimensions of one element any stride will do.
TEST(CLinearAttention, StridesOfSingleElementsAreOfNoAccount) {
  Problem compact(false), odd(false);
  const auto decode = [](Problem& p, int requests) {
    p.args.num_requests = requests, p.args.q_indptr = p.args.slots = nullptr;
    ASSERT_EQ(p.run(), WW_OK) << ww_last_error();
  };
  compact.args.q = compact.q.view({}, {1, kKHeads, kKDim}), compact.args.k = compact.k.view({}, {1, kKHeads, kKDim});
  compact.args.v = compact.v.view({}, {1, kVHeads, kVDim}),
  compact.args.out = compact.out.view({}, {1, kVHeads, kVDim});
  compact.args.g = compact.g.view({}, {1, kVHeads}), compact.args.beta = compact.beta.view({}, {1, kVHeads});
  compact.args.state = compact.state.view({}, {1, kVHeads, kVDim, kKDim});
  decode(compact, 1);
  odd.args.q = odd.q.view({1, kKDim, 1}, {1, kKHeads, kKDim}),
  odd.args.k = odd.k.view({7, 1, kKDim, 1}, {1, 1, kKHeads, kKDim});
  odd.args.v = odd.v.view({1, kVDim, 1}, {1, kVHeads, kVDim}),
  odd.args.out = odd.out.view({1, 1, kVDim, 1}, {1, 1, kVHeads, kVDim});
  odd.args.g = odd.g.view({0, 1}, {1, kVHeads}), odd.args.beta = odd.beta.view({1, 1}, {1, kVHeads});
  odd.args.state = odd.state.view({1, kVDim * kKDim, kKDim, 1}, {1, kVHeads, kVDim, kKDim});
  decode(odd, 1);
  for (int i = 0; i < kVHeads * kVDim; ++i) ASSERT_EQ(odd.out[i], compact.out[i]) << i;

  Problem rows(false), batches(false);
  decode(rows, 3);
  batches.args.q = batches.q.view({kKHeads * kKDim, 1, kKDim, 1}, {Problem::tokens, 1, kKHeads, kKDim});
  decode(batches, 3);
  for (int i = 0; i < 3 * kVHeads * kVDim; ++i) ASSERT_EQ(batches.out[i], rows.out[i]) << i;
}

// a, b, a_log and dt_bias give what g and beta of their formulas give.
TEST(CLinearAttention, RawGates) {
  for (bool kda : {false, true}) {
    Problem given(kda), raw(kda);
    Array a({Problem::tokens, kVHeads, kda ? kKDim : 1}), b({Problem::tokens, kVHeads}), a_log({kVHeads}),
        bias({kVHeads, kda ? kKDim : 1});
    a.fill(7), b.fill(8), a_log.fill(9), bias.fill(10);
    const int channels = kda ? kKDim : 1;
    for (size_t i = 0; i < given.g.size(); ++i) {
      const int channel = static_cast<int>(i) % (kVHeads * channels);
      given.g.floats()[i] = -std::exp(a_log[channel / channels]) * std::log1p(std::exp(a[i] + bias[channel]));
    }
    for (size_t i = 0; i < given.beta.size(); ++i) given.beta.floats()[i] = 1 / (1 + std::exp(-b[i]));
    raw.args.g = raw.args.beta = nullptr;
    raw.args.a = kda ? a.tensor() : a.view({}, {Problem::tokens, kVHeads});
    raw.args.b = b.tensor(), raw.args.a_log = a_log.tensor();
    raw.args.dt_bias = kda ? bias.tensor() : bias.view({}, {kVHeads});
    ASSERT_EQ(given.run(), WW_OK) << ww_last_error();
    ASSERT_EQ(raw.run(), WW_OK) << ww_last_error();
    for (size_t i = 0; i < raw.out.size(); ++i) ASSERT_NEAR(raw.out[i], given.out[i], 2e-5) << kda << " " << i;
  }
}

void expect_refused(Problem& p, const char* name, const char* rule) {
  EXPECT_EQ(p.run(), WW_INVALID_ARGUMENT) << name;
  const std::string text = ww_last_error();
  EXPECT_NE(text.find(name), std::string::npos) << text;
  EXPECT_NE(text.find(rule), std::string::npos) << text;
}

TEST(CLinearAttention, Refuses) {
  Problem p(false);
  const ww_linear_args good = p.args;
  p.args.kind = 7;
  expect_refused(p, "kind", "WW_LINEAR_KDA");
  p.args = good, p.args.g = nullptr;
  expect_refused(p, "g", "[tokens, heads]");
  p.args = good, p.args.a_log = p.beta.view({}, {kVHeads});
  expect_refused(p, "g, beta", "NULL");
  p.args = good, p.args.beta = p.beta.view({}, {Problem::tokens - 1, kVHeads});
  expect_refused(p, "beta", "rows");
  p.args = good, p.args.beta = p.beta.tensor();
  Array halves({3, kVHeads, kVDim, kKDim}, kF16);
  p.args.state = halves.tensor();
  expect_refused(p, "state", "bf16");
  const int32_t beyond[] = {0, 90, 91}, twice[] = {1, 1}, outside[] = {1, 3};
  p.args = good, p.args.q_indptr = beyond;
  expect_refused(p, "q_indptr", "71");
  p.args = good, p.args.slots = twice;
  expect_refused(p, "slots", "1");
  p.args = good, p.args.slots = outside;
  expect_refused(p, "slots", "3");
  p.args = good, p.args.num_requests = -1;
  expect_refused(p, "num_requests", "0");
  Array bias({kVHeads});
  p.args = good, p.args.dt_bias = bias.tensor();
  expect_refused(p, "dt_bias", "without a_log");
  p.args = good, p.args.scale = std::numeric_limits<float>::infinity();
  expect_refused(p, "scale", "finite");
  p.args = good, p.args.l2norm_eps = -1;
  expect_refused(p, "l2norm_eps", "at least 0");
  EXPECT_EQ(ww_linear_attention(nullptr, &good), WW_INVALID_ARGUMENT);
  EXPECT_EQ(ww_linear_attention(p.context, nullptr), WW_INVALID_ARGUMENT);
  p.args = good;
  EXPECT_EQ(p.run(), WW_OK) << ww_last_error();
}

// What is out of every bound is refused before anything is computed of it.
TEST(CLinearAttention, RefusesWhatWouldOverflow) {
  Problem p(false);
  const ww_linear_args good = p.args;
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  p.args.q = p.q.view({}, {kHuge, 2, kKHeads, kKDim});
  expect_refused(p, "q", "rows");
  p.args = good, p.args.q = p.q.view({}, {-1, Problem::tokens, kKHeads, kKDim});
  expect_refused(p, "q", "rows");
  p.args = good, p.args.q = p.q.view({}, {0, 1 << 20, kKDim});
  expect_refused(p, "q", "heads");
  p.args = good, p.args.q = p.q.tensor();
  const int32_t far[] = {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(), Problem::tokens};
  p.args.q_indptr = far;
  expect_refused(p, "q_indptr", "begins below 0");
  Array a_log({kVHeads});
  p.args = good, p.args.g = p.args.beta = nullptr;
  p.args.a = p.g.tensor(), p.args.b = p.beta.tensor(), p.args.a_log = a_log.view({}, {kHuge, kHuge});
  expect_refused(p, "a_log", "4 f32 values");
}

// Kernels on a GPU read states sixteen bytes at a time: checked before anything runs there.
TEST(CLinearAttention, RefusesMisalignedStatesOnAGpu) {
  Problem p(false);
  std::vector<ww_tensor> there;
  there.reserve(7);
  for (const ww_tensor** tensor :
       {&p.args.q, &p.args.k, &p.args.v, &p.args.g, &p.args.beta, &p.args.state, &p.args.out}) {
    there.push_back(**tensor);
    there.back().device.device_type = WW_DEVICE_CUDA;
    *tensor = &there.back();
  }
  ww_tensor state = *p.args.state;
  p.args.state = &state;
  state.byte_offset += 4;
  expect_refused(p, "state", "16 bytes");
  state.byte_offset -= 4;
  constexpr int64_t kHead = kVDim * kKDim;
  int64_t strides[] = {kVHeads * kHead + 1, kHead, kKDim, 1};
  state.strides = strides;
  expect_refused(p, "state", "16 bytes");
}

}  // namespace
}  // namespace warpweave::capi::testing
