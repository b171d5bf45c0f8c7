// The experts' part of a layer on a GPU beside its floors: bytes of the weights that were chosen at the speed at which
// this GPU reads memory, GEMMs at 0.85 of what a dense GEMM reaches, both measured at the start.
//
//   experts_bench [fp8] [parts] [dense] [tiles] [random N [SEED] | shape EXPERTS K HIDDEN FFN ROWS...]
//
// parts: the time of each kernel; random then ends with the means of classes of shapes, and the kWorst furthest from their
// floors. tiles: the GEMMs of more than kSharedRows rows with tiles of other sizes. dense: from 1024 rows on, beside the layer, dense GEMMs of as many rows as its
// experts' GEMMs have in all, of the same widths and format. Without random or shape: fixed shapes. SEED: else chosen anew.
//
// Routing is uniform, drawn anew for each of the timed launches. One line a shape; `random` ends with the geometric mean of
// time / max(floors), of all shapes and of those whose floor is kLaunchesHiddenUs or more: a layer is four to seven kernels that
// wait for each other, of which the floors know nothing. fp8: weights in e4m3 with scales of blocks.
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <string>

#include "bench/gpu/cuda_bench.h"
#include "bench/gpu/read_rate.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/testing/expert_memory.h"

using namespace warpweave;
using namespace warpweave::gpu;

namespace {

constexpr int kDraws = 8;
constexpr double kLaunchesHiddenUs = 50;
constexpr int64_t kLeastDenseRows = 1024;
constexpr size_t kWorst = 15;
constexpr int kWarmUpMs = 30;

struct Draws {
  std::vector<float*> logits;
  double active = 0;            // experts of a draw, mean
};

Draws draw(ExpertMemory& memory, const ExpertShape& shape, int64_t rows, std::mt19937& random) {
  Draws out;
  std::vector<float> logits(rows * shape.experts);
  for (int i = 0; i < kDraws; ++i) {
    for (float& x : logits) x = static_cast<float>(random()) * 0x1p-32f;
    out.logits.push_back(memory.get<float>(static_cast<int64_t>(logits.size())));
    must(cudaMemcpy(out.logits.back(), logits.data(), logits.size() * 4, cudaMemcpyHostToDevice));
    plan_experts({.logits = out.logits.back(), .rows = rows, .rule = {.num_experts = shape.experts, .k = shape.k}, .plan = memory.plan}, nullptr);
    std::vector<int32_t> offsets(shape.experts + 1);
    must(cudaDeviceSynchronize());
    must(cudaMemcpy(offsets.data(), memory.plan.offsets, offsets.size() * 4, cudaMemcpyDeviceToHost));
    for (int e = 0; e < shape.experts; ++e) out.active += offsets[e + 1] > offsets[e];
  }
  out.active /= kDraws;
  return out;
}

struct Layer {
  ExpertShape shape;            // of which this call has `rows`
  ExpertMemory& memory;
  int64_t rows;
  cudaStream_t stream;
  float* norm = nullptr;
  void* router = nullptr;
  uint8_t* codes = nullptr;     // of rows by place
  float* code_scales = nullptr;
  int forced_tile_places = 0;   // 0: those the layer takes
  bool whole_depth = false;     // few tiles of many rows, too, are not shared

  bool shared() const { return norm_route_takes(norm_route_call(nullptr)); }  // places
  int64_t pairs() const { return rows * shape.k; }
  int64_t places() const { return shared() ? kSharedRows * std::min<int64_t>(pairs(), shape.experts) : pairs(); }
  int tile_places() const {
    if (forced_tile_places > 0) return forced_tile_places;
    return expert_gemm_tile_places(shared() ? 0 : pairs(), shape.experts, memory.gate_up.dtype);
  }
  RouterRule rule() const { return {.num_experts = shape.experts, .k = shape.k}; }

