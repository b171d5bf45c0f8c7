// The GEMMs of a step with 17 to 128 rows, alone and in a layer without its attention: cuBLASLt beside
// stream_gemm (up to 64 rows) or tile_gemm, several ways to cut their work.
//
//   layer_bench [ROWS ...]      default: 64
//
// The shapes are Llama-3.1-8B's. Sums are first held to float64 ones. Every time is a graph of launches over enough
// copies of the weights to miss the L2 cache; the graphs run by turns in random order, the median of nine. "layer" is
// norm, qkv, rope with the KV write, o, norm, gate and up with the activation, down; with cuBLASLt the small kernels ask
// for the next GEMM's first weights, as in a decode step.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <variant>
#include <vector>

#include "cuda_bench.h"
#include "device/cuda/stream.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/stream_gemm.h"
#include "ops/cuda/tile_gemm.h"

using namespace warpweave;
using namespace warpweave::gpu;
using bench::check;
using bench::Matrix;
using bench::random_matrix;
using bench::take;

namespace {

constexpr int kLayers = 8, kCheckedCopy = 3, kMaxRows = kTileGemmRows, kHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr int64_t kHidden = 4096, kFfn = 14336, kQkv = 6144;

float bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

using Way = std::variant<StreamPlan, TilePlan>;

int splits_of(const Way& way) {
  return std::visit([](const auto& plan) { return plan.splits; }, way);
}

std::string name_of(const Way& way) {
  if (const auto* p = std::get_if<StreamPlan>(&way)) return fmt::format("{}x{} {} of {}", p->tile, p->splits, p->together, p->in_flight);
  const TilePlan& p = std::get<TilePlan>(way);
  return fmt::format("{}x{} {} of {}", p.tile, p.splits, p.together, p.in_flight);
}

struct Gemm {
  const char* name;
  int64_t n, k;
  bool residual;
  GluActivation glu;
  std::vector<StreamPlan> stream_plans;
  std::vector<TilePlan> tile_plans;
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

struct Layer {
  std::string name;
  Way of[4];
  bool ahead = false;  // norms ask for the next GEMM's first weights
};

struct Timed {
  std::string name;
  int launches;
  std::function<void()> enqueue;
  std::vector<double> us = {};
  double median() {
    std::sort(us.begin(), us.end());
    return us[us.size() / 2];
  }
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
    kv_ = take(DeviceBuffer::allocate(size_t{kMaxRows} * kKvHeads * kHeadDim * 2 * 2, "a benchmark"));
    std::vector<int32_t> slots(kMaxRows);
    std::iota(slots.begin(), slots.end(), 0);
    slots_ = take(DeviceBuffer::allocate(slots.size() * 4, "a benchmark"));
    check(cudaMemcpy(slots_.as<void>(), slots.data(), slots.size() * 4, cudaMemcpyHostToDevice));
    gemms.push_back({"qkv", kQkv, kHidden, false, GluActivation::none,
        {{192, 4, 1, 4}, {128, 2, 1, 5}, {128, 2, 2, 6}, {128, 2, 4, 8}},
        {{192, 2, 1, 4}, {192, 2, 2, 4}, {96, 1, 2, 6}, {96, 2, 2, 6}}});
    gemms.push_back({"o", kHidden, kHidden, true, GluActivation::none, {{128, 4, 1, 5}, {128, 4, 1, 7}, {128, 4, 2, 6}},
        {{128, 2, 2, 6}, {192, 3, 1, 4}, {96, 3, 2, 6}, {128, 4, 1, 6}}});
    gemms.push_back({"gate_up", 2 * kFfn, kHidden, false, GluActivation::silu,
        {{224, 1, 1, 3}, {224, 1, 2, 4}, {224, 1, 2, 6}, {224, 1, 3, 5}, {224, 1, 3, 6}},
        {{224, 1, 1, 3}, {224, 1, 1, 4}}});
    gemms.push_back({"down", kHidden, kFfn, true, GluActivation::none, {{128, 4, 1, 5}, {128, 4, 1, 7}, {128, 4, 2, 6}},
        {{256, 4, 1, 3}, {192, 3, 1, 4}, {128, 4, 1, 6}, {96, 3, 2, 6}}});
    for (Gemm& p : gemms) p.weights = random_matrix(size_t(p.n) * p.k * kLayers, 1 / 64.0f);
  }

