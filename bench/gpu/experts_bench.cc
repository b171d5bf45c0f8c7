// The experts' part of a layer on a GPU beside its floors: bytes of the weights that were chosen at 4.5 TB/s, products at
// 0.85 of what a dense product reaches in the same run.
//
//   experts_bench [parts] [random N [SEED]]    default: fixed shapes; parts: the time of each kernel
//
// Routing is uniform, drawn anew for each of the timed launches. One line a shape; `random` ends with the geometric mean of
// time / max(floors).
#include <cstring>
#include <map>
#include <string>

#include "bench/gpu/cuda_bench.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/testing/expert_memory.h"

using namespace warpweave;
using namespace warpweave::gpu;

namespace {

constexpr double kBytesPerUs = 4.5e6;
constexpr int kDraws = 8;

struct Draws {
  std::vector<float*> logits;
  double active = 0;            // experts of a draw, mean
};

Draws draw(ExpertMemory& memory, const ExpertShape& shape, std::mt19937& random) {
  Draws out;
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> logits(shape.rows * shape.experts);
  for (int i = 0; i < kDraws; ++i) {
    for (float& x : logits) x = normal(random);
    out.logits.push_back(memory.get<float>(static_cast<int64_t>(logits.size())));
    must(cudaMemcpy(out.logits.back(), logits.data(), logits.size() * 4, cudaMemcpyHostToDevice));
    plan_experts({.logits = out.logits.back(), .rows = shape.rows, .rule = {.num_experts = shape.experts, .k = shape.k}, .plan = memory.plan}, nullptr);
    std::vector<int32_t> offsets(shape.experts + 1);
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(offsets.data(), memory.plan.offsets, offsets.size() * 4, cudaMemcpyDeviceToHost));
    for (int e = 0; e < shape.experts; ++e) out.active += offsets[e + 1] > offsets[e];
  }
  out.active /= kDraws;
  return out;
}

struct Layer {
  ExpertShape shape;
  ExpertMemory& memory;
  float* norm;
  void* router;
  cudaStream_t stream;
  bool shared;                  // rows share places

  int tile_places() const { return expert_gemm_tile_places(shape.rows * shape.k, shape.experts, shape.dtype); }
  RouterRule rule() const { return {.num_experts = shape.experts, .k = shape.k}; }

  // Parts by bits: 1 routing, 2 gather, 4 gate and up, 8 down, 16 sum.
  void run(float* logits, int parts) const {
    const auto multiply = [&](const ExpertWeights& weights, const void* x, void* y, ExpertProductCall call) {
      call.weights = weights;
      call.x = x;
      call.y = y;
      call.y_dtype = shape.dtype;
      call.plan = memory.plan;
      expert_gemm(call, stream);
    };
    const CombineExpertsCall sum = {.results = memory.rows, .dtype = shape.dtype, .plan = memory.plan, .rows = shape.rows, .k = shape.k,
                                    .hidden = shape.hidden, .y = memory.x};
    if (shared) {
      // The router's logits are those of x, of which every draw has its own.
      const NormRouteCall route = {.x = logits, .rows = shape.rows, .hidden = shape.hidden, .norm_weight = norm, .router = router,
                                   .router_dtype = shape.dtype, .rule = rule(), .h = memory.h, .dtype = shape.dtype,
                                   .logits = memory.logits, .plan = memory.plan};
      const int64_t places = kSharedRows * std::min<int64_t>(shape.rows * shape.k, shape.experts);
      if (parts & 1) norm_route(route, stream);
      if (parts & 4) multiply(memory.gate_up, memory.h, memory.act, {.places = places, .shared_rows = true});
      if (parts & 8) multiply(memory.down, memory.act, memory.rows, {.places = places, .plan_settled = true});
      if (parts & 16) combine_experts(sum, stream);
      return;
    }
    const int64_t pairs = shape.rows * shape.k;
    if (parts & 1) {
      plan_experts({.logits = logits, .rows = shape.rows, .rule = rule(), .tile_places = tile_places(), .plan = memory.plan}, stream);
    }
    if (parts & 2) gather_places(memory.h, memory.plan, shape.k, pairs, shape.hidden * 2, memory.rows, stream);
    if (parts & 4) multiply(memory.gate_up, memory.rows, memory.act, {.places = pairs, .tile_places = tile_places()});
    if (parts & 8) multiply(memory.down, memory.act, memory.rows, {.places = pairs, .tile_places = tile_places(), .plan_settled = true});
    if (parts & 16) combine_experts(sum, stream);
  }
};

double dense_tflops(cudaStream_t stream) {
  constexpr int64_t kN = 8192;
  const bench::Matrix x = bench::random_matrix(kN * kN, 1), w = bench::random_matrix(kN * kN, 0.01f);
  const DeviceBuffer y = bench::take(DeviceBuffer::allocate(kN * kN * 2, "a benchmark"));
  const GpuLinear linear = {.weight = w.memory.as<void>(), .in_features = kN, .out_features = kN};
  const auto gemm = bench::take(GpuGemm::create());
  const GemmCall call = {.linear = &linear, .x = x.memory.as<void>(), .rows = kN, .y = y.as<void>(), .y_stride = kN};
  const double us = bench::time_us(stream, 10, [&] { for (int i = 0; i < 10; ++i) bench::check(gemm->run(call, stream)); });
  return 2.0 * kN * kN * kN / us * 1e-6;
}

