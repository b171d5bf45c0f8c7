// The products of a decode step with 17 to 64 rows, alone and in a layer without its attention: cuBLASLt beside
// stream_gemm, every way to cut its work.
//
//   layer_bench [ROWS ...]      default: 64
//
// The shapes are Llama-3.1-8B's. Sums are first held to float64 ones. Every time is a graph of launches over enough
// copies of the weights to miss the L2 cache; the median of nine. "layer" is norm, qkv, rope with the KV write, o,
// norm, gate and up with the activation, down.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "cuda_bench.h"
#include "device/cuda/stream.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/stream_gemm.h"

using namespace warpweave;
using namespace warpweave::gpu;
using bench::check;
using bench::take;

namespace {

constexpr int kLayers = 8, kMaxRows = kStreamGemmRows, kHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr int64_t kHidden = 4096, kFfn = 14336, kQkv = 6144;

float bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Normal bf16 numbers: a random block of an odd length, again and again.
std::vector<uint16_t> random_block(float scale) {
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal(0, scale);
  std::vector<uint16_t> out((size_t{1} << 20) + 331);
  for (uint16_t& x : out) x = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
  return out;
}

struct Matrix {
  std::vector<uint16_t> block;
  DeviceBuffer memory;
  float at(size_t i) const { return bf16(block[i % block.size()]); }
};

Matrix random_matrix(size_t count, float scale) {
  Matrix out = {random_block(scale), take(DeviceBuffer::allocate(count * 2, "a benchmark"))};
  for (size_t i = 0; i < count; i += out.block.size()) {
    check(cudaMemcpy(out.memory.as<uint16_t>() + i, out.block.data(), std::min(out.block.size(), count - i) * 2,
                     cudaMemcpyHostToDevice));
  }
  return out;
}

struct Product {
  const char* name;
  int64_t n, k;
  bool residual;
  GluActivation glu;
  std::vector<StreamPlan> plans;
  Matrix weights = {};

  GpuLinear copy(int i) const {
    GpuLinear out;
    out.weight = weights.memory.as<uint16_t>() + i % kLayers * n * k;
    out.in_features = k;
    out.out_features = n;
    out.glu = glu;
    return out;
  }
};

struct Plans {
  const char* name;
  StreamPlan of[4];
};

class Bench {
 public:
  Bench() : stream_(take(create_stream())), library_(take(GpuGemm::create())) {
    library_->set_library_only();
    x_ = random_matrix(kMaxRows * kFfn, 1);
    for (DeviceBuffer* buffer : {&y_, &residual_, &h_, &act_, &partials_}) {
      *buffer = take(DeviceBuffer::allocate(size_t{kMaxRows} * kFfn * 2 * 4 * 2, "a benchmark"));
      check(cudaMemset(buffer->as<void>(), 0, buffer->size_bytes()));
    }
    ones_ = take(DeviceBuffer::allocate(kFfn * 4, "a benchmark"));
    const std::vector<float> ones(kFfn, 1);
    check(cudaMemcpy(ones_.as<void>(), ones.data(), ones.size() * 4, cudaMemcpyHostToDevice));
    zeros_ = take(DeviceBuffer::allocate(kFfn * 4, "a benchmark"));
    check(cudaMemset(zeros_.as<void>(), 0, zeros_.size_bytes()));
    kv_ = take(DeviceBuffer::allocate(size_t{64} * kKvHeads * kHeadDim * 2 * 2, "a benchmark"));
    add("qkv", kQkv, kHidden, false, GluActivation::none,
        {{192, 4, 1, 4}, {128, 2, 1, 5}, {128, 2, 2, 6}, {128, 2, 4, 8}});
    add("o", kHidden, kHidden, true, GluActivation::none,
        {{128, 4, 1, 5}, {128, 4, 1, 7}, {128, 4, 2, 6}});
    add("gate_up", 2 * kFfn, kHidden, false, GluActivation::silu,
        {{224, 1, 1, 3}, {224, 1, 2, 4}, {224, 1, 2, 6}, {224, 1, 3, 5}, {224, 1, 3, 6}});
    add("down", kHidden, kFfn, true, GluActivation::none,
        {{128, 4, 1, 5}, {128, 4, 1, 7}, {128, 4, 2, 6}});
    for (Product& p : products) p.weights = random_matrix(size_t(p.n) * p.k * kLayers, 1 / 64.0f);
  }

