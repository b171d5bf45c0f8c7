// Mixtures of experts against float64, with a router whose choices the test decides: the first columns of a row
// are the logits of the experts.
#include "ops/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "base/float16.h"

namespace warpweave {
namespace {

struct Shape {
  int experts = 6;
  int k = 2;
  int64_t hidden = 48;
  int64_t ffn = 33;
  int64_t shared_ffn = 0;
  bool shared_gate = false;
  bool bias = false;
  DType dtype = DType::f32;
  ComputeMode compute = ComputeMode::f32;
  CpuTier tier = cpu_info().tier;
};

std::vector<float> normals(int64_t n, std::mt19937& random, float scale) {
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(n);
  for (float& v : out) v = bf16_to_f32(f32_to_bf16(normal(random)));  // the same in every dtype
  return out;
}

// y = rows of W [rows, cols] times x, plus a bias.
struct Matrix {
  int64_t cols = 0;
  std::vector<float> weight;
  std::vector<float> bias;

  std::vector<double> times(const double* x) const {
    std::vector<double> y(weight.size() / cols);
    for (size_t n = 0; n < y.size(); ++n) {
      y[n] = bias.empty() ? 0.0 : bias[n];
      for (int64_t c = 0; c < cols; ++c) y[n] += double{weight[n * cols + c]} * x[c];
    }
    return y;
  }
};

struct Expert {
  Matrix gate, up, down;

  std::vector<double> forward(const double* x) const {
    std::vector<double> inner = gate.times(x);
    const std::vector<double> up_rows = up.times(x);
    for (size_t n = 0; n < inner.size(); ++n) inner[n] = inner[n] / (1 + std::exp(-inner[n])) * up_rows[n];
    return down.times(inner.data());
  }
};

// Mistakes that the comparison must notice.
enum class Mutant { none, rows_shifted, weights_twice, without_weights, shared_left_out };

class Mixture {
 public:
  explicit Mixture(const Shape& shape, unsigned seed = 1) : shape_(shape), random_(seed) {
    Matrix router = matrix(shape.experts, shape.hidden, false);
    for (int64_t i = 0; i < static_cast<int64_t>(router.weight.size()); ++i) {
      router.weight[i] = i / shape.hidden == i % shape.hidden;
    }
    router_ = pack({&router}, GluActivation::none, DType::f32, ComputeMode::f32);
    for (int e = 0; e < shape.experts; ++e) {
      experts_.push_back({matrix(shape.ffn, shape.hidden, shape.bias), matrix(shape.ffn, shape.hidden, shape.bias),
                          matrix(shape.hidden, shape.ffn, shape.bias)});
      const Expert& expert = experts_.back();
      packed_.push_back({packed({&expert.gate, &expert.up}, GluActivation::silu), packed({&expert.down})});
    }
    if (shape.shared_ffn == 0) return;
    shared_ = {matrix(shape.shared_ffn, shape.hidden, false), matrix(shape.shared_ffn, shape.hidden, false),
               matrix(shape.hidden, shape.shared_ffn, false)};
    shared_gate_up_ = packed({&shared_.gate, &shared_.up}, GluActivation::silu);
    shared_down_ = packed({&shared_.down});
    shared_gate_ = normals(shape.hidden, random_, 0.2f);
  }

  // Rows that choose the experts in `chosen` [rows, k], in this order, with random weights.
  std::vector<float> rows_for(const std::vector<int32_t>& chosen) {
    const int64_t rows = static_cast<int64_t>(chosen.size()) / shape_.k;
    std::vector<float> x = normals(rows * shape_.hidden, random_, 1);
    for (int64_t r = 0; r < rows; ++r) {
      for (int e = 0; e < shape_.experts; ++e) x[r * shape_.hidden + e] = -4.0f;
      for (int j = 0; j < shape_.k; ++j) {
        x[r * shape_.hidden + chosen[r * shape_.k + j]] =
            0.25f * static_cast<float>(shape_.k - j) + 0.125f * (random_() % 2);
      }
    }
    return x;
  }

  std::vector<float> forward(const float* x, int64_t rows, ThreadTeam& team) const {
    std::vector<float> y(rows * shape_.hidden, 0.5f);
    MoeCall call{.x = x, .rows = rows, .x_stride = shape_.hidden, .router = &router_, .experts = packed_,
                 .rule = {.num_experts = shape_.experts, .k = shape_.k}, .y = y.data(), .y_stride = shape_.hidden};
    if (shape_.shared_ffn > 0) {
      call.shared_gate_up = &shared_gate_up_;
      call.shared_down = &shared_down_;
      if (shape_.shared_gate) call.shared_gate = shared_gate_.data();
    }
    moe_forward(call, team);
    return y;
  }

