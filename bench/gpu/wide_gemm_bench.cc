// GEMMs of many rows: cuBLASLt (the fastest of its candidates) beside wide_gemm, alone and in a layer without its
// attention, long enough that the GPU's power limit holds, and cool.
//
//   wide_gemm_bench check             every tile of every GEMM's kinds of output, at odd shapes
//   wide_gemm_bench time [ROWS ...]   default: 384 512 768 1024 1087 1280 1536 2048 4096 8192
//   wide_gemm_bench layer [ROWS ...]  one GEMM of a layer another way, the others as they are served
//
// The shapes are Llama-3.1-8B's. check: sums of one tile are held to float64 ones, those of all others to its bits. time:
// every tile is run for 2 ms, the fastest then in turns with cuBLASLt, rounds of 20 ms in random order, medians of three:
// TFLOP/s of cuBLASLt, of the fastest tile, its time over cuBLASLt's. gate_up: with the activation, for cuBLASLt a kernel
// of its own. Layers take rounds of 40 ms, "cool" 1.5 ms after a pause: cuBLASLt's, then over its time those of the fastest
// tiles (own) and of what GpuGemm chooses (served).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/float16.h"
#include "cuda_bench.h"
#include "device/cuda/stream.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/wide_gemm.h"

using namespace warpweave;
using namespace warpweave::gpu;
using bench::check;
using bench::Matrix;
using bench::random_matrix;
using bench::take;

namespace {

constexpr int kCopies = 3;
constexpr int64_t kHidden = 4096, kFfn = 14336, kQkv = 6144, kMaxRows = 8192;

std::string name_of(const WidePlan& p) {
  return fmt::format("{}{}", p.tile_columns, p.share == WideShare::weights ? "w" : "x");
}

// ---- check ------------------------------------------------------------------------------------

struct CheckShape {
  int64_t rows, n, k;
};

// Bytes of y after one run into poisoned memory, and a row past its end.
void run_once(const GemmCall& call, const WidePlan& plan, int poison, cudaStream_t stream, std::vector<char>& out) {
  check(cudaMemset(call.y, poison, out.size()));
  wide_gemm(call, plan, stream);
  check(cudaStreamSynchronize(stream));
  check(cudaMemcpy(out.data(), call.y, out.size(), cudaMemcpyDeviceToHost));
}

int check_shape(const CheckShape& s, DType dtype, int kind, cudaStream_t stream) {
  const Matrix x = random_matrix(s.rows * s.k, 1, dtype);
  const Matrix w = random_matrix(s.n * s.k, 1 / std::sqrt(static_cast<float>(s.k)), dtype);
  const bool glu = kind == 3, f32 = kind == 1 || kind == 2;
  GpuLinear linear;
  linear.weight = w.memory.as<void>();
  linear.dtype = dtype;
  linear.in_features = s.k;
  linear.out_features = s.n;
  linear.glu = glu ? GluActivation::silu : GluActivation::none;
  const int64_t columns = glu ? s.n / 2 : s.n, stride = columns + 8;
  const size_t row_bytes = stride * (f32 ? 4 : 2);
  DeviceBuffer y = take(DeviceBuffer::allocate((s.rows + 1) * row_bytes, "a benchmark"));
  GemmCall call;
  call.linear = &linear;
  call.x = x.memory.as<void>();
  call.rows = s.rows;
  call.y = y.as<void>();
  call.y_dtype = f32 ? DType::f32 : dtype;
  call.y_stride = stride;
  call.accumulate = kind == 2;
  call.fused_glu = glu;
  if (!wide_gemm_takes(call)) {
    fmt::print("not taken: {} x {} x {}\n", s.rows, s.n, s.k);
    return 1;
  }
  // Added to: 0x40404040 is 3.0039.
  const int poison = kind == 2 ? 0x40 : 0xff;
  const float before = kind == 2 ? std::bit_cast<float>(0x40404040) : 0;
  std::vector<char> first, bytes((s.rows + 1) * row_bytes);
  int wrong = 0;
  for (const WidePlan& plan : all_wide_plans(call)) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      run_once(call, plan, poison, stream, bytes);
      if (first.empty()) first = bytes;
      if (bytes == first) continue;
      ++wrong;
      size_t at = 0, different = 0;
      for (size_t i = bytes.size(); i-- > 0;) {
        if (bytes[i] != first[i]) at = i, ++different;
      }
      fmt::print("WRONG {}x{}x{} kind {} {} repeat {}: {} bytes, first row {} byte {}\n", s.rows, s.n, s.k, kind, name_of(plan), repeat,
                 different, at / row_bytes, at % row_bytes);
    }
  }
  std::mt19937 random(7);
  double worst = 0, size = 0;
  constexpr int kSamples = 1500;
  for (int i = 0; i < kSamples; ++i) {
    const int64_t row = i < 200 ? s.rows - 1 - i % 2 : random() % s.rows, column = i % 3 == 0 ? columns - 1 - i % 16 : random() % columns;
    const auto sum_of = [&](int64_t w_row) {
      double sum = 0;
      for (int64_t k = 0; k < s.k; ++k) sum += x.at(row * s.k + k) * w.at(w_row * s.k + k);
      return sum;
    };
    double want = sum_of(column) + before;
    if (glu) want = want / (1 + std::exp(-want)) * sum_of(columns + column);
    const char* const at = first.data() + row * row_bytes + column * (f32 ? 4 : 2);
    float got = 0;
    uint16_t bits = 0;
    if (f32) std::memcpy(&got, at, 4);
    else std::memcpy(&bits, at, 2), got = dtype == DType::bf16 ? bf16_to_f32(bits) : f16_to_f32(bits);
    const double error = std::abs(want - got);
    worst = error <= worst ? worst : error;  // NaN stays
    size += want * want;
  }
  const double relative = worst / std::sqrt(size / kSamples), bound = f32 ? 5e-5 : dtype == DType::bf16 ? 3e-2 : 4e-3;
  size_t past = 0;  // between rows, after the last
  for (int64_t row = 0; row <= s.rows; ++row) {
    for (size_t b = row < s.rows ? columns * (f32 ? 4 : 2) : 0; b < row_bytes; ++b) past += first[row * row_bytes + b] != char(poison);
  }
  const bool bad = !(relative < bound) || past > 0 || wrong > 0;
  fmt::print("{} {}x{}x{} {} kind {}: worst error {:.2g} of the outputs' size, {} bytes outside, {} tiles differ\n", bad ? "WRONG" : "ok", s.rows, s.n,
             s.k, dtype == DType::bf16 ? "bf16" : "f16", kind, relative, past, wrong);
  std::fflush(stdout);
  return bad;
}