  void add(const char* name, int64_t n, int64_t k, bool residual, GluActivation glu, std::vector<StreamPlan> plans) {
    products.push_back({name, n, k, residual, glu, std::move(plans), {}});
  }
  GemmCall call(const Product& p, const GpuLinear& linear, int64_t rows, bool own) const {
    GemmCall out;
    out.linear = &linear;
    out.x = p.residual ? (p.k == kFfn ? act_.as<void>() : x_.memory.as<void>()) : h_.as<void>();
    out.rows = rows;
    const bool fused = own && p.glu != GluActivation::none;
    out.y = p.residual ? residual_.as<void>() : fused ? act_.as<void>() : y_.as<void>();
    out.y_dtype = p.residual ? DType::f32 : DType::bf16;
    out.y_stride = fused ? p.n / 2 : p.n;
    out.accumulate = p.residual && !own;
    out.fused_glu = fused;
    return out;
  }
  void library(const Product& p, int copy, int64_t rows) {
    const GpuLinear linear = p.copy(copy);
    check(library_->run(call(p, linear, rows, false), stream_.get()));
  }
  void own(const Product& p, const StreamPlan& plan, int copy, int64_t rows) {
    const GpuLinear linear = p.copy(copy);
    stream_gemm(call(p, linear, rows, true), plan, p.glu == GluActivation::none ? partials_.as<float>() : nullptr, stream_.get());
  }
  void norm(int64_t rows, int splits) {
    rms_norm({.x = residual_.as<float>(), .partials = {splits > 0 ? partials_.as<float>() : nullptr, splits, rows * kHidden}, .rows = rows,
              .cols = kHidden, .weight = ones_.as<float>(), .eps = 1e-5f, .out = h_.as<void>(), .out_dtype = DType::bf16},
             stream_.get());
  }
  void rope(int64_t rows, int splits) {
    QkvRowsCall c;
    c.qkv = y_.as<void>();
    c.partials = {splits > 0 ? partials_.as<float>() : nullptr, splits, rows * kQkv};
    c.rows = rows;
    c.num_q_heads = kHeads;
    c.num_kv_heads = kKvHeads;
    c.head_dim = c.rotary_dim = kHeadDim;
    c.cos = ones_.as<float>();
    c.sin = zeros_.as<float>();
    c.positions = c.kv_slots = zeros_.as<int32_t>();
    c.page_size = 64;
    c.k_out = {kv_.as<void>(), KvFormat::bf16, 64 * kKvHeads * kHeadDim, kKvHeads * kHeadDim, kHeadDim, nullptr, nullptr};
    c.v_out = {kv_.as<char>() + size_t{64} * kKvHeads * kHeadDim * 2, KvFormat::bf16, 64 * kKvHeads * kHeadDim,
               kKvHeads * kHeadDim, kHeadDim, nullptr, nullptr};
    norm_rope_write_kv(c, stream_.get());
  }
  void glu_rows(int64_t rows) {
    glu({.activation = GluActivation::silu, .in = y_.as<void>(), .dtype = DType::bf16, .rows = rows, .cols = kFfn, .out = act_.as<void>()},
        stream_.get());
  }
  void library_layer(int i, int64_t rows) {
    norm(rows, 0);
    library(products[0], i, rows);
    rope(rows, 0);
    library(products[1], i, rows);
    norm(rows, 0);
    library(products[2], i, rows);
    glu_rows(rows);
    library(products[3], i, rows);
  }
  void own_layer(const Plans& plans, int i, int64_t rows) {
    norm(rows, plans.of[3].splits);
    own(products[0], plans.of[0], i, rows);
    rope(rows, plans.of[0].splits);
    own(products[1], plans.of[1], i, rows);
    norm(rows, plans.of[1].splits);
    own(products[2], plans.of[2], i, rows);
    own(products[3], plans.of[3], i, rows);
  }
  void tune(int64_t rows) {
    library_->start_tuning();
    for (const Product& p : products) {
      for (int i = 0; i < 64; ++i) library(p, i, rows);
    }
    library_->stop_tuning();
    check(cudaMemset(residual_.as<void>(), 0, residual_.size_bytes()));
  }
  double time_us(int launches, const std::function<void()>& enqueue) {
    return bench::time_us(stream_.get(), launches, enqueue);
  }