  // What forward() should give, or what it would give with a mistake in it.
  std::vector<double> reference(const std::vector<float>& x, const std::vector<int32_t>& chosen,
                                Mutant mutant = Mutant::none) const {
    const int64_t rows = static_cast<int64_t>(x.size()) / shape_.hidden;
    std::vector<double> y(x.size(), 0.5);
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<double> row(x.begin() + r * shape_.hidden, x.begin() + (r + 1) * shape_.hidden);
      const int64_t from = mutant == Mutant::rows_shifted ? (r + 1) % rows : r;
      const std::vector<double> input(x.begin() + from * shape_.hidden, x.begin() + (from + 1) * shape_.hidden);
      double total = 0;
      for (int j = 0; j < shape_.k; ++j) total += std::exp(row[chosen[r * shape_.k + j]]);
      for (int j = 0; j < shape_.k; ++j) {
        const int32_t e = chosen[r * shape_.k + j];
        double weight = std::exp(row[e]) / total;
        if (mutant == Mutant::weights_twice) weight *= weight;
        if (mutant == Mutant::without_weights) weight = 1.0 / shape_.k;
        add(experts_[e].forward(input.data()), weight, &y[r * shape_.hidden]);
      }
      if (shape_.shared_ffn == 0 || mutant == Mutant::shared_left_out) continue;
      double logit = 0;
      for (int64_t c = 0; c < shape_.hidden; ++c) logit += row[c] * shared_gate_[c];
      add(shared_.forward(row.data()), shape_.shared_gate ? 1 / (1 + std::exp(-logit)) : 1, &y[r * shape_.hidden]);
    }
    return y;
  }

 private:
  void add(const std::vector<double>& values, double weight, double* y) const {
    for (size_t c = 0; c < values.size(); ++c) y[c] += weight * values[c];
  }
  Matrix matrix(int64_t rows, int64_t cols, bool bias) {
    Matrix out{cols, normals(rows * cols, random_, 1 / std::sqrt(static_cast<float>(cols))), {}};
    if (bias) out.bias = normals(rows, random_, 0.3f);
    return out;
  }
  PackedLinear packed(std::vector<const Matrix*> parts, GluActivation glu = GluActivation::none) {
    return pack(std::move(parts), glu, shape_.dtype, shape_.compute);
  }
  PackedLinear pack(std::vector<const Matrix*> matrices, GluActivation glu, DType dtype, ComputeMode compute) {
    std::vector<LinearPart> parts;
    std::vector<std::vector<uint16_t>> narrow(matrices.size());
    for (size_t i = 0; i < matrices.size(); ++i) {
      const Matrix& m = *matrices[i];
      const int64_t rows = static_cast<int64_t>(m.weight.size()) / m.cols;
      LinearPart part;
      part.weight = {.data = m.weight.data(), .dtype = dtype, .rank = 2, .shape = {rows, m.cols}};
      if (dtype == DType::bf16) {
        for (const float v : m.weight) narrow[i].push_back(f32_to_bf16(v));
        part.weight.data = narrow[i].data();
      }
      if (!m.bias.empty()) part.bias = {.data = m.bias.data(), .dtype = DType::f32, .rank = 1, .shape = {rows}};
      parts.push_back(part);
    }
    ThreadTeam alone(1);
    auto out = PackedLinear::pack(parts, {.compute = compute, .glu = glu, .tier = shape_.tier}, alone);
    EXPECT_TRUE(out.ok());
    return std::move(out).value();
  }

  Shape shape_;
  std::mt19937 random_;
  PackedLinear router_;
  std::vector<Expert> experts_;
  std::vector<MoeExpert> packed_;
  Expert shared_;
  PackedLinear shared_gate_up_, shared_down_;
  std::vector<float> shared_gate_;
};

// The largest error of an element, of the largest value there is.
double error(const std::vector<float>& got, const std::vector<double>& want) {
  double worst = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = std::abs(got[i] - want[i]);
    if (!(d <= worst)) worst = d;  // NaN wins
    largest = std::max(largest, std::abs(want[i]));
  }
  return worst / largest;
}

// Each row's k experts, drawn so that experts get from none of the rows to all of them.
std::vector<int32_t> random_choices(int64_t rows, const Shape& shape, std::mt19937& random) {
  std::vector<double> liking(shape.experts);
  for (double& l : liking) l = random() % 3 == 0 ? 0 : random() % 3 == 0 ? 1e6 : 1.0 + random() % 5;
  std::vector<int32_t> out;
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> left(liking);
    for (int j = 0; j < shape.k; ++j) {
      for (double& l : left) l += l >= 0 ? 1e-9 : 0;
      for (double& l : left) l = std::max(l, 0.0);
      std::discrete_distribution<int> draw(left.begin(), left.end());
      int e = draw(random);
      while (std::find(out.end() - j, out.end(), e) != out.end()) e = (e + 1) % shape.experts;
      out.push_back(e);
      left[e] = -1;
    }
  }
  return out;
}