  void multiply(const ExpertWeights& weights, const void* x, void* y, ExpertGemmCall call) const {
    call.weights = weights;
    call.x = shape.fp8 && !call.x_by_group ? codes : x;
    call.x_scales = call.x_by_group ? scales_behind_codes() : code_scales;
    call.places = places();
    call.tile_places = tile_places();
    if (shared() || !whole_depth) call.few_tiles = shared() ? places() / kSharedRows : most_expert_tiles(places(), shape.experts, tile_places());
    call.y = y;
    call.y_dtype = shape.dtype;
    call.plan = memory.plan;
    expert_gemm(call, stream);
  }
  // Of the activations, in their memory.
  float* scales_behind_codes() const {
    return reinterpret_cast<float*>(static_cast<uint8_t*>(memory.act) + places() * shape.ffn);
  }
  void route(float* logits) const {
    if (!shared()) {
      return plan_experts({.logits = logits, .rows = rows, .rule = rule(), .tile_places = tile_places(), .plan = memory.plan}, stream);
    }
    norm_route(norm_route_call(logits), stream);  // the router's logits are those of x, of which every draw has its own
  }
  NormRouteCall norm_route_call(const float* x) const {
    return {.x = x, .rows = rows, .hidden = shape.hidden, .norm_weight = norm, .router = router,
            .router_dtype = shape.dtype, .rule = rule(), .h = memory.h, .dtype = shape.dtype, .codes = codes,
            .code_scales = code_scales, .logits = memory.logits, .plan = memory.plan};
  }
  void round(const void* x, int64_t count, int64_t cols, const int32_t* place_of) const {
    code_rows({.x = x, .dtype = shape.dtype, .rows = count, .cols = cols, .place_of = place_of,
               .copies = place_of != nullptr ? shape.k : 1, .codes = codes, .scales = code_scales}, stream);
  }
  // Whether gate and up read rows where they are.
  bool in_place() const {
    return !shared() && forced_tile_places == 0 && expert_gemm_takes_rows(pairs(), shape.experts, memory.gate_up.dtype);
  }
  void spread() const {
    if (shape.fp8) return round(memory.h, rows, shape.hidden, memory.plan.place_of);
    spread_rows({memory.h, rows, shape.hidden * 2, memory.plan.place_of, shape.k, memory.rows}, stream);
  }
  // Parts by bits: 1 routing, 2 rows to their places, 4 gate and up, 8 rounding of their results, 16 down, 32 sum, by the norm behind.
  void run(float* logits, int parts) const {
    if (parts & 1) route(logits);
    if (parts & 2 && !shared() && !in_place()) spread();
    const void* const x = shared() || in_place() ? memory.h : memory.rows;
    const bool codes_outputs = shape.fp8 && expert_gemm_codes_outputs(memory.gate_up, tile_places());
    ExpertGemmCall gate_up = {.shared_rows = shared(), .x_rows = in_place() ? rows : 0, .plan_settled = !shared()};
    if (codes_outputs) gate_up.codes = static_cast<uint8_t*>(memory.act), gate_up.code_scales = scales_behind_codes();
    if (parts & 4) multiply(memory.gate_up, x, memory.act, gate_up);
    if (parts & 8 && shape.fp8 && !codes_outputs) round(memory.act, places(), shape.ffn, nullptr);
    if (parts & 16) multiply(memory.down, memory.act, memory.rows, {.x_by_group = codes_outputs, .plan_settled = true});
    if (parts & 32) {
      const ExpertSums sums = {memory.rows, memory.plan.place_of, memory.plan.weights, shape.k, /*settled=*/true};
      norm_experts({{.x = memory.x, .rows = rows, .cols = shape.hidden, .weight = norm, .out = memory.h, .out_dtype = shape.dtype}, sums},
                   stream);
    }
  }
};

// Bytes a microsecond, of reads of more memory than the caches hold.
double read_rate(cudaStream_t stream) {
  constexpr int64_t kBytes = int64_t{4} << 30;
  const bench::Matrix data = bench::random_matrix(kBytes / 2, 1);
  const DeviceBuffer never = bench::take(DeviceBuffer::allocate(4, "a benchmark"));
  const auto read = [&] { bench::read_memory(data.memory.as<void>(), kBytes, never.as<uint32_t>(), stream); };
  return kBytes / bench::time_us(stream, 1, read);
}

// Codes of e4m3 but NaN's: a random block of an odd length, again and again.
DeviceBuffer random_codes(int64_t count) {
  std::mt19937 random(std::random_device{}());
  std::vector<uint8_t> block(std::min<int64_t>(count, (1 << 20) + 331));
  for (uint8_t& code : block) {
    code = static_cast<uint8_t>(random());
    if ((code & 0x7f) == 0x7f) code ^= 1;
  }
  DeviceBuffer out = bench::take(DeviceBuffer::allocate(count, "a benchmark"));
  const auto size = static_cast<int64_t>(block.size());
  for (int64_t at = 0; at < count; at += size) {
    must(cudaMemcpy(out.as<uint8_t>() + at, block.data(), std::min(size, count - at), cudaMemcpyHostToDevice));
  }
  return out;
}

struct GemmShape {
  int64_t rows, outputs, depth;
};

// Microseconds of a dense GEMM, in 16 bits, or with weights of 8 bits whose rows of x it rounds.
double dense_us(const GemmShape& of, bool fp8, cudaStream_t stream) {
  constexpr int kTries = 16, kLaunches = 8;
  const bench::Matrix x = bench::random_matrix(of.rows * of.depth, 1);
  const DeviceBuffer codes = random_codes(fp8 ? of.outputs * of.depth : 16);
  const bench::Matrix halves = bench::random_matrix(fp8 ? 16 : of.outputs * of.depth, 0.01f);
  const std::vector<float> scale_values(fp8_scale_stride(of.depth) * (of.outputs / kFp8Block + 1), 1e-4f);
  const DeviceBuffer scales = bench::take(DeviceBuffer::allocate(scale_values.size() * 4, "a benchmark"));
  must(cudaMemcpy(scales.as<void>(), scale_values.data(), scale_values.size() * 4, cudaMemcpyHostToDevice));
  const DeviceBuffer y = bench::take(DeviceBuffer::allocate(of.rows * of.outputs * 2, "a benchmark"));
  GpuLinear linear = {.weight = halves.memory.as<void>(), .in_features = of.depth, .out_features = of.outputs};
  if (fp8) {
    linear.weight = codes.as<void>();
    linear.dtype = DType::fp8_e4m3;
    linear.scales = scales.as<float>();
    linear.scaling = Fp8Scaling::block;
  }
  const auto gemm = bench::take(GpuGemm::create());
  bench::check(gemm->reserve_fp8(of.rows, of.depth));
  const GemmCall call = {.linear = &linear, .x = x.memory.as<void>(), .rows = of.rows, .y = y.as<void>(),
                         .y_stride = of.outputs};
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i) bench::check(gemm->run(call, stream));
  };
  gemm->start_tuning();
  run(3 * kTries);
  gemm->stop_tuning();
  return bench::time_us(stream, kLaunches, [&] { run(kLaunches); });
}

