// The experts' part of a layer on a GPU beside its floors: bytes of the weights that were chosen at the speed at which
// this GPU reads memory, GEMMs at 0.85 of what a dense GEMM reaches, both measured at the start.
//
//   experts_bench [fp8] [parts] [dense] [tiles] [MODE]
//   MODE: random [N [SEED]] | shape EXPERTS K HIDDEN FFN ROWS... | skew [ROWS...]; without one: fixed shapes
//
// parts: the time of each kernel; random then ends with the means of classes of shapes, and the kWorst furthest from
// their floors. tiles: the GEMMs of more than kSharedRows rows with tiles of other sizes. dense: from 1024 rows on,
// beside the layer, dense GEMMs of as many rows as its experts' GEMMs have in all, of the same widths and format. SEED:
// else chosen anew.
//
// Routing is uniform, drawn anew for each of the timed launches. One line a shape; `random` ends with the geometric
// mean of time / max(floors), of all shapes and of those whose floor is kLaunchesHiddenUs or more: a layer is four to
// seven kernels that wait for each other, of which the floors know nothing. fp8: weights in e4m3 with scales of blocks.
//
// skew: beside even routing, rows that crowd into few experts (Skew), of ROWS or else of 1 to 8192: time over the floor
// of the experts that were chosen, and this over even routing's; then the same with tiles planned for those experts
// alone, as by a layer that knew how many they are. Ends with each routing's geometric mean and worst; one row, which
// nothing skews, is left out of them.
#include <array>
#include <chrono>
#include <map>
#include <string>

#include "bench/gpu/cuda_bench.h"
#include "bench/gpu/expert_arguments.h"
#include "bench/gpu/expert_layer.h"
#include "bench/gpu/expert_skew.h"
#include "bench/gpu/read_rate.h"
#include "ops/cuda/gemm.h"

using namespace warpweave;
using namespace warpweave::gpu;

namespace {

constexpr int kDraws = 8;
constexpr double kLaunchesHiddenUs = 50;
constexpr int64_t kLeastDenseRows = 1024;
constexpr size_t kWorst = 15;
constexpr int kWarmUpMs = 30;

struct Draws {
  std::vector<float*> logits;   // with shared rows the router's rows of x
  double active = 0;            // experts of a draw, mean
  int most_active = 0;          // of a skewed draw
  std::string label;            // behind the shape
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

struct Measured {
  std::string shape;
  double us = 0, floor_us = 0;  // the larger floor
  std::string of;               // its class
  std::array<double, 6> parts = {};  // us of the bits of ExpertLayer::run, in order

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
  Bench(const ExpertShape& shape, const ExpertOptions& options, const Noise& noise, cudaStream_t stream)
      : shape_(shape), options_(options), noise_(noise), memory_(shape), stream_(stream),
        router_(noise.routers.memory.as<void>()), norm_(memory_.get<float>(shape.hidden)) {
    must(cudaMemcpy(norm_, std::vector<float>(shape.hidden, 1.0f).data(), shape.hidden * 4, cudaMemcpyHostToDevice));
    must(cudaMemcpy(memory_.h, noise.rows.memory.as<void>(), shape.rows * shape.hidden * 2, cudaMemcpyDeviceToDevice));
    must(cudaMemset(memory_.x, 0, shape.rows * shape.hidden * 4));
    if (!shape.fp8) return;
    const int64_t places = std::max(shape.rows, int64_t{kSharedRows}) * shape.k;
    codes_ = memory_.get<uint8_t>(std::max<int64_t>(places, kSharedRows * shape.experts) * std::max(shape.hidden, shape.ffn));
    code_scales_ = memory_.get<float>(std::max<int64_t>(places, kSharedRows * shape.experts));
  }

  Measured measure(int64_t rows, std::mt19937& random) {
    const ExpertLayer layer = layer_of(rows);
    Draws draws = draw(memory_, shape_, rows, random);
    if (layer.shared()) {
      for (float*& of : draws.logits) of = random_x(rows, random);
    }
    return measure(layer, draws);
  }

  SkewedTime measure_skewed(int64_t rows, Skew skew, SkewDice& dice) {
    ExpertLayer layer = layer_of(rows);
    const Draws draws = draw_skewed(layer, skew, dice);
    const Measured drawn = measure(layer, draws);
    SkewedTime out = {drawn.shape, drawn.ratio(), drawn.ratio(), draws.most_active};
    const int tile_places = layer.tile_places();
    const bool in_place = layer.in_place();
    layer.planned_experts = draws.most_active;
    // The depth of tiles of many places is never shared, so that there their number changes nothing.
    const bool as_before = layer.tile_places() == tile_places && layer.in_place() == in_place;
    if (as_before && tile_places > kEarlyTilePlaces) return out;
    out.planned = time_us(layer, draws, 63) / drawn.floor_us;
    return out;
  }