int check_all() {
  CudaStream stream = take(create_stream());
  int bad = 0;
  const CheckShape shapes[] = {{257, 4096, 512}, {300, 1056, 616}, {1000, 1536, 1024}, {1087, 4096, 4096}, {65, 96, 64}};
  for (const CheckShape& shape : shapes) {
    for (int kind = 0; kind < 4; ++kind) {
      bad += check_shape(shape, DType::bf16, kind, stream.get());
      if (shape.rows < 1000) bad += check_shape(shape, DType::f16, kind, stream.get());
    }
  }
  bad += check_shape({513, 4096, 14336}, DType::bf16, 2, stream.get());
  bad += check_shape({8192, 1024, 256}, DType::bf16, 0, stream.get());
  bad += check_shape({2048, 6144, 192}, DType::bf16, 0, stream.get());
  fmt::print("{} wrong\n", bad);
  return bad != 0;
}

// ---- time -------------------------------------------------------------------------------------

struct Gemm {
  const char* name;
  int64_t n, k;
  bool residual;
  GluActivation glu;
  Matrix weights = {};
  WidePlan best = {};

  GpuLinear copy(int i) const {
    GpuLinear out;
    out.weight = weights.memory.as<uint16_t>() + i % kCopies * n * k;
    out.in_features = k;
    out.out_features = n;
    out.glu = glu;
    return out;
  }
};

struct Variant {
  std::string name;
  std::function<void(int)> run;  // the nth time
  WidePlan plan = {};
  std::vector<double> times_us = {};
  double median() {
    std::sort(times_us.begin(), times_us.end());
    return times_us[times_us.size() / 2];
  }
};