struct Options {
  bool fp8 = false, parts = false, dense = false, tiles = false;
  double bytes_per_us = 0;      // that this GPU reads
  double tflops = 0;            // of a dense GEMM of the weights' format
};

struct Measured {
  std::string shape;
  double us = 0, floor_us = 0;  // the larger floor
  std::string of;               // its class
  std::array<double, 6> parts = {};  // us of the bits of Layer::run, in order

  double ratio() const { return us / floor_us; }
};

// What Bench fills rows and routers with: made once, as the host's dice are slow.
struct Noise {
  bench::Matrix rows, routers;

  Noise(int64_t row_values, int64_t router_values)
      : rows(bench::random_matrix(row_values, 1)), routers(bench::random_matrix(router_values, 0.02f)) {}
};

void print_parts(const Measured& of) {
  fmt::print("    routing {:.1f}, rows {:.1f}, gate_up {:.1f}, rounding {:.1f}, down {:.1f}, sum {:.1f}\n", of.parts[0], of.parts[1],
             of.parts[2], of.parts[3], of.parts[4], of.parts[5]);
}

// Of each class the geometric mean of time / floor and what of all shapes' logarithms is its; the parts over the floor, in the
// mean. Then the worst.
void print_classes(std::vector<Measured> all) {
  std::map<std::string, std::vector<Measured>> classes;
  double logs = 0;
  for (const Measured& of : all) {
    classes[of.of].push_back(of);
    logs += std::log(of.ratio());
  }
  for (const auto& [name, members] : classes) {
    double own = 0;
    std::array<double, 6> parts = {};
    for (const Measured& of : members) {
      own += std::log(of.ratio());
      for (size_t i = 0; i < parts.size(); ++i) parts[i] += of.parts[i] / of.floor_us / static_cast<double>(members.size());
    }
    fmt::print("{}: {} shapes, {:.3f} x, {:.0f} % of all logarithms; over the floor: routing {:.2f}, rows {:.2f}, gate_up {:.2f}, "
               "rounding {:.2f}, down {:.2f}, sum {:.2f}\n", name, members.size(), std::exp(own / static_cast<double>(members.size())),
               100 * own / logs, parts[0], parts[1], parts[2], parts[3], parts[4], parts[5]);
  }
  std::sort(all.begin(), all.end(), [](const Measured& a, const Measured& b) { return a.ratio() > b.ratio(); });
  all.resize(std::min(all.size(), kWorst));
  for (const Measured& of : all) {
    fmt::print("{}: {:.1f} us, floor {:.1f}, {:.2f} x\n", of.shape, of.us, of.floor_us, of.ratio());
    print_parts(of);
  }
}

