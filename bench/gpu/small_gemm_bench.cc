// GEMMs of few rows on a GPU: cuBLASLt (its fastest algorithm) beside our kernel, in GB/s of weights.
//
//   small_gemm_bench [ROWS ...]      default: 1 2 8 16 24 32 64 128
//
// The shapes are Llama-3.1-8B's. Every figure is a graph of launches that begin under each other where they can,
// over enough copies of the weights to miss the L2 cache; the median of nine. "layer" is the four GEMMs of
// a layer with the activation, each with the kernel that was fastest alone, and fused with the activation.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "cuda_bench.h"
#include "device/cuda/stream.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/small_gemm.h"

using namespace warpweave;
using namespace warpweave::gpu;
using bench::check;
using bench::take;

namespace {

constexpr size_t kUncachedBytes = size_t{600} << 20;
constexpr int kLeastLaunches = 12;
constexpr int kMaxRows = 128;
constexpr int kKernels = 2;
constexpr const char* kKernelNames[kKernels] = {"library", "small"};

// Normal bf16 numbers: a random block, again and again.
DeviceBuffer random_matrix(size_t size_bytes, float scale) {
  static const std::vector<uint16_t> block = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> out(size_t{1} << 20);
    for (uint16_t& x : out) x = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
    return out;
  }();
  std::vector<uint16_t> scaled(block);
  for (uint16_t& x : scaled) {
    x = static_cast<uint16_t>(std::bit_cast<uint32_t>(std::bit_cast<float>(uint32_t{x} << 16) * scale) >> 16);
  }
  DeviceBuffer out = take(DeviceBuffer::allocate(size_bytes, "a benchmark"));
  for (size_t at = 0; at < size_bytes; at += scaled.size() * 2) {
    check(cudaMemcpy(out.as<char>() + at, scaled.data(), std::min(scaled.size() * 2, size_bytes - at),
                     cudaMemcpyHostToDevice));
  }
  return out;
}

struct Gemm {
  const char* name;
  int64_t n, k;
  bool residual;       // adds to the f32 stream
  GluActivation glu;
  DeviceBuffer weights;
  std::vector<GpuLinear> copies;

  void fill() {
    const size_t bytes = size_t(n) * k * 2;
    const size_t count = std::max<size_t>(1, (kUncachedBytes + bytes - 1) / bytes);
    weights = random_matrix(bytes * count, 1 / 64.0f);
    for (size_t i = 0; i < count; ++i) {
      GpuLinear& linear = copies.emplace_back();
      linear.weight = weights.as<char>() + i * bytes;
      linear.in_features = k;
      linear.out_features = n;
      linear.glu = glu;
    }
  }
};

class Bench {
 public:
  Bench() : stream_(take(create_stream())), library_(take(GpuGemm::create())) {
    library_->set_library_only();
    x_ = random_matrix(size_t{kMaxRows} * 14336 * 2, 1);
    y_ = random_matrix(size_t{kMaxRows} * 128256 * 4, 0);
    act_ = random_matrix(size_t{kMaxRows} * 14336 * 2, 1);
    stream_rows_ = random_matrix(size_t{kMaxRows} * 4096 * 4, 1);
    weight_ = random_matrix(4096 * 4, 1);
  }

  GemmCall call(const Gemm& gemm, size_t copy, int64_t rows, bool fused) const {
    GemmCall out;
    out.linear = &gemm.copies[copy % gemm.copies.size()];
    out.x = x_.as<void>();
    out.rows = rows;
    out.y = fused ? act_.as<void>() : y_.as<void>();
    out.y_dtype = gemm.residual || gemm.n > 100000 ? DType::f32 : DType::bf16;
    out.y_stride = fused ? gemm.n / 2 : gemm.n;
    out.accumulate = gemm.residual;
    out.fused_glu = fused;
    return out;
  }
  static bool takes(int kernel, const GemmCall& call) {
    return kernel == 0 ? !call.fused_glu : small_gemm_takes(call);
  }
  void run(int kernel, const GemmCall& call) {
    if (kernel == 0) return check(library_->run(call, stream_.get()));
    small_gemm(call, stream_.get());
  }
  void activation(int64_t rows) {
    glu({.activation = GluActivation::silu, .in = y_.as<void>(), .dtype = DType::bf16, .rows = rows, .cols = 14336,
         .out = act_.as<void>()},
        stream_.get());
  }
  GemmCall normed(GemmCall call) const {
    call.norm = {stream_rows_.as<float>(), weight_.as<float>(), 0, 1e-5f};
    return call;
  }
  void norm(int64_t rows) {
    rms_norm({.x = stream_rows_.as<float>(), .rows = rows, .cols = 4096, .weight = weight_.as<float>(), .eps = 1e-5f,
              .out = x_.as<void>(), .out_dtype = DType::bf16},
             stream_.get());
  }
  void tune(const Gemm& gemm, int64_t rows) {
    library_->start_tuning();
    for (int i = 0; i < 48; ++i) run(0, call(gemm, i, rows, false));
    library_->stop_tuning();
  }
  // Microseconds of one of `launches` that `enqueue` makes.
  double time_us(int launches, const std::function<void()>& enqueue) {
    return bench::time_us(stream_.get(), launches, enqueue);
  }