class Bench {
 public:
  Bench() : stream_(take(create_stream())), library_(take(GpuGemm::create())), served_(take(GpuGemm::create())) {
    library_->set_library_only();
    x_ = random_matrix(kMaxRows * kFfn, 1, DType::bf16);
    y_ = take(DeviceBuffer::allocate(kMaxRows * 2 * kFfn * 2, "a benchmark"));
    act_ = take(DeviceBuffer::allocate(kMaxRows * kFfn * 2, "a benchmark"));
    h_ = take(DeviceBuffer::allocate(kMaxRows * kHidden * 2, "a benchmark"));
    residual_ = take(DeviceBuffer::allocate(kMaxRows * kHidden * 4, "a benchmark"));
    ones_ = take(DeviceBuffer::allocate(kHidden * 4, "a benchmark"));
    const std::vector<float> ones(kHidden, 1);
    check(cudaMemcpy(ones_.as<void>(), ones.data(), ones.size() * 4, cudaMemcpyHostToDevice));
    gemms.push_back({"qkv", kQkv, kHidden, false, GluActivation::none});
    gemms.push_back({"o", kHidden, kHidden, true, GluActivation::none});
    gemms.push_back({"gate_up", 2 * kFfn, kHidden, false, GluActivation::silu});
    gemms.push_back({"down", kHidden, kFfn, true, GluActivation::none});
    for (Gemm& p : gemms) p.weights = random_matrix(size_t(p.n) * p.k * kCopies, 1 / 64.0f, DType::bf16);
  }
  void reset() {
    check(cudaMemset(residual_.as<void>(), 0, residual_.size_bytes()));
    check(cudaMemcpy(act_.as<void>(), x_.memory.as<void>(), act_.size_bytes(), cudaMemcpyDeviceToDevice));
    check(cudaMemcpy(h_.as<void>(), x_.memory.as<void>(), h_.size_bytes(), cudaMemcpyDeviceToDevice));
  }
  GemmCall call(const Gemm& p, const GpuLinear& linear, int64_t rows, bool own) const {
    GemmCall out;
    out.linear = &linear;
    out.x = p.k == kFfn ? act_.as<void>() : p.residual ? x_.memory.as<void>() : h_.as<void>();
    out.rows = rows;
    const bool fused = own && p.glu != GluActivation::none;
    out.y = p.residual ? residual_.as<void>() : fused ? act_.as<void>() : y_.as<void>();
    out.y_dtype = p.residual ? DType::f32 : DType::bf16;
    out.y_stride = fused ? p.n / 2 : p.n;
    out.accumulate = p.residual;
    out.fused_glu = fused;
    return out;
  }
  void library(const Gemm& p, int copy, int64_t rows) {
    const GpuLinear linear = p.copy(copy);
    check(library_->run(call(p, linear, rows, false), stream_.get()));
    if (p.glu != GluActivation::none) activate(p, rows);
  }
  void activate(const Gemm& p, int64_t rows) {
    glu({.activation = p.glu, .in = y_.as<void>(), .dtype = DType::bf16, .rows = rows, .cols = kFfn, .out = act_.as<void>()}, stream_.get());
  }
  void own(const Gemm& p, const WidePlan& plan, int copy, int64_t rows) {
    const GpuLinear linear = p.copy(copy);
    wide_gemm(call(p, linear, rows, true), plan, stream_.get());
  }
  void norm(int64_t rows) {
    rms_norm({.x = residual_.as<float>(), .rows = rows, .cols = kHidden, .weight = ones_.as<float>(), .eps = 1e-5f, .out = h_.as<void>(),
              .out_dtype = DType::bf16}, stream_.get());
  }
  // As the decoder has it.
  void served(const Gemm& p, int copy, int64_t rows) {
    const GpuLinear linear = p.copy(copy);
    const GemmCall fused = call(p, linear, rows, true), plain = call(p, linear, rows, false);
    if (!fused.fused_glu || served_->takes_fused(fused)) return check(served_->run(fused, stream_.get()));
    check(served_->run(plain, stream_.get()));
    activate(p, rows);
  }
  void layer(int64_t rows, const std::function<void(const Gemm&)>& gemm) {
    for (const Gemm& p : gemms) {
      if (!p.residual) norm(rows);
      gemm(p);
    }
  }
  void tune(int64_t rows) {
    for (GpuGemm* gemm : {library_.get(), served_.get()}) {
      gemm->start_tuning();
      for (const Gemm& p : gemms) {
        for (int i = 0; i < 40; ++i) {
          const GpuLinear linear = p.copy(i);
          check(gemm->run(call(p, linear, rows, false), stream_.get()));
        }
      }
      gemm->stop_tuning();
    }
  }
  // Microseconds of one run, of about `ms` of them.
  double time(const Variant& v, double ms, double estimate_us) {
    const int count = std::max(2, static_cast<int>(ms * 1e3 / estimate_us));
    CudaEvent begin, end;
    check(cudaEventCreate(begin.out()));
    check(cudaEventCreate(end.out()));
    check(cudaEventRecord(begin.get(), stream_.get()));
    for (int i = 0; i < count; ++i) v.run(i);
    check(cudaEventRecord(end.get(), stream_.get()));
    check(cudaEventSynchronize(end.get()));
    float elapsed_ms = 0;
    check(cudaEventElapsedTime(&elapsed_ms, begin.get(), end.get()));
    return elapsed_ms * 1e3 / count;
  }
  // Rounds of `ms` of each, in random order, after `pause_ms` each.
  void turns(std::vector<Variant>& variants, int rounds, double ms, int pause_ms, double estimate_us) {
    for (Variant& v : variants) v.times_us.clear();
    std::vector<size_t> order(variants.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (int round = 0; round < rounds; ++round) {
      std::shuffle(order.begin(), order.end(), random_);
      for (size_t i : order) {
        if (pause_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
        variants[i].times_us.push_back(time(variants[i], ms, estimate_us));
      }
    }
  }

  std::vector<Gemm> gemms;

 private:
  CudaStream stream_;
  std::unique_ptr<GpuGemm> library_, served_;
  Matrix x_;
  DeviceBuffer y_, residual_, h_, act_, ones_;
  std::mt19937 random_{std::random_device{}()};
};

void measure(Bench& bench, int64_t rows) {
  constexpr size_t kKept = 3;
  bench.reset();
  bench.tune(rows);
  bench.reset();
  std::string line = fmt::format("{:5}", rows);
  for (Gemm& p : bench.gemms) {
    const double flop = 2.0 * rows * p.n * p.k, estimate_us = flop / 700e6;
    const GpuLinear linear = p.copy(0);
    const GemmCall call = bench.call(p, linear, rows, true);
    std::vector<Variant> variants;
    for (const WidePlan& plan : all_wide_plans(call)) {
      variants.push_back({name_of(plan), [&bench, &p, plan, rows](int i) { bench.own(p, plan, i, rows); }, plan});
    }
    bench.turns(variants, 2, 1, 0, estimate_us);
    std::sort(variants.begin(), variants.end(), [](Variant& a, Variant& b) { return a.times_us[0] + a.times_us[1] < b.times_us[0] + b.times_us[1]; });
    fmt::print(stderr, "{} {} tried:", rows, p.name);
    for (Variant& v : variants) fmt::print(stderr, " {} {:.1f}", v.name, std::min(v.times_us[0], v.times_us[1]));
    const WidePlan planned = wide_plan(call);
    // The planned one and the fastest others.
    std::stable_partition(variants.begin(), variants.end(), [&](const Variant& v) { return v.plan == planned; });
    if (variants.size() > kKept) variants.resize(kKept);
    variants.push_back({"lib", [&bench, &p, rows](int i) { bench.library(p, i, rows); }});
    bench.turns(variants, 3, 20, 0, estimate_us);
    const double library_us = variants.back().median();
    variants.pop_back();
    std::sort(variants.begin(), variants.end(), [](Variant& a, Variant& b) { return a.median() < b.median(); });
    p.best = variants[0].plan;
    const double own_us = variants[0].median();
    fmt::print(stderr, "\n{} {}: lib {:.1f} us {:.0f} TF;", rows, p.name, library_us, flop / library_us / 1e6);
    for (Variant& v : variants) fmt::print(stderr, " {} {:.1f} {:.0f}", v.name, v.median(), flop / v.median() / 1e6);
    fmt::print(stderr, " (planned {})\n", name_of(planned));
    line += fmt::format(" | {} {:.0f}>{:.0f} {:.3f} {}", p.name, flop / library_us / 1e6, flop / own_us / 1e6, own_us / library_us, variants[0].name);
  }
  const auto layer = [&](const char* name, const std::function<void(const Gemm&, int)>& gemm) {
    return Variant{name, [&bench, rows, gemm](int i) { bench.layer(rows, [&](const Gemm& p) { gemm(p, i); }); }};
  };
  std::vector<Variant> layers = {layer("library", [&](const Gemm& p, int i) { bench.library(p, i, rows); }),
                                 layer("own", [&](const Gemm& p, int i) { bench.own(p, p.best, i, rows); }),
                                 layer("served", [&](const Gemm& p, int i) { bench.served(p, i, rows); })};
  const double estimate_us = 2.0 * rows * 218e6 / 700e6;
  fmt::print("{}\n      layer", line);
  for (const bool cool : {false, true}) {
    bench.turns(layers, 3, cool ? 1.5 : 40, cool ? 15 : 0, estimate_us);
    const double library_us = layers[0].median();
    fmt::print("{} {:.1f} us", cool ? "; cool" : "", library_us);
    for (size_t i = 1; i < layers.size(); ++i) fmt::print(", {} {:.3f}", layers[i].name, layers[i].median() / library_us);
  }
  fmt::print("\n");
  std::fflush(stdout);
}

// Each GEMM's ways within a layer at the power limit, as times over the layer's as it is served; the fastest first.
void measure_in_layer(Bench& bench, int64_t rows) {
  constexpr int kRounds = 5, kPrinted = 4;
  bench.reset();
  bench.tune(rows);
  bench.reset();
  using Way = std::function<void(const Gemm&, int)>;
  const auto layer = [&](std::string name, const Gemm* other, Way way) {
    return Variant{std::move(name), [&bench, rows, other, way = std::move(way)](int i) {
      bench.layer(rows, [&](const Gemm& p) { &p == other ? way(p, i) : bench.served(p, i, rows); });
    }};
  };
  std::vector<Variant> layers = {layer("served", nullptr, {})};
  for (const Gemm& p : bench.gemms) {
    const GpuLinear linear = p.copy(0);
    layers.push_back(layer(fmt::format("{} lib", p.name), &p, [&bench, rows](const Gemm& of, int i) { bench.library(of, i, rows); }));
    for (const WidePlan& plan : all_wide_plans(bench.call(p, linear, rows, true))) {
      layers.push_back(layer(fmt::format("{} {}", p.name, name_of(plan)), &p,
                             [&bench, rows, plan](const Gemm& of, int i) { bench.own(of, plan, i, rows); }));
    }
  }
  bench.turns(layers, kRounds, 20, 0, 2.0 * rows * 218e6 / 700e6);
  const double served_us = layers[0].median();
  fmt::print("{:5} served {:.1f} us", rows, served_us);
  for (const Gemm& p : bench.gemms) {
    std::vector<Variant*> ways;
    for (Variant& v : layers) {
      if (v.name.starts_with(std::string(p.name) + " ")) ways.push_back(&v);
    }
    std::sort(ways.begin(), ways.end(), [](Variant* a, Variant* b) { return a->median() < b->median(); });
    fmt::print("\n      {}:", p.name);
    for (int i = 0; i < kPrinted; ++i) fmt::print(" {} {:.3f}", ways[i]->name.substr(ways[i]->name.find(' ') + 1), ways[i]->median() / served_us);
    const GpuLinear linear = p.copy(0);
    const GemmCall call = bench.call(p, linear, rows, true);
    fmt::print("; served {}", wide_gemm_pays(call) ? name_of(wide_plan(call)) : "lib");
  }
  fmt::print("\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "check";
  if (mode == "check") return check_all();
  std::vector<int64_t> row_counts;
  for (int i = 2; i < argc; ++i) row_counts.push_back(std::clamp<int64_t>(std::atoi(argv[i]), 1, kMaxRows));
  if (row_counts.empty()) row_counts = {384, 512, 768, 1024, 1087, 1280, 1536, 2048, 4096, 8192};
  Bench bench;
  for (int64_t rows : row_counts) mode == "layer" ? measure_in_layer(bench, rows) : measure(bench, rows);
  return 0;
}