// A shape's weights.
class Bench {
 public:
  // `noise` has shape.rows * shape.hidden and shape.experts * shape.hidden values at least.
  Bench(const ExpertShape& shape, const Options& options, const Noise& noise, cudaStream_t stream)
      : shape_(shape), options_(options), memory_(shape), stream_(stream), router_(noise.routers.memory.as<void>()),
        norm_(memory_.get<float>(shape.hidden)) {
    must(cudaMemcpy(norm_, std::vector<float>(shape.hidden, 1.0f).data(), shape.hidden * 4, cudaMemcpyHostToDevice));
    must(cudaMemcpy(memory_.h, noise.rows.memory.as<void>(), shape.rows * shape.hidden * 2, cudaMemcpyDeviceToDevice));
    must(cudaMemset(memory_.x, 0, shape.rows * shape.hidden * 4));
    if (!shape.fp8) return;
    const int64_t places = std::max(shape.rows, int64_t{kSharedRows}) * shape.k;
    codes_ = memory_.get<uint8_t>(std::max<int64_t>(places, kSharedRows * shape.experts) * std::max(shape.hidden, shape.ffn));
    code_scales_ = memory_.get<float>(std::max<int64_t>(places, kSharedRows * shape.experts));
  }

  Measured measure(int64_t rows, std::mt19937& random) {
    const Layer layer = {shape_, memory_, rows, stream_, norm_, router_, codes_, code_scales_};
    Draws draws = draw(memory_, shape_, rows, random);
    if (layer.shared()) {
      for (float*& of : draws.logits) of = random_x(rows, random);
    }
    const auto time = [&](int of) {
      return bench::time_us(stream_, kDraws, [&] { for (float* logits : draws.logits) layer.run(logits, of); });
    };
    warm_up(layer, draws);
    Measured layer_time = print(rows, draws.active, time(63));
    layer_time.of = class_of(layer, layer_time.floor_us);
    if (options_.parts) {
      for (size_t i = 0; i < layer_time.parts.size(); ++i) {
        const bool runs = (i != 1 || !(layer.shared() || layer.in_place())) && (i != 3 || shape_.fp8);
        layer_time.parts[i] = runs ? time(1 << i) : 0;
      }
      print_parts(layer_time);
    }
    if (options_.dense && rows >= kLeastDenseRows) {
      const double both = dense_us({rows * shape_.k, 2 * shape_.ffn, shape_.hidden}, shape_.fp8, stream_) +
                          dense_us({rows * shape_.k, shape_.hidden, shape_.ffn}, shape_.fp8, stream_);
      fmt::print("    dense GEMMs of as many rows: {:.1f} us, {:.3f} of the layer's time, {:.3f} of its GEMMs' and their "
                 "rounding's\n", both, both / layer_time.us, both / time(4 | 8 | 16));
    }
    if (options_.tiles && !layer.shared()) print_tiles(layer, draws);
    std::fflush(stdout);
    return layer_time;
  }