constexpr double kTolerance = 2e-6;       // exact products, sums in f32
constexpr double kBf16Tolerance = 1.2e-2;  // activations rounded to 8 bits of mantissa, twice

double tolerance(const Shape& shape) { return shape.compute == ComputeMode::bf16 ? kBf16Tolerance : kTolerance; }

std::vector<Shape> shapes() {
  std::vector<Shape> out = {
      {},
      {.experts = 5, .k = 3, .bias = true},
      {.experts = 4, .k = 4, .shared_ffn = 40},
      {.experts = 7, .k = 1, .shared_ffn = 17, .shared_gate = true},
      {.experts = 16, .k = 4, .hidden = 96, .ffn = 64, .shared_ffn = 64, .shared_gate = true, .dtype = DType::bf16},
  };
  for (const CpuTier tier :
       {CpuTier::scalar, CpuTier::avx2, CpuTier::avx512, CpuTier::avx512_bf16, CpuTier::amx_bf16}) {
    if (tier > cpu_info().tier) continue;
    out.push_back({.experts = 8, .k = 2, .hidden = 96, .ffn = 80, .shared_ffn = 48, .dtype = DType::bf16,
                   .compute = ComputeMode::bf16, .tier = tier});
    out.push_back({.experts = 8, .k = 2, .hidden = 50, .ffn = 70, .dtype = DType::bf16,
                   .compute = ComputeMode::bf16, .tier = tier});
  }
  return out;
}

TEST(Moe, RandomSplitsMatchFloat64) {
  ThreadTeam team(2);
  std::mt19937 random(17);
  for (const Shape& shape : shapes()) {
    Mixture mixture(shape);
    for (const int64_t rows : {1, 2, 3, 8, 9, 33, 70}) {
      const std::vector<int32_t> chosen = random_choices(rows, shape, random);
      const std::vector<float> x = mixture.rows_for(chosen);
      EXPECT_LE(error(mixture.forward(x.data(), rows, team), mixture.reference(x, chosen)), tolerance(shape))
          << rows << " rows, " << shape.experts << " experts, tier " << static_cast<int>(shape.tier);
    }
  }
}

TEST(Moe, AllRowsInOneExpertAndNoneInTheOthers) {
  ThreadTeam team(2);
  for (Shape shape : shapes()) {
    Mixture mixture(shape);
    for (const int first : {0, shape.experts - shape.k}) {
      std::vector<int32_t> chosen(40 * shape.k);
      for (size_t i = 0; i < chosen.size(); ++i) chosen[i] = first + static_cast<int>(i) % shape.k;
      const std::vector<float> x = mixture.rows_for(chosen);
      EXPECT_LE(error(mixture.forward(x.data(), 40, team), mixture.reference(x, chosen)), tolerance(shape));
    }
  }
}

// The comparison above would notice these.
TEST(Moe, MistakesAreCaught) {
  ThreadTeam team(2);
  std::mt19937 random(18);
  for (const Shape& shape : shapes()) {
    if (shape.k == 1) continue;  // its only weight is 1
    Mixture mixture(shape);
    const std::vector<int32_t> chosen = random_choices(12, shape, random);
    const std::vector<float> x = mixture.rows_for(chosen);
    const std::vector<float> y = mixture.forward(x.data(), 12, team);
    for (const Mutant mutant : {Mutant::rows_shifted, Mutant::weights_twice, Mutant::without_weights,
                                Mutant::shared_left_out}) {
      if (mutant == Mutant::shared_left_out && shape.shared_ffn == 0) continue;
      EXPECT_GT(error(y, mixture.reference(x, chosen, mutant)), 2 * tolerance(shape)) << static_cast<int>(mutant);
    }
  }
}

TEST(Moe, ARowsBitsDoNotDependOnTheBatchOrTheThreads) {
  ThreadTeam one(1), two(2), three(3);
  std::mt19937 random(19);
  for (const Shape& shape : shapes()) {
    Mixture mixture(shape);
    const int64_t rows = 37;
    const std::vector<float> x = mixture.rows_for(random_choices(rows, shape, random));
    const std::vector<float> all = mixture.forward(x.data(), rows, two);
    EXPECT_EQ(all, mixture.forward(x.data(), rows, one));
    EXPECT_EQ(all, mixture.forward(x.data(), rows, three));
    for (int64_t begin = 0, count = 1; begin < rows; begin += count, count = count % 9 + 1) {
      const int64_t n = std::min(count, rows - begin);
      const std::vector<float> some = mixture.forward(&x[begin * shape.hidden], n, two);
      ASSERT_EQ(0, std::memcmp(some.data(), &all[begin * shape.hidden], some.size() * sizeof(float)))
          << n << " rows from " << begin;
    }
  }
}

}  // namespace
}  // namespace warpweave