// Time over the larger floor.
double measure(const ExpertShape& shape, double tflops, bool parts, std::mt19937& random, cudaStream_t stream) {
  ExpertMemory memory(shape);
  Draws draws = draw(memory, shape, random);
  Layer layer = {shape, memory, nullptr, nullptr, stream, shape.rows <= kSharedRows};
  layer.norm = memory.get<float>(shape.hidden);
  must(cudaMemcpy(layer.norm, std::vector<float>(shape.hidden, 1.0f).data(), shape.hidden * 4, cudaMemcpyHostToDevice));
  const bench::Matrix router = bench::random_matrix(shape.experts * shape.hidden, 0.02f), h = bench::random_matrix(shape.rows * shape.hidden, 1);
  layer.router = router.memory.as<void>();
  must(cudaMemcpy(memory.h, h.memory.as<void>(), shape.rows * shape.hidden * 2, cudaMemcpyDeviceToDevice));
  if (layer.shared) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> x(shape.rows * shape.hidden);
    for (float*& of : draws.logits) {
      for (float& value : x) value = normal(random);
      of = memory.get<float>(static_cast<int64_t>(x.size()));
      must(cudaMemcpy(of, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
    }
  }
  must(cudaMemset(memory.x, 0, shape.rows * shape.hidden * 4));
  const auto time = [&](int of) {
    return bench::time_us(stream, kDraws, [&] { for (float* logits : draws.logits) layer.run(logits, of); });
  };
  const double pairs = static_cast<double>(shape.rows) * shape.k;
  const double weight_bytes = 2.0 * 3 * shape.hidden * shape.ffn * draws.active;
  const double row_bytes = (shape.rows * shape.hidden * (4.0 + 4) + shape.experts * shape.hidden * 2.0);
  const double byte_us = (weight_bytes + row_bytes) / kBytesPerUs, flop_us = 6 * pairs * shape.hidden * shape.ffn / (0.85 * tflops * 1e6);
  const double us = time(31), floor = std::max(byte_us, flop_us);
  fmt::print("experts {:3} k {:2} hidden {:5} ffn {:5} rows {:5}: {:9.1f} us, floors {:9.1f} bytes {:9.1f} flops, {:5.2f} x, {:4.0f} GB/s, {:4.0f} TFLOP/s\n",
             shape.experts, shape.k, shape.hidden, shape.ffn, shape.rows, us, byte_us, flop_us, us / floor, weight_bytes / us * 1e-3,
             6 * pairs * shape.hidden * shape.ffn / us * 1e-6);
  if (parts) {
    time(31);
    fmt::print("    routing {:.1f}, gather {:.1f}, gate_up {:.1f}, down {:.1f}, sum {:.1f}\n", time(1), layer.shared ? 0 : time(2), time(4),
               time(8), time(16));
  }
  std::fflush(stdout);
  return us / floor;
}

ExpertShape random_shape(std::mt19937& random) {
  const auto pick = [&](double least, double most) {
    return std::exp2(std::uniform_real_distribution<double>(std::log2(least), std::log2(most))(random));
  };
  while (true) {
    ExpertShape shape;
    shape.experts = static_cast<int>(pick(8, 513));
    shape.k = std::min(static_cast<int>(pick(1, 17)), shape.experts);
    shape.hidden = static_cast<int64_t>(pick(256, 8192) / 64) * 64;
    shape.ffn = static_cast<int64_t>(pick(256, 14337) / 32) * 32;
    shape.rows = static_cast<int64_t>(pick(1, 16385));
    const double gb = (6.0 * shape.experts * shape.hidden * shape.ffn + 2.0 * shape.rows * shape.k * (shape.hidden + shape.ffn)) * 1e-9;
    if (gb < 24) return shape;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool parts = argc > 1 && std::strcmp(argv[1], "parts") == 0;
  const int at = parts ? 2 : 1;
  CudaStream stream;
  bench::check(cudaStreamCreate(stream.out()));
  const double tflops = dense_tflops(stream.get());
  fmt::print("dense product 8192^3: {:.0f} TFLOP/s\n", tflops);
  if (argc > at && std::strcmp(argv[at], "random") == 0) {
    const int count = argc > at + 1 ? std::atoi(argv[at + 1]) : 100;
    std::mt19937 random(argc > at + 2 ? static_cast<unsigned>(std::atoi(argv[at + 2])) : std::random_device{}());
    double product = 0, worst = 0;
    for (int i = 0; i < count; ++i) {
      const double ratio = measure(random_shape(random), tflops, parts, random, stream.get());
      product += std::log(ratio);
      worst = std::max(worst, ratio);
    }
    fmt::print("geometric mean of {} shapes: {:.3f} x the floor, worst {:.2f} x\n", count, std::exp(product / count), worst);
    return 0;
  }
  std::mt19937 random(3);
  for (const int64_t rows : {1, 4, 8, 9, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192, 16384}) {
    measure({.experts = 128, .k = 8, .hidden = 2048, .ffn = 768, .rows = rows}, tflops, parts, random, stream.get());
  }
  for (const int64_t rows : {1, 8, 64, 8192}) {
    measure({.experts = 32, .k = 4, .hidden = 2880, .ffn = 2880, .rows = rows}, tflops, parts, random, stream.get());
    measure({.experts = 8, .k = 2, .hidden = 4096, .ffn = 14336, .rows = rows}, tflops, parts, random, stream.get());
    measure({.experts = 512, .k = 10, .hidden = 2048, .ffn = 512, .rows = rows}, tflops, parts, random, stream.get());
  }
  return 0;
}