 private:
  float* random_x(int64_t rows, std::mt19937& random) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> x(rows * shape_.hidden);
    for (float& value : x) value = normal(random);
    float* const out = memory_.get<float>(static_cast<int64_t>(x.size()));
    must(cudaMemcpy(out, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
    return out;
  }
  static std::string class_of(const Layer& layer, double floor_us) {
    const bool few = layer.pairs() <= 40 * layer.shape.experts;
    return fmt::format("{}, floor {} {} us", layer.shared() ? "up to 8 rows" : few ? "up to 40 rows an expert" : "more rows an expert",
                       floor_us < kLaunchesHiddenUs ? "below" : "from", kLaunchesHiddenUs);
  }
  // An idle GPU's clocks are low, and a small layer is over before they rise.
  void warm_up(const Layer& layer, const Draws& draws) const {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(kWarmUpMs)) {
      for (float* logits : draws.logits) layer.run(logits, 63);
      must(cudaStreamSynchronize(stream_));
    }
  }
  // The GEMMs alone, planned for tiles of each of some sizes.
  void print_tiles(Layer layer, const Draws& draws) const {
    for (const int places : {64, 96, 128, 160, 192}) {
      layer.forced_tile_places = places;
      layer.route(draws.logits.back());
      must(cudaStreamSynchronize(stream_));  // the plan counts as settled then
      const auto time = [&](int of) {
        return bench::time_us(stream_, kDraws, [&] { for (int i = 0; i < kDraws; ++i) layer.run(nullptr, of); });
      };
      fmt::print("{} {}: {:.1f} + {:.1f}", places == 64 ? "    tiles of" : ";", places, time(4), time(16));
      if (places == 64) {
        layer.whole_depth = true;
        fmt::print(", whole depths {:.1f} + {:.1f}", time(4), time(16));
        layer.whole_depth = false;
      }
    }
    fmt::print("\n");
  }
  Measured print(int64_t rows, double active, double us) const {
    const double bytes_a_weight = shape_.fp8 ? 1 : 2, tflops = 0.85 * options_.tflops;
    const double weight_bytes = bytes_a_weight * 3 * shape_.hidden * shape_.ffn * active;
    const double row_bytes = rows * shape_.hidden * (4.0 + 4) + shape_.experts * shape_.hidden * 2.0;
    const double flops = 6.0 * static_cast<double>(rows) * shape_.k * shape_.hidden * shape_.ffn;
    const double byte_us = (weight_bytes + row_bytes) / options_.bytes_per_us, flop_us = flops / (tflops * 1e6);
    Measured out;
    out.shape = fmt::format("experts {:3} k {:2} hidden {:5} ffn {:5} rows {:5}", shape_.experts, shape_.k, shape_.hidden, shape_.ffn, rows);
    out.us = us;
    out.floor_us = std::max(byte_us, flop_us);
    fmt::print("{}: {:9.1f} us, floors {:9.1f} bytes {:9.1f} flops, {:5.2f} x, {:4.0f} GB/s, {:4.0f} TFLOP/s\n", out.shape, us,
               byte_us, flop_us, out.ratio(), weight_bytes / us * 1e-3, flops / us * 1e-6);
    return out;
  }

  ExpertShape shape_;
  Options options_;
  ExpertMemory memory_;
  cudaStream_t stream_;
  void* router_;
  float* norm_;
  uint8_t* codes_ = nullptr;
  float* code_scales_ = nullptr;
};

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

