// What adapters add to the GEMMs of a decode step with 17 to 64 rows: each GEMM with the small kernels around it, and a layer
// without its attention, with adapters beside none.
//
//   lora_bench [ROWS [ADAPTERS [RANK [LARGEST]]]]      default: 64 8 16 64; LARGEST: the rank that the server takes
//
// The shapes are Llama-3.1-8B's; adapters change all four GEMMs and have as many rows each. Every time is a graph of eight
// layers, which the L2 cache does not hold; graphs run by turns in random order, the median of fifteen.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cuda_bench.h"
#include "device/cuda/stream.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/lora.h"
#include "ops/cuda/stream_gemm.h"

using namespace warpweave;
using namespace warpweave::gpu;
using bench::check;
using bench::Matrix;
using bench::random_matrix;
using bench::take;

namespace {

constexpr int kLayers = 8, kHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr int64_t kHidden = 4096, kFfn = 14336, kQkv = 6144;

struct Setup {
  int rows = 64, adapters = 8, rank = 16, largest = 64;
};

struct Gemm {
  LoraSite site;
  int64_t n, k;
  LoraSiteShape shape;
  GluActivation glu = GluActivation::none;
  Matrix weights = {};
};

struct Timed {
  std::string name;
  std::function<void(bool)> enqueue;  // one layer's share, with adapters or without
  std::array<std::vector<double>, 2> us = {};