 private:
  ExpertLayer layer_of(int64_t rows) {
    return {shape_, memory_, rows, stream_, norm_, router_, codes_, code_scales_};
  }
  double time_us(const ExpertLayer& layer, const Draws& draws, int parts) const {
    return bench::time_us(stream_, kDraws, [&] {
      for (float* logits : draws.logits) layer.run(logits, parts);
    });
  }
  Measured measure(const ExpertLayer& layer, const Draws& draws) {
    const int64_t rows = layer.rows;
    const auto time = [&](int of) { return time_us(layer, draws, of); };
    warm_up(layer, draws);
    Measured layer_time = print(rows, draws, time(63));
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
  Draws draw_skewed(const ExpertLayer& layer, Skew skew, SkewDice& dice) {
    Draws out;
    out.label = fmt::format(", {}", skew_name(skew));
    for (int turn = 0; turn < kDraws; ++turn) {
      const std::vector<int> chosen = dice.draw(skew, layer.rows, turn);
      const std::vector<float> input =
          layer.shared() ? x_choosing(chosen, shape_, noise_.routers) : dice.logits_choosing(chosen);
      out.logits.push_back(memory_.get<float>(static_cast<int64_t>(input.size())));
      to_device(input, out.logits.back());
      layer.route(out.logits.back());
      must_choose(chosen, from_device(memory_.plan.chosen, chosen.size()), shape_.k);
      const int active = experts_of(chosen);
      out.active += active;
      out.most_active = std::max(out.most_active, active);
    }
    out.active /= kDraws;
    return out;
  }
  float* random_x(int64_t rows, std::mt19937& random) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> x(rows * shape_.hidden);
    for (float& value : x) value = normal(random);
    float* const out = memory_.get<float>(static_cast<int64_t>(x.size()));
    must(cudaMemcpy(out, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
    return out;
  }
  static std::string class_of(const ExpertLayer& layer, double floor_us) {
    const bool few = layer.pairs() <= 40 * layer.shape.experts;
    return fmt::format("{}, floor {} {} us", layer.shared() ? "up to 8 rows" : few ? "up to 40 rows an expert" : "more rows an expert",
                       floor_us < kLaunchesHiddenUs ? "below" : "from", kLaunchesHiddenUs);
  }
  // An idle GPU's clocks are low, and a small layer is over before they rise.
  void warm_up(const ExpertLayer& layer, const Draws& draws) const {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(kWarmUpMs)) {
      for (float* logits : draws.logits) layer.run(logits, 63);
      must(cudaStreamSynchronize(stream_));
    }
  }
  // The GEMMs alone, planned for tiles of each of some sizes.
  void print_tiles(ExpertLayer layer, const Draws& draws) const {
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
  Measured print(int64_t rows, const Draws& draws, double us) const {
    const double bytes_a_weight = shape_.fp8 ? 1 : 2, tflops = 0.85 * options_.tflops;
    const double weight_bytes = bytes_a_weight * 3 * shape_.hidden * shape_.ffn * draws.active;
    const double row_bytes = rows * shape_.hidden * (4.0 + 4) + shape_.experts * shape_.hidden * 2.0;
    const double flops = 6.0 * static_cast<double>(rows) * shape_.k * shape_.hidden * shape_.ffn;
    const double byte_us = (weight_bytes + row_bytes) / options_.bytes_per_us, flop_us = flops / (tflops * 1e6);
    Measured out;
    out.shape = fmt::format("experts {:3} k {:2} hidden {:5} ffn {:5} rows {:5}{}", shape_.experts, shape_.k,
                            shape_.hidden, shape_.ffn, rows, draws.label);
    out.us = us;
    out.floor_us = std::max(byte_us, flop_us);
    fmt::print("{}: {:9.1f} us, floors {:9.1f} bytes {:9.1f} flops, {:5.2f} x, {:4.0f} GB/s, {:4.0f} TFLOP/s\n", out.shape, us,
               byte_us, flop_us, out.ratio(), weight_bytes / us * 1e-3, flops / us * 1e-6);
    return out;
  }

  ExpertShape shape_;
  ExpertOptions options_;
  const Noise& noise_;
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

void set_format(ExpertShape& shape, const ExpertOptions& options) {
  shape.fp8 = shape.alike = options.fp8;
  shape.scaling = Fp8Scaling::block;
  if (options.fp8) shape.ffn = (shape.ffn + kFp8Block - 1) / kFp8Block * kFp8Block;  // gate's and up's blocks are whole
}

void run_random(int count, unsigned seed, const ExpertOptions& options, cudaStream_t stream) {
  std::mt19937 random(seed);
  double logs = 0, large_logs = 0, worst = 0;
  int large = 0;
  std::vector<Measured> all;
  const Noise noise(16385 * 8192, 513 * 8192);
  for (int i = 0; i < count; ++i) {
    ExpertShape shape = random_shape(random);
    set_format(shape, options);
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

void run_shape(ExpertShape shape, const std::vector<int64_t>& rows, const ExpertOptions& options, cudaStream_t stream) {
  std::mt19937 random(3);
  shape.rows = *std::max_element(rows.begin(), rows.end());
  shape.fp8 = shape.alike = options.fp8;
  shape.scaling = Fp8Scaling::block;
  const Noise noise(shape.rows * shape.hidden, shape.experts * shape.hidden);
  Bench bench(shape, options, noise, stream);
  for (const int64_t of : rows) bench.measure(of, random);
}

void run_fixed(const ExpertOptions& options, cudaStream_t stream) {
  const auto run = [&](const ExpertShape& shape, const std::vector<int64_t>& rows) { run_shape(shape, rows, options, stream); };
  run({.experts = 128, .k = 8, .hidden = 2048, .ffn = 768}, {1, 4, 8, 9, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192, 16384});
  run({.experts = 32, .k = 4, .hidden = 2880, .ffn = 2880}, {1, 8, 64, 8192});
  run({.experts = 8, .k = 2, .hidden = 4096, .ffn = 14336}, {1, 8, 64, 8192});
  run({.experts = 512, .k = 10, .hidden = 2048, .ffn = 512}, {1, 8, 64, 8192});
}

using MeansBySkew = std::map<Skew, SkewMeans>;

void run_skewed_rows(Bench& bench, const ExpertShape& shape, int64_t rows, MeansBySkew& means) {
  SkewDice dice(shape, 3);
  const SkewedTime even = bench.measure_skewed(rows, Skew::even, dice);
  for (const Skew skew : kUnevenSkews) {
    if (skew == Skew::quarter && !quarter_is_apart(shape)) continue;
    const SkewedTime skewed = bench.measure_skewed(rows, skew, dice);
    fmt::print("    {:.2f} x even's time / floor, with tiles for {} experts {:.2f} x\n", skewed.ratio / even.ratio,
               skewed.experts, skewed.planned / even.ratio);
    if (rows > 1) means[skew].add(skewed, even);
  }
}

void run_skew(const std::vector<int64_t>& given, const ExpertOptions& options, cudaStream_t stream) {
  const std::vector<int64_t> rows = given.empty() ? std::vector<int64_t>{1, 8, 64, 256, 1024, 8192} : given;
  MeansBySkew means;
  for (ExpertShape shape : {ExpertShape{.experts = 128, .k = 8, .hidden = 2048, .ffn = 768},
                            ExpertShape{.experts = 32, .k = 4, .hidden = 2880, .ffn = 2880},
                            ExpertShape{.experts = 8, .k = 2, .hidden = 4096, .ffn = 14336},
                            ExpertShape{.experts = 64, .k = 6, .hidden = 2048, .ffn = 1408}}) {
    shape.rows = *std::max_element(rows.begin(), rows.end());
    set_format(shape, options);
    const Noise noise(shape.rows * shape.hidden, shape.experts * shape.hidden);
    Bench bench(shape, options, noise, stream);
    for (const int64_t of : rows) run_skewed_rows(bench, shape, of, means);
  }
  SkewMeans all;
  for (const auto& [skew, of] : means) {
    of.print(skew_name(skew));
    all.add(of);
  }
  all.print("all");
}

void print_device() {
  cudaDeviceProp device{};
  must(cudaGetDeviceProperties(&device, 0));
  fmt::print("{}\n", device.name);
}

void run_mode(const ExpertArguments& arguments, const ExpertOptions& options, cudaStream_t stream) {
  const std::vector<int64_t>& given = arguments.numbers;
  if (arguments.mode == "random") {
    const int count = given.empty() ? 100 : static_cast<int>(given[0]);
    const unsigned seed = given.size() > 1 ? static_cast<unsigned>(given[1]) : std::random_device{}();
    fmt::print("seed {}\n", seed);
    run_random(count, seed, options, stream);
  } else if (arguments.mode == "shape") {
    const ExpertShape shape = {.experts = static_cast<int>(given[0]),
                               .k = static_cast<int>(given[1]),
                               .hidden = given[2],
                               .ffn = given[3]};
    run_shape(shape, {given.begin() + 4, given.end()}, options, stream);
  } else if (arguments.mode == "skew") {
    run_skew(given, options, stream);
  } else {
    run_fixed(options, stream);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const ExpertArguments arguments = arguments_of(argc, argv);
  ExpertOptions options = arguments.options;
  CudaStream stream;
  bench::check(cudaStreamCreate(stream.out()));
  constexpr int64_t kDense = 8192;
  print_device();
  options.bytes_per_us = read_rate(stream.get());
  options.tflops = 2.0 * kDense * kDense * kDense / dense_us({kDense, kDense, kDense}, options.fp8, stream.get()) * 1e-6;
  fmt::print("reads of 4 GiB: {:.2f} TB/s, dense GEMM 8192^3: {:.0f} TFLOP/s\n", options.bytes_per_us * 1e-6, options.tflops);
  std::fflush(stdout);
  run_mode(arguments, options, stream.get());
  return 0;
}
