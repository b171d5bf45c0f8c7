// GEMMs of 16-bit and of 8-bit weights on a GPU, at the shapes of Llama-3.1-8B's layers and head:
//
//   fp8_gemm_bench [ROWS,ROWS,...]
//
// One line a shape and row count: microseconds of bf16 (the library's choice after tuning), and of e4m3
// weights each way they can go (ops/cuda/gemm.h), with scales of rows and of blocks; as partial sums, and gate and up
// with the activation, where a kernel of our own does so. Weights rotate
// through more memory than the cache holds; the median of graph replays.
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/float16.h"
#include "base/float8.h"
#include "cuda_bench.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/stream.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/stream_gemm.h"

using namespace warpweave;
using gpu::Fp8Path;
using gpu::Fp8Scaling;
using bench::check;

namespace {

constexpr size_t kPoolBytes = size_t{768} << 20;

struct LayerGemm {
  const char* name;
  int64_t n, k;
};
constexpr LayerGemm kLayerGemms[] = {{"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate_up", 28672, 4096}, {"down", 4096, 14336}};
constexpr LayerGemm kHead = {"head", 128256, 4096};  // whole, in f32
constexpr int64_t kMostHeadRows = 128;

constexpr int64_t kDeepest = 14336, kWidest = 28672;

struct Way {
  const char* name;
  DType dtype;
  Fp8Scaling scaling;
  Fp8Path path;
  bool fast;
};
constexpr Way kWays[] = {{"bf16", DType::bf16, Fp8Scaling::row, Fp8Path::automatic, false},
                         {"row/small", DType::fp8_e4m3, Fp8Scaling::row, Fp8Path::small, false},
                         {"row/stream", DType::fp8_e4m3, Fp8Scaling::row, Fp8Path::stream, false},
                         {"row/tensor", DType::fp8_e4m3, Fp8Scaling::row, Fp8Path::tensor, false},
                         {"row/tensor-fast", DType::fp8_e4m3, Fp8Scaling::row, Fp8Path::tensor, true},
                         {"row/widen", DType::fp8_e4m3, Fp8Scaling::row, Fp8Path::widen, false},
                         {"block/small", DType::fp8_e4m3, Fp8Scaling::block, Fp8Path::small, false},
                         {"block/tensor", DType::fp8_e4m3, Fp8Scaling::block, Fp8Path::tensor, false}};

// kPoolBytes of random elements made by `make`.
template <typename T, typename Make>
DeviceBuffer random_pool(Make make) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1);
  T drawn[4096];
  for (T& x : drawn) x = make(normal(random));
  std::vector<T> some((size_t{8} << 20) / sizeof(T));
  for (T& x : some) x = drawn[random() >> 20];
  DeviceBuffer out = DeviceBuffer::allocate(kPoolBytes, "weights").value();
  for (size_t at = 0; at < kPoolBytes; at += some.size() * sizeof(T)) {
    check(cudaMemcpy(out.as<char>() + at, some.data(), some.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  return out;
}

class Bench {
 public:
  explicit Bench(int64_t max_rows)
      : wide_(random_pool<uint16_t>([](float x) { return f32_to_bf16(0.02f * x); })),
        codes_(random_pool<uint8_t>([](float x) { return f32_to_e4m3(100 * x); })),
        x_(random_pool<uint16_t>([](float x) { return f32_to_bf16(x); })) {
    const std::vector<float> ones(1 << 20, 2e-4f);
    scales_ = DeviceBuffer::allocate(ones.size() * 4, "scales").value();
    check(cudaMemcpy(scales_.as<void>(), ones.data(), ones.size() * 4, cudaMemcpyHostToDevice));
    y_ = DeviceBuffer::allocate(std::max(max_rows * kWidest * 2, kMostHeadRows * kHead.n * 4), "outputs").value();
    partials_ = DeviceBuffer::allocate(gpu::kMostPartialRows * gpu::kMostPartials * kWidest * 4, "sums").value();
    stream_ = create_stream().value();
    for (const Way& way : kWays) {
      auto gemm = gpu::GpuGemm::create();
      check(gemm.status());
      check((*gemm)->reserve_fp8(max_rows, kDeepest));
      (*gemm)->set_fp8_path(way.path);
      (*gemm)->set_fp8_fast_accumulation(way.fast);
      gemms_.push_back(std::move(*gemm));
    }
  }

  // Microseconds of one GEMM.
  double time_us(const LayerGemm& shape, int64_t rows, size_t way_index) {
    const Way& way = kWays[way_index];
    gpu::GpuGemm& gemm = *gemms_[way_index];
    const size_t bytes = shape.n * shape.k * dtype_info(way.dtype).block_bytes;
    const int copies = static_cast<int>(std::max<size_t>(1, kPoolBytes / bytes));
    const DeviceBuffer& pool = way.dtype == DType::bf16 ? wide_ : codes_;
    const auto run = [&](int copy) {
      const gpu::GpuLinear linear = {.weight = pool.as<char>() + copy * bytes, .dtype = way.dtype,
                                     .in_features = shape.k, .out_features = shape.n,
                                     .glu = shape.n == kWidest ? GluActivation::silu : GluActivation::none,
                                     .scales = scales_.as<float>(), .scaling = way.scaling};
      check(gemm.run(served(gemm, {.linear = &linear, .x = x_.as<void>(), .rows = rows, .y = y_.as<void>(),
                                   .y_dtype = shape.n == kHead.n ? DType::f32 : DType::bf16, .y_stride = shape.n}),
                     stream_.get()));
    };
    gemm.start_tuning();
    for (int i = 0; i < 3 * 16; ++i) run(i % copies);
    gemm.stop_tuning();
    const int launches = std::max(copies, 4);
    return bench::time_us(stream_.get(), launches, [&] {
      for (int i = 0; i < launches; ++i) run(i % copies);
    });
  }

 private:
  // As a layer asks for it.
  gpu::GemmCall served(const gpu::GpuGemm& gemm, gpu::GemmCall call) const {
    if (call.linear->out_features == kHead.n) return call;
    if (call.linear->glu == GluActivation::none) {
      if (gemm.partial_splits(call) > 0) call.partials = partials_.as<float>();
      return call;
    }
    gpu::GemmCall fused = call;
    fused.y_stride /= 2;
    fused.fused_glu = true;
    return gemm.takes_fused(fused) ? fused : call;
  }

  DeviceBuffer wide_, codes_, x_, scales_, y_, partials_;
  CudaStream stream_;
  std::vector<std::unique_ptr<gpu::GpuGemm>> gemms_;  // by way
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> all_rows = {1, 8, 16, 64, 256, 4096};
  if (argc > 1) {
    all_rows.clear();
    for (const char *at = argv[1], *end = at + std::strlen(at); at < end;) {
      int64_t rows = 0;
      const auto [rest, error] = std::from_chars(at, end, rows);
      if (error != std::errc() || rows < 1 || rows > 16384) {
        fmt::print(stderr, "'{}' is not a list of row counts up to 16384\n", argv[1]);
        return 1;
      }
      all_rows.push_back(rows);
      at = rest == end ? end : rest + 1;
    }
  }
  if (const auto info = probe_cuda_device(); !info.ok() || !gpu::keeps_fp8()) {
    fmt::print(stderr, "needs a GPU of compute capability 9.0\n");
    return 1;
  }
  Bench bench(*std::max_element(all_rows.begin(), all_rows.end()));
  for (int64_t rows : all_rows) {
    std::vector<double> layer(std::size(kWays), 0);
    std::vector<LayerGemm> shapes(std::begin(kLayerGemms), std::end(kLayerGemms));
    if (rows <= kMostHeadRows) shapes.push_back(kHead);
    for (const LayerGemm& shape : shapes) {
      fmt::print("rows {:5} {:8}", rows, shape.name);
      for (size_t i = 0; i < std::size(kWays); ++i) {
        const bool few = rows <= gpu::kSmallGemmFp8Rows;
        if (kWays[i].path == Fp8Path::small && !few) continue;
        if (kWays[i].path == Fp8Path::stream && (few || rows > gpu::kStreamGemmCodeRows)) continue;
        const double us = bench.time_us(shape, rows, i);
        if (shape.n != kHead.n) layer[i] += us;
        const double weight_bytes = static_cast<double>(shape.n * shape.k * dtype_info(kWays[i].dtype).block_bytes);
        const double flop = 2.0 * static_cast<double>(rows * shape.n * shape.k);
        fmt::print("  {} {:.1f} us {:.2f} TB/s {:.0f} TFLOP/s", kWays[i].name, us, weight_bytes / us * 1e-6,
                   flop / us * 1e-6);
        std::fflush(stdout);
      }
      fmt::print("\n");
    }
    fmt::print("rows {:5} layer   ", rows);
    for (size_t i = 0; i < std::size(kWays); ++i) {
      if (layer[i] > 0) fmt::print("  {} {:.1f} us ({:.2f} x)", kWays[i].name, layer[i], layer[0] / layer[i]);
    }
    fmt::print("\n");
  }
  return 0;
}