  double median(bool adapted) {
    std::sort(us[adapted].begin(), us[adapted].end());
    return us[adapted][us[adapted].size() / 2];
  }
};

DeviceBuffer zeros(size_t bytes) {
  DeviceBuffer out = take(DeviceBuffer::allocate(bytes, "a benchmark"));
  check(cudaMemset(out.as<void>(), 0, bytes));
  return out;
}

template <typename T>
DeviceBuffer on_device(const std::vector<T>& values) {
  DeviceBuffer out = take(DeviceBuffer::allocate(values.size() * sizeof(T), "a benchmark"));
  check(cudaMemcpy(out.as<void>(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return out;
}

class Bench {
 public:
  explicit Bench(const Setup& setup) : setup_(setup), stream_(take(create_stream())) {
    add({LoraSite::qkv, kQkv, kHidden, {kHidden, 3, {0, 4096, 5120}, {4096, 1024, 1024}}});
    add({LoraSite::o, kHidden, kHidden, {kHidden, 1, {0}, {kHidden}}});
    add({LoraSite::gate_up, 2 * kFfn, kHidden, {kHidden, 2, {0, kFfn}, {kFfn, kFfn}}, GluActivation::silu});
    add({LoraSite::down, kHidden, kFfn, {kFfn, 1, {0}, {kHidden}}});
    x_ = random_matrix(size_t{kStreamGemmRows} * kFfn, 1);
    for (DeviceBuffer* buffer : {&y_, &residual_, &h_, &act_, &partials_}) *buffer = zeros(size_t{kStreamGemmRows} * kFfn * 16);
    zeros_ = zeros(kFfn * 4);
    ones_ = on_device(std::vector<float>(kFfn, 1));
    kv_ = zeros(size_t{kStreamGemmRows} * kKvHeads * kHeadDim * 2 * 2);
    std::vector<int32_t> slots(kStreamGemmRows);
    std::iota(slots.begin(), slots.end(), 0);
    slots_ = on_device(slots);
    make_adapters();
  }

  void run() {
    std::vector<Timed> all = {{"norm qkv rope", [this](bool adapted) { norm(3), gemm(0, adapted), rope(); }},
                              {"o norm", [this](bool adapted) { gemm(1, adapted), norm(1); }},
                              {"norm gate_up", [this](bool adapted) { norm(1), gemm(2, adapted); }},
                              {"down norm", [this](bool adapted) { gemm(3, adapted), norm(3); }},
                              {"layer", [this](bool adapted) {
                                 norm(3), gemm(0, adapted), rope(), gemm(1, adapted), norm(1), gemm(2, adapted),
                                     gemm(3, adapted);
                               }}};
    time(all);
    for (Timed& timed : all) {
      fmt::print("{} rows, {} adapters of rank {} of {}, {}: none {:.2f} us, adapters {:.2f} us, +{:.2f} us, ratio {:.3f}\n", setup_.rows,
                 setup_.adapters, setup_.rank, setup_.largest, timed.name, timed.median(false), timed.median(true),
                 timed.median(true) - timed.median(false), timed.median(true) / timed.median(false));
    }
  }

 private:
  void add(Gemm gemm) {
    gemm.weights = random_matrix(size_t(gemm.n) * gemm.k * kLayers, 1 / 64.0f);
    gemms_.push_back(std::move(gemm));
  }
  void make_adapters() {
    const int padded = padded_lora_rank(setup_.rank);
    model_.max_rank = std::max(setup_.rank, setup_.largest);
    model_.layers.resize(kLayers);
    std::vector<LoraSiteWeights> table(size_t(setup_.adapters) * kLayers * kLoraSites);
    int64_t count = 0;
    for (const Gemm& p : gemms_) count += padded * (p.shape.num_parts * p.shape.in_features + p.shape.all_columns());
    matrices_ = random_matrix(setup_.adapters * kLayers * count, 1 / 64.0f);
    const uint16_t* next = matrices_.memory.as<uint16_t>();
    for (LoraSiteWeights& site : table) {
      const int at = static_cast<int>(&site - table.data());
      const LoraSiteShape& shape = gemms_[at % kLoraSites].shape;
      model_.layers[at / kLoraSites % kLayers][at % kLoraSites] = shape;
      site.ranks = shape.num_parts * padded;
      site.shrink = std::exchange(next, next + site.ranks * shape.in_features);
      for (int part = 0; part < shape.num_parts; ++part) {
        site.expand[part] = std::exchange(next, next + padded * shape.columns[part]);
        site.first_rank[part] = part * padded;
        site.rank[part] = padded;
        site.scale[part] = 1;
      }
    }
    table_ = on_device(table);
    counters_ = on_device(std::vector<int32_t>(2, 0));
    model_.sites = table_.as<LoraSiteWeights>();
    model_.counters = counters_.as<int32_t>();
    std::vector<int32_t> slots(setup_.rows), places(setup_.rows);
    for (int row = 0; row < setup_.rows; ++row) slots[row] = row % setup_.adapters;
    std::vector<LoraTile> tiles(max_lora_tiles(setup_.rows, setup_.adapters));
    fill_lora_tiles(slots, tiles, places);
    num_tiles_ = static_cast<int>(tiles.size());
    tiles_ = on_device(tiles);
    places_ = on_device(places);
    sums_ = zeros(lora_sums_size(model_, setup_.rows, setup_.adapters) * sizeof(float));
  }

  void gemm(int index, bool adapted) {
    const Gemm& p = gemms_[index];
    const bool fused = p.glu != GluActivation::none;
    GpuLinear linear;
    linear.weight = p.weights.memory.as<uint16_t>() + layer_ * p.n * p.k;
    linear.in_features = p.k;
    linear.out_features = p.n;
    linear.glu = p.glu;
    GemmCall call;
    call.linear = &linear;
    call.x = h_.as<void>();
    if (p.site == LoraSite::o) call.x = x_.memory.as<void>();
    if (p.site == LoraSite::down) call.x = act_.as<void>();
    call.rows = setup_.rows;
    call.y = fused ? act_.as<void>() : y_.as<void>();
    call.y_stride = fused ? p.n / 2 : p.n;
    call.y_dtype = fused ? DType::bf16 : DType::f32;
    call.fused_glu = fused;
    LoraCall lora;
    lora.model = &model_;
    lora.place = {layer_, p.site};
    lora.tiles = tiles_.as<LoraTile>();
    lora.places = places_.as<int32_t>();
    lora.num_tiles = num_tiles_;
    lora.rows = setup_.rows;
    lora.sums = sums_.as<float>();
    if (adapted) call.adapters = &lora;
    stream_gemm(call, stream_plan(call), fused ? nullptr : partials_.as<float>(), stream_.get());
  }
  // Behind the GEMM of that place, whose partial sums it adds.
  void norm(int behind) {
    gpu::RmsNormCall c;
    c.x = residual_.as<float>();
    c.partials = {partials_.as<float>(), splits_of(behind), setup_.rows * kHidden};
    c.rows = setup_.rows;
    c.cols = kHidden;
    c.weight = ones_.as<float>();
    c.eps = 1e-5f;
    c.out = h_.as<void>();
    c.out_dtype = DType::bf16;
    rms_norm(c, stream_.get());
  }
  void rope() {
    QkvRowsCall c;
    c.qkv = y_.as<void>();
    c.partials = {partials_.as<float>(), splits_of(0), setup_.rows * kQkv};
    c.rows = setup_.rows;
    c.num_q_heads = kHeads;
    c.num_kv_heads = kKvHeads;
    c.head_dim = c.rotary_dim = kHeadDim;
    c.cos = ones_.as<float>();
    c.sin = zeros_.as<float>();
    c.positions = zeros_.as<int32_t>();
    c.kv_slots = slots_.as<int32_t>();
    c.page_size = 64;
    constexpr int64_t kRow = kKvHeads * kHeadDim;
    c.k_out = {kv_.as<void>(), KvFormat::bf16, 64 * kRow, kRow, kHeadDim, nullptr, nullptr};
    c.v_out = {kv_.as<char>() + kStreamGemmRows * kRow * 2, KvFormat::bf16, 64 * kRow, kRow, kHeadDim, nullptr, nullptr};
    norm_rope_write_kv(c, stream_.get());
  }
  int splits_of(int index) const {
    GpuLinear linear;
    linear.in_features = gemms_[index].k;
    linear.out_features = gemms_[index].n;
    return stream_plan({.linear = &linear, .rows = setup_.rows}).splits;
  }

  // By turns, in random order.
  void time(std::vector<Timed>& all) {
    constexpr int kRounds = 15;
    std::vector<std::pair<size_t, bool>> order;
    std::vector<CudaGraphExec> execs;
    for (size_t i = 0; i < all.size(); ++i) {
      for (const bool adapted : {false, true}) {
        const auto layers = [&] {
          for (layer_ = 0; layer_ < kLayers; ++layer_) all[i].enqueue(adapted);
        };
        layers();
        check(cudaStreamSynchronize(stream_.get()));
        order.emplace_back(i, adapted);
        execs.push_back(bench::graph_of(stream_.get(), layers));
      }
    }
    CudaEvent begin, end;
    check(cudaEventCreate(begin.out()));
    check(cudaEventCreate(end.out()));
    std::mt19937 random(std::random_device{}());
    for (int round = 0; round < kRounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const auto& [i, adapted] : order) {
        float ms = 0;
        check(cudaEventRecord(begin.get(), stream_.get()));
        check(cudaGraphLaunch(execs[2 * i + adapted].get(), stream_.get()));
        check(cudaEventRecord(end.get(), stream_.get()));
        check(cudaEventSynchronize(end.get()));
        check(cudaEventElapsedTime(&ms, begin.get(), end.get()));
        all[i].us[adapted].push_back(ms * 1e3 / kLayers);
      }
    }
  }

  const Setup setup_;
  CudaStream stream_;
  std::vector<Gemm> gemms_;
  Matrix x_, matrices_;
  LoraModel model_;
  int layer_ = 0, num_tiles_ = 0;
  DeviceBuffer y_, residual_, h_, act_, partials_, ones_, zeros_, kv_, slots_, table_, counters_, tiles_, places_, sums_;
};

}  // namespace

int main(int argc, char** argv) {
  Setup setup;
  if (argc > 1) setup.rows = std::clamp(std::atoi(argv[1]), 17, kStreamGemmRows);
  if (argc > 2) setup.adapters = std::clamp(std::atoi(argv[2]), 1, setup.rows);
  if (argc > 3) setup.rank = std::clamp(std::atoi(argv[3]), 1, 256);
  if (argc > 4) setup.largest = std::clamp(std::atoi(argv[4]), 1, 256);
  Bench(setup).run();
  return 0;
}