  GemmCall call(const Gemm& p, const GpuLinear& linear, int64_t rows, bool own) const {
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
  void library(const Gemm& p, int copy, int64_t rows) {
    const GpuLinear linear = p.copy(copy);
    check(library_->run(call(p, linear, rows, false), stream_.get()));
  }
  // Partial sums that are left to the next kernel, or 0: y is written.
  static int sums_left(const Gemm& p, const Way& way) {
    const bool stream = std::holds_alternative<StreamPlan>(way);
    return p.glu == GluActivation::none && (p.residual || stream || splits_of(way) > 1) ? splits_of(way) : 0;
  }
  void own(const Gemm& p, const Way& way, int copy, int64_t rows) {
    const GpuLinear linear = p.copy(copy);
    float* const partials = sums_left(p, way) > 0 ? partials_.as<float>() : nullptr;
    if (const auto* plan = std::get_if<StreamPlan>(&way)) {
      stream_gemm(call(p, linear, rows, true), *plan, partials, stream_.get());
    } else {
      tile_gemm(call(p, linear, rows, true), std::get<TilePlan>(way), partials, stream_.get());
    }
  }
  // As the decoder does: 12 MB.
  static WeightPrefetch ahead(const Gemm& p, int copy) {
    const GpuLinear linear = p.copy(copy);
    return {linear.weight, p.n, p.k * 2, std::min((int64_t{12} << 20) / p.n, p.k * 2) / 128 * 128};
  }
  void norm(int64_t rows, int splits, WeightPrefetch prefetch = {}) {
    rms_norm({.x = residual_.as<float>(), .partials = {splits > 0 ? partials_.as<float>() : nullptr, splits, rows * kHidden}, .rows = rows,
              .cols = kHidden, .weight = ones_.as<float>(), .eps = 1e-5f, .out = h_.as<void>(), .out_dtype = DType::bf16,
              .prefetch = prefetch},
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
    c.positions = zeros_.as<int32_t>();
    c.kv_slots = slots_.as<int32_t>();
    c.page_size = 64;
    c.k_out = {kv_.as<void>(), KvFormat::bf16, 64 * kKvHeads * kHeadDim, kKvHeads * kHeadDim, kHeadDim, nullptr, nullptr};
    c.v_out = {kv_.as<char>() + size_t{kMaxRows} * kKvHeads * kHeadDim * 2, KvFormat::bf16, 64 * kKvHeads * kHeadDim,
               kKvHeads * kHeadDim, kHeadDim, nullptr, nullptr};
    norm_rope_write_kv(c, stream_.get());
  }
  void glu_rows(int64_t rows, const WeightPrefetch& prefetch) {
    glu({.activation = GluActivation::silu, .in = y_.as<void>(), .dtype = DType::bf16, .rows = rows, .cols = kFfn,
         .out = act_.as<void>(), .prefetch = prefetch},
        stream_.get());
  }
  void library_layer(int i, int64_t rows) {
    norm(rows, 0, ahead(gemms[0], i));
    library(gemms[0], i, rows);
    rope(rows, 0);
    library(gemms[1], i, rows);
    norm(rows, 0, ahead(gemms[2], i));
    library(gemms[2], i, rows);
    glu_rows(rows, ahead(gemms[3], i));
    library(gemms[3], i, rows);
  }
  void own_layer(const Layer& layer, int i, int64_t rows) {
    norm(rows, sums_left(gemms[3], layer.of[3]), layer.ahead ? ahead(gemms[0], i) : WeightPrefetch{});
    own(gemms[0], layer.of[0], i, rows);
    rope(rows, sums_left(gemms[0], layer.of[0]));
    own(gemms[1], layer.of[1], i, rows);
    norm(rows, sums_left(gemms[1], layer.of[1]), layer.ahead ? ahead(gemms[2], i) : WeightPrefetch{});
    own(gemms[2], layer.of[2], i, rows);
    own(gemms[3], layer.of[3], i, rows);
  }
  void tune(int64_t rows) {
    library_->start_tuning();
    for (const Gemm& p : gemms) {
      for (int i = 0; i < 64; ++i) library(p, i, rows);
    }
    library_->stop_tuning();
    check(cudaMemset(residual_.as<void>(), 0, residual_.size_bytes()));
  }
  // By turns, in random order.
  void time(std::vector<Timed>& all) {
    constexpr int kRounds = 9;
    std::vector<CudaGraphExec> execs(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].enqueue();
      check(cudaStreamSynchronize(stream_.get()));
      execs[i] = bench::graph_of(stream_.get(), all[i].enqueue);
    }
    CudaEvent begin, end;
    check(cudaEventCreate(begin.out()));
    check(cudaEventCreate(end.out()));
    std::vector<size_t> order(all.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::mt19937 random(std::random_device{}());
    for (int round = 0; round < kRounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (size_t i : order) {
        float ms = 0;
        check(cudaEventRecord(begin.get(), stream_.get()));
        check(cudaGraphLaunch(execs[i].get(), stream_.get()));
        check(cudaEventRecord(end.get(), stream_.get()));
        check(cudaEventSynchronize(end.get()));
        check(cudaEventElapsedTime(&ms, begin.get(), end.get()));
        all[i].us.push_back(ms * 1e3 / all[i].launches);
      }
    }
  }

  // Sums in float64 of some outputs, by row and column.
  std::map<std::pair<int64_t, int64_t>, double> reference(const Gemm& p, int64_t rows) const {
    const bool fused = p.glu != GluActivation::none;
    const int64_t columns = fused ? p.n / 2 : p.n;
    std::mt19937 random(5);
    std::map<std::pair<int64_t, int64_t>, double> out;
    constexpr int kSamples = 800;
    for (int i = 0; i < kSamples; ++i) {
      const int64_t row = random() % rows, column = random() % columns;
      const auto sum_of = [&](int64_t w_row) {
        const size_t x = row * p.k, w = (kCheckedCopy * p.n + w_row) * p.k;
        size_t x_at = x % x_.block.size(), w_at = w % p.weights.block.size();
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          sum += double{bf16(x_.block[x_at])} * bf16(p.weights.block[w_at]);
          if (++x_at == x_.block.size()) x_at = 0;
          if (++w_at == p.weights.block.size()) w_at = 0;
        }
        return sum;
      };
      double want = sum_of(column);
      if (fused) want = want / (1 + std::exp(-want)) * sum_of(columns + column);
      out[{row, column}] = want;
    }
    return out;
  }

  // The largest error over the outputs' size.
  double error_of(const Gemm& p, const Way& way, int64_t rows, const std::map<std::pair<int64_t, int64_t>, double>& wanted) {
    const bool fused = p.glu != GluActivation::none;
    check(cudaMemcpy(p.k == kFfn ? act_.as<void>() : h_.as<void>(), x_.memory.as<void>(), size_t(rows) * p.k * 2, cudaMemcpyDeviceToDevice));
    check(cudaMemset(partials_.as<void>(), 0xff, partials_.size_bytes()));
    const DeviceBuffer& out = fused ? act_ : y_;
    const bool direct = sums_left(p, way) == 0;
    if (direct) check(cudaMemset(out.as<void>(), 0xff, out.size_bytes()));
    check(cudaDeviceSynchronize());  // copies and poison are another stream's
    own(p, way, kCheckedCopy, rows);
    check(cudaStreamSynchronize(stream_.get()));
    const int64_t columns = fused ? p.n / 2 : p.n, each = rows * columns;
    std::vector<float> y(each);
    if (direct) {
      std::vector<uint16_t> halves(each);
      check(cudaMemcpy(halves.data(), out.as<void>(), each * 2, cudaMemcpyDeviceToHost));
      for (int64_t i = 0; i < each; ++i) y[i] = bf16(halves[i]);
    } else {
      std::vector<float> part(each);
      for (int s = 0; s < splits_of(way); ++s) {
        check(cudaMemcpy(part.data(), partials_.as<float>() + s * each, each * 4, cudaMemcpyDeviceToHost));
        for (int64_t i = 0; i < each; ++i) y[i] += part[i];
      }
    }
    double worst = 0, size = 0;
    for (float v : y) {
      if (std::isnan(v)) return NAN;
    }
    for (const auto& [at, want] : wanted) {
      worst = std::max(worst, std::abs(want - y[at.first * columns + at.second]));
      size += want * want;
    }
    return worst / std::sqrt(size / wanted.size());
  }

  std::vector<Gemm> gemms;

 private:
  CudaStream stream_;
  std::unique_ptr<GpuGemm> library_;
  Matrix x_;
  DeviceBuffer y_, residual_, h_, act_, partials_, ones_, zeros_, kv_, slots_;
};

void measure(Bench& bench, int64_t rows) {
  bench.tune(rows);
  std::vector<Way> chosen;
  for (const Gemm& p : bench.gemms) {
    const GpuLinear linear = p.copy(0);
    const GemmCall call = bench.call(p, linear, rows, true);
    std::vector<Way> ways;
    if (rows <= kStreamGemmRows) {
      ways.assign(p.stream_plans.begin(), p.stream_plans.end());
      chosen.push_back(stream_plan(call));
    } else {
      ways.assign(p.tile_plans.begin(), p.tile_plans.end());
      chosen.push_back(tile_plan(call));
    }
    if (std::find(ways.begin(), ways.end(), chosen.back()) == ways.end()) ways.insert(ways.begin(), chosen.back());
    std::vector<Timed> all = {{"lib", 2 * kLayers, [&] {
      for (int i = 0; i < 2 * kLayers; ++i) bench.library(p, i, rows);
    }}};
    const auto wanted = bench.reference(p, rows);
    for (const Way& way : ways) {
      const double error = bench.error_of(p, way, rows, wanted);
      const bool right = error < (Bench::sums_left(p, way) > 0 ? 1e-4 : 6e-2);
      all.push_back({name_of(way) + (right ? "" : fmt::format(" WRONG {:.2g}", error)), 2 * kLayers, [&bench, &p, way, rows] {
        for (int i = 0; i < 2 * kLayers; ++i) bench.own(p, way, i, rows);
      }});
    }
    bench.time(all);
    fmt::print("{} {}:", rows, p.name);
    for (Timed& timed : all) fmt::print(" | {} {:.1f}", timed.name, timed.median());
    fmt::print("\n");
    std::fflush(stdout);
  }
  std::vector<Layer> layers = {{"chosen", {chosen[0], chosen[1], chosen[2], chosen[3]}}};
  layers.push_back(layers[0]);
  layers[1].name = "with prefetch";
  layers[1].ahead = true;
  for (int changed = 0; changed < 4; ++changed) {
    const Gemm& p = bench.gemms[changed];
    const auto add = [&](const Way& way) {
      if (way == chosen[changed]) return;
      layers.push_back(layers[0]);
      layers.back().name = fmt::format("{} {}", p.name, name_of(way));
      layers.back().of[changed] = way;
    };
    if (rows <= kStreamGemmRows) {
      for (const StreamPlan& way : p.stream_plans) add(way);
    } else {
      for (const TilePlan& way : p.tile_plans) add(way);
    }
  }
  std::vector<Timed> small;
  const auto add_small = [&](std::string name, std::function<void()> one) {
    small.push_back({std::move(name), 2 * kLayers, [one] {
      for (int i = 0; i < 2 * kLayers; ++i) one();
    }});
  };
  for (int splits : {0, 1, 2, 3, 4}) add_small(fmt::format("norm, {} sums", splits), [&bench, rows, splits] { bench.norm(rows, splits); });
  for (int splits : {0, 1, 2, 4}) add_small(fmt::format("rope, {} sums", splits), [&bench, rows, splits] { bench.rope(rows, splits); });
  add_small("glu", [&bench, rows] { bench.glu_rows(rows, {}); });
  bench.time(small);
  fmt::print("{} small kernels:", rows);
  for (Timed& timed : small) fmt::print(" | {} {:.1f}", timed.name, timed.median());
  fmt::print("\n");
  std::vector<Timed> all = {{"library", kLayers, [&] {
    for (int i = 0; i < kLayers; ++i) bench.library_layer(i, rows);
  }}};
  for (const Layer& layer : layers) {
    all.push_back({layer.name, kLayers, [&] {
      for (int i = 0; i < kLayers; ++i) bench.own_layer(layer, i, rows);
    }});
  }
  bench.time(all);
  fmt::print("{} layer:", rows);
  for (Timed& timed : all) fmt::print(" | {} {:.1f}", timed.name, timed.median());
  fmt::print("\n");
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