 private:
  CudaStream stream_;
  std::unique_ptr<GpuGemm> library_;
  DeviceBuffer x_, y_, act_, stream_rows_, weight_;  // the last two: f32 bits of any numbers
};

// The fastest kernel's place.
int measure(Bench& bench, const Gemm& gemm, int64_t rows) {
  bench.tune(gemm, rows);
  std::string line = fmt::format("{:4} rows {:8}", rows, gemm.name);
  int best = 0;
  double best_us = 1e30;
  for (int kernel = 0; kernel < kKernels; ++kernel) {
    for (bool fused : {false, true}) {
      if (fused && gemm.glu == GluActivation::none) continue;
      if (!Bench::takes(kernel, bench.call(gemm, 0, rows, fused))) continue;
      const int launches = std::max<int>(kLeastLaunches, static_cast<int>(gemm.copies.size()));
      const double us = bench.time_us(launches, [&] {
        for (int i = 0; i < launches; ++i) bench.run(kernel, bench.call(gemm, i, rows, fused));
      });
      line += fmt::format(" | {}{} {:.1f} us {:.0f}", kKernelNames[kernel], fused ? "+glu" : "", us,
                          static_cast<double>(gemm.n) * gemm.k * 2 / us / 1e3);
      if (!fused && us < best_us) {
        best_us = us;
        best = kernel;
      }
    }
  }
  fmt::print("{} GB/s\n", line);
  std::fflush(stdout);
  return best;
}

void measure_layer(Bench& bench, const std::vector<Gemm>& gemms, const std::vector<int>& best, int64_t rows) {
  constexpr int kLayers = 3;
  const auto layers = [&](const std::vector<int>& kernels, bool fuse) {
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int i = 0; i < 4; ++i) {
        const bool glu = gemms[i].glu != GluActivation::none;
        const GemmCall call = bench.call(gemms[i], layer, rows, glu && fuse);
        bench.run(kernels[i], call);
        if (glu && !fuse) bench.activation(rows);
      }
    }
  };
  const std::vector<int> library(4, 0);
  std::string line = fmt::format("{:4} rows layer    | library {:.1f} us | fastest {:.1f} us", rows,
                                 bench.time_us(kLayers, [&] { layers(library, false); }),
                                 bench.time_us(kLayers, [&] { layers(best, false); }));
  if (Bench::takes(best[2], bench.call(gemms[2], 0, rows, true))) {
    line += fmt::format(" | fused {:.1f} us", bench.time_us(kLayers, [&] { layers(best, true); }));
  }
  fmt::print("{}\n", line);
}

// A norm and the GEMM behind it, as two kernels and as one.
void measure_norm(Bench& bench, const Gemm& gemm, int64_t rows) {
  const bool fused = gemm.glu != GluActivation::none;
  const GemmCall one = bench.normed(bench.call(gemm, 0, rows, fused));
  if (!small_gemm_takes(one)) return;
  const int launches = std::max<int>(kLeastLaunches, static_cast<int>(gemm.copies.size()));
  const double two_us = bench.time_us(launches, [&] {
    for (int i = 0; i < launches; ++i) {
      bench.norm(rows);
      bench.run(1, bench.call(gemm, i, rows, fused));
    }
  });
  const double one_us = bench.time_us(launches, [&] {
    for (int i = 0; i < launches; ++i) bench.run(1, bench.normed(bench.call(gemm, i, rows, fused)));
  });
  fmt::print("{:4} rows {:8} | norm, then small {:.1f} us | norm within {:.1f} us\n", rows, gemm.name, two_us, one_us);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> row_counts;
  for (int i = 1; i < argc; ++i) row_counts.push_back(std::clamp(std::atoi(argv[i]), 1, kMaxRows));
  if (row_counts.empty()) row_counts = {1, 2, 8, 16, 24, 32, 64, 128};
  Bench bench;
  std::vector<Gemm> gemms(5);
  gemms[0] = {"qkv", 6144, 4096, false, GluActivation::none, {}, {}};
  gemms[1] = {"o", 4096, 4096, true, GluActivation::none, {}, {}};
  gemms[2] = {"gate_up", 28672, 4096, false, GluActivation::silu, {}, {}};
  gemms[3] = {"down", 4096, 14336, true, GluActivation::none, {}, {}};
  gemms[4] = {"lm_head", 128256, 4096, false, GluActivation::none, {}, {}};
  for (Gemm& gemm : gemms) gemm.fill();
  for (int64_t rows : row_counts) {
    std::vector<int> best;
    for (const Gemm& gemm : gemms) best.push_back(measure(bench, gemm, rows));
    measure_layer(bench, gemms, best, rows);
    for (const Gemm& gemm : gemms) {
      if (gemm.k == 4096 && !gemm.residual) measure_norm(bench, gemm, rows);
    }
  }
  return 0;
}