  // The largest error over the outputs' size, of some outputs.
  double error_of(const Product& p, const StreamPlan& plan, int64_t rows) {
    const bool fused = p.glu != GluActivation::none;
    const int copy = 3;
    check(cudaMemcpy(p.k == kFfn ? act_.as<void>() : h_.as<void>(), x_.memory.as<void>(), size_t(rows) * p.k * 2, cudaMemcpyDeviceToDevice));
    check(cudaMemset(partials_.as<void>(), 0xff, partials_.size_bytes()));
    if (fused) check(cudaMemset(act_.as<void>(), 0xff, act_.size_bytes()));
    own(p, plan, copy, rows);
    check(cudaStreamSynchronize(stream_.get()));
    const int64_t columns = fused ? p.n / 2 : p.n, each = rows * columns;
    std::vector<float> y(each);
    if (fused) {
      std::vector<uint16_t> halves(each);
      check(cudaMemcpy(halves.data(), act_.as<void>(), each * 2, cudaMemcpyDeviceToHost));
      for (int64_t i = 0; i < each; ++i) y[i] = bf16(halves[i]);
    } else {
      std::vector<float> part(each);
      for (int s = 0; s < plan.splits; ++s) {
        check(cudaMemcpy(part.data(), partials_.as<float>() + s * each, each * 4, cudaMemcpyDeviceToHost));
        for (int64_t i = 0; i < each; ++i) y[i] += part[i];
      }
    }
    std::mt19937 random(5);
    double worst = 0, size = 0;
    int nans = 0;
    for (float v : y) nans += std::isnan(v);
    constexpr int kSamples = 1500;
    for (int i = 0; i < kSamples; ++i) {
      const int64_t row = random() % rows, column = random() % columns;
      const auto sum_of = [&](int64_t w_row) {
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k) sum += double{x_.at(row * p.k + k)} * p.weights.at((copy * p.n + w_row) * p.k + k);
        return sum;
      };
      double want = sum_of(column);
      if (fused) want = want / (1 + std::exp(-want)) * sum_of(columns + column);
      worst = std::max(worst, std::abs(want - y[row * columns + column]));
      size += want * want;
    }
    return nans > 0 ? NAN : worst / std::sqrt(size / kSamples);
  }

  std::vector<Product> products;

 private:
  CudaStream stream_;
  std::unique_ptr<GpuGemm> library_;
  Matrix x_;
  DeviceBuffer y_, residual_, h_, act_, partials_, ones_, zeros_, kv_;
};

std::string name_of(const StreamPlan& p) { return fmt::format("{}x{} {} of {}", p.tile, p.splits, p.together, p.in_flight); }

void measure(Bench& bench, int64_t rows) {
  const auto chosen = [&](int i) {
    const GpuLinear linear = bench.products[i].copy(0);
    return stream_plan(bench.call(bench.products[i], linear, rows, true));
  };
  bench.tune(rows);
  for (const Product& p : bench.products) {
    std::string line = fmt::format("{} {}: lib {:.1f}", rows, p.name, bench.time_us(2 * kLayers, [&] {
      for (int i = 0; i < 2 * kLayers; ++i) bench.library(p, i, rows);
    }));
    for (const StreamPlan& plan : p.plans) {
      const double error = bench.error_of(p, plan, rows);
      line += fmt::format(" | {} {:.1f}{}", name_of(plan), bench.time_us(2 * kLayers, [&] {
        for (int i = 0; i < 2 * kLayers; ++i) bench.own(p, plan, i, rows);
      }), error < (p.glu == GluActivation::none ? 1e-4 : 6e-2) ? "" : fmt::format(" WRONG {:.2g}", error));
    }
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }
  const Plans layers[] = {{"chosen", {chosen(0), chosen(1), chosen(2), chosen(3)}},
                          {"glu 3 of 6", {chosen(0), chosen(1), {224, 1, 3, 6}, chosen(3)}},
                          {"glu 3 of 5", {chosen(0), chosen(1), {224, 1, 3, 5}, chosen(3)}},
                          {"glu 2 of 6", {chosen(0), chosen(1), {224, 1, 2, 6}, chosen(3)}},
                          {"qkv 192x4", {{192, 4, 1, 4}, chosen(1), chosen(2), chosen(3)}},
                          {"qkv 1 of 5", {{128, 2, 1, 5}, chosen(1), chosen(2), chosen(3)}},
                          {"qkv 4 of 8", {{128, 2, 4, 8}, chosen(1), chosen(2), chosen(3)}},
                          {"o, down 2 of 6", {chosen(0), {128, 4, 2, 6}, chosen(2), {128, 4, 2, 6}}},
                          {"o, down 1 of 8", {chosen(0), {128, 4, 1, 8}, chosen(2), {128, 4, 1, 8}}}};
  std::string line = fmt::format("{} layer:", rows);
  for (int turn = 0; turn < 2; ++turn) {
    line += fmt::format(" | library {:.1f}", bench.time_us(kLayers, [&] {
      for (int i = 0; i < kLayers; ++i) bench.library_layer(i, rows);
    }));
    for (const Plans& plans : layers) {
      line += fmt::format(" | {} {:.1f}", plans.name, bench.time_us(kLayers, [&] {
        for (int i = 0; i < kLayers; ++i) bench.own_layer(plans, i, rows);
      }));
    }
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> row_counts;
  for (int i = 1; i < argc; ++i) row_counts.push_back(std::clamp(std::atoi(argv[i]), 1, kMaxRows));
  if (row_counts.empty()) row_counts = {64};
  Bench bench;
  for (int64_t rows : row_counts) measure(bench, rows);
  return 0;
}