void run_random(int count, unsigned seed, const Options& options, cudaStream_t stream) {
  std::mt19937 random(seed);
  double logs = 0, large_logs = 0, worst = 0;
  int large = 0;
  std::vector<Measured> all;
  const Noise noise(16385 * 8192, 513 * 8192);
  for (int i = 0; i < count; ++i) {
    ExpertShape shape = random_shape(random);
    shape.fp8 = shape.alike = options.fp8;
    shape.scaling = Fp8Scaling::block;
    if (options.fp8) shape.ffn = (shape.ffn + kFp8Block - 1) / kFp8Block * kFp8Block;  // gate's and up's blocks are whole
    const Measured layer = Bench(shape, options, noise, stream).measure(shape.rows, random);
    all.push_back(layer);
    logs += std::log(layer.ratio());
    worst = std::max(worst, layer.ratio());
    if (layer.floor_us < kLaunchesHiddenUs) continue;
    large_logs += std::log(layer.ratio());
    ++large;
  }
  if (options.parts) print_classes(all);
  fmt::print("geometric mean of {} shapes: {:.3f} x the floor, worst {:.2f} x; of the {} whose floor is {} us or more: {:.3f} x\n",
             count, std::exp(logs / count), worst, large, kLaunchesHiddenUs, std::exp(large_logs / std::max(large, 1)));
}

void run_shape(ExpertShape shape, const std::vector<int64_t>& rows, const Options& options, cudaStream_t stream) {
  std::mt19937 random(3);
  shape.rows = rows.back();
  shape.fp8 = shape.alike = options.fp8;
  shape.scaling = Fp8Scaling::block;
  const Noise noise(shape.rows * shape.hidden, shape.experts * shape.hidden);
  Bench bench(shape, options, noise, stream);
  for (const int64_t of : rows) bench.measure(of, random);
}

void run_fixed(const Options& options, cudaStream_t stream) {
  const auto run = [&](const ExpertShape& shape, const std::vector<int64_t>& rows) { run_shape(shape, rows, options, stream); };
  run({.experts = 128, .k = 8, .hidden = 2048, .ffn = 768}, {1, 4, 8, 9, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192, 16384});
  run({.experts = 32, .k = 4, .hidden = 2880, .ffn = 2880}, {1, 8, 64, 8192});
  run({.experts = 8, .k = 2, .hidden = 4096, .ffn = 14336}, {1, 8, 64, 8192});
  run({.experts = 512, .k = 10, .hidden = 2048, .ffn = 512}, {1, 8, 64, 8192});
}

void print_device() {
  cudaDeviceProp device{};
  must(cudaGetDeviceProperties(&device, 0));
  fmt::print("{}\n", device.name);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  int at = 1;
  for (; at < argc; ++at) {
    if (std::strcmp(argv[at], "fp8") == 0) options.fp8 = true;
    else if (std::strcmp(argv[at], "parts") == 0) options.parts = true;
    else if (std::strcmp(argv[at], "dense") == 0) options.dense = true;
    else if (std::strcmp(argv[at], "tiles") == 0) options.tiles = true;
    else break;
  }
  CudaStream stream;
  bench::check(cudaStreamCreate(stream.out()));
  constexpr int64_t kDense = 8192;
  print_device();
  options.bytes_per_us = read_rate(stream.get());
  options.tflops = 2.0 * kDense * kDense * kDense / dense_us({kDense, kDense, kDense}, options.fp8, stream.get()) * 1e-6;
  fmt::print("reads of 4 GiB: {:.2f} TB/s, dense GEMM 8192^3: {:.0f} TFLOP/s\n", options.bytes_per_us * 1e-6, options.tflops);
  std::fflush(stdout);
  const std::string what = at < argc ? argv[at] : "";
  if (what == "random") {
    const int count = argc > at + 1 ? std::atoi(argv[at + 1]) : 100;
    const unsigned seed = argc > at + 2 ? static_cast<unsigned>(std::atoi(argv[at + 2])) : std::random_device{}();
    fmt::print("seed {}\n", seed);
    run_random(count, seed, options, stream.get());
  } else if (what == "shape") {
    std::vector<int64_t> given;
    for (int i = at + 1; i < argc; ++i) given.push_back(std::atoll(argv[i]));
    if (given.size() < 5) return 2;
    const ExpertShape shape = {.experts = static_cast<int>(given[0]), .k = static_cast<int>(given[1]), .hidden = given[2], .ffn = given[3]};
    run_shape(shape, {given.begin() + 4, given.end()}, options, stream.get());
  } else {
    run_fixed(options, stream.get());
  }
  return 0;
}
