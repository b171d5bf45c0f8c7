// Experts on the GPU: GEMMs of every kernel against sums in f64 over even, skewed and empty splits, and mistakes planted
// between the kernels, which the same checks must see. Skipped without a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>

#include "base/threads.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/testing/expert_memory.h"

namespace warpweave::gpu {
namespace {

enum class Way { shared, wgmma_narrow, wgmma_few, wgmma_split, wgmma_many, tiles };  // split: CTAs share the depth of few tiles
enum class Split { even, skewed, one };

struct GemmCase {
  Way way;
  ExpertShape shape;
  Split split = Split::even;
  bool bias = false;
  bool rows_in_place = false;  // gate and up read rows where they are
  bool crowds = false;         // the plan may have tiles for rows that crowd into few experts, and where these are skewed it has
};

double activated(GluActivation kind, double gate, double up) {
  switch (kind) {
    case GluActivation::silu: return gate / (1 + std::exp(-gate)) * up;
    case GluActivation::gelu_tanh:
      return 0.5 * gate * (1 + std::tanh(0.7978845608028654 * (gate + 0.044715 * gate * gate * gate))) * up;
    default: {
      const double clamped = std::min(gate, 7.0);
      return (std::clamp(up, -7.0, 7.0) + 1) * clamped / (1 + std::exp(-1.702 * clamped));
    }
  }
}

class ExpertGemmTest : public testing::TestWithParam<GemmCase> {
 protected:
  void SetUp() override {
    if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
    const ExpertShape& shape = GetParam().shape;
    memory_ = std::make_unique<ExpertMemory>(shape);
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0, 1);
    for (int64_t i = 0; i < shape.rows * shape.hidden; ++i) {
      x_.push_back(normal(random));
      h_.push_back(rounded(normal(random), shape.dtype));
    }
    for (int64_t i = 0; i < shape.rows * shape.experts; ++i) {
      float logit = normal(random);
      if (GetParam().split == Split::skewed && i % shape.experts < shape.k + 1) logit += 6;
      if (GetParam().split == Split::one) logit = static_cast<float>(shape.experts - i % shape.experts);
      logits_.push_back(logit);
    }
    to_device(x_, memory_->x);
    set_h();
    to_device(logits_, memory_->logits);
    if (GetParam().bias) {
      memory_->gate_up.biases = biases(2 * shape.ffn);
      memory_->down.biases = biases(shape.hidden);
    }
  }

  void set_h() {
    const DType dtype = GetParam().shape.dtype;
    if (dtype == DType::f32) return to_device(h_, memory_->h);
    std::vector<uint16_t> bits;
    for (float x : h_) bits.push_back(dtype == DType::bf16 ? f32_to_bf16(x) : f32_to_f16(x));
    to_device(bits, memory_->h);
  }

  // Row r of expert e: (r % 13 - e % 5) / 16.
  const float* const* biases(int64_t rows) {
    std::vector<const float*> pointers;
    for (int e = 0; e < GetParam().shape.experts; ++e) {
      std::vector<float> values;
      for (int64_t r = 0; r < rows; ++r) values.push_back(static_cast<float>(r % 13 - e % 5) / 16);
      float* const of_expert = memory_->get<float>(rows);
      to_device(values, of_expert);
      pointers.push_back(of_expert);
    }
    auto** const out = memory_->get<const float*>(GetParam().shape.experts);
    to_device(pointers, out);
    return out;
  }
  double bias(int expert, int64_t row) const { return GetParam().bias ? (static_cast<double>(row % 13) - expert % 5) / 16 : 0; }

  // What the layer adds to some rows of x, [rows, hidden], by all CPUs.
  std::vector<double> expected(const std::vector<int64_t>& rows, const std::vector<int32_t>& chosen,
                               const std::vector<float>& weights) const {
    static ThreadTeam team(available_cpus());
    const ExpertShape& s = GetParam().shape;
    const auto count = static_cast<int64_t>(rows.size());
    std::vector<double> out(count * s.hidden), act(count * s.k * s.ffn);
    team.parallel_for(count * s.k * s.ffn, 32, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        const int64_t f = at % s.ffn, pair = rows[at / s.ffn / s.k] * s.k + at / s.ffn % s.k;
        act[at] = activation(chosen[pair], f, h_.data() + pair / s.k * s.hidden);
      }
    });
    team.parallel_for(count * s.hidden, 32, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin; at < end; ++at) {
        for (int j = 0; j < s.k; ++j) {
          const int64_t row = at / s.hidden, o = at % s.hidden, pair = rows[row] * s.k + j;
          double sum = bias(chosen[pair], o);
          const double* const of = act.data() + (row * s.k + j) * s.ffn;
          for (int64_t f = 0; f < s.ffn; ++f) sum += memory_->weight(chosen[pair], 2, o, f) * of[f];
          out[at] += weights[pair] * sum;
        }
      }
    });
    return out;
  }
  double activation(int expert, int64_t f, const float* h) const {
    const ExpertShape& s = GetParam().shape;
    double gate = bias(expert, f / 8 * 16 + f % 8), up = bias(expert, f / 8 * 16 + f % 8 + 8);
    for (int64_t i = 0; i < s.hidden; ++i) {
      gate += memory_->weight(expert, 0, f, i) * double{h[i]};
      up += memory_->weight(expert, 1, f, i) * double{h[i]};
    }
    return activated(s.glu, gate, up);
  }

  // Runs the layer; `between` may change what the plan holds before rows are spread to their places, `after` before their sum.
  template <typename Between, typename After>
  void run(const Between& between, const After& after) {
    const GemmCase& c = GetParam();
    const ExpertShape& s = c.shape;
    const int64_t pairs = s.rows * s.k;
    int tile_places = 64;
    if (c.way == Way::wgmma_many) tile_places = expert_gemm_tile_places(1 << 20, 1);
    if (c.way == Way::wgmma_narrow) tile_places = kNarrowTilePlaces;
    const int crowded_places = c.crowds ? expert_gemm_crowded_places(memory_->gate_up, memory_->down, s.rows, pairs, tile_places) : 0;
    plan_experts({.logits = memory_->logits, .rows = s.rows, .rule = {.num_experts = s.experts, .k = s.k}, .tile_places = tile_places, .crowded_places = crowded_places, .plan = memory_->plan}, nullptr);
    must(cudaDeviceSynchronize());
    EXPECT_EQ(c.crowds && from_device(memory_->plan.tiles, 1)[0].crowded != 0, c.crowds && c.split != Split::even);
    between(*memory_);
    const auto element = static_cast<int64_t>(dtype_info(s.dtype).block_bytes);
    const bool codes = s.fp8 && c.way != Way::tiles;
    const int64_t widest = std::max(s.hidden, s.ffn);
    uint8_t* const coded = memory_->get<uint8_t>(codes ? pairs * widest : 1);
    float* const scales = memory_->get<float>(codes ? pairs : 1);
    const int32_t* const place_of = memory_->plan.place_of;
    if (codes) {
      code_rows({.x = memory_->h, .dtype = s.dtype, .rows = s.rows, .cols = s.hidden, .place_of = place_of, .copies = s.k,
                 .codes = coded, .scales = scales}, nullptr);
    } else if (!c.rows_in_place) {
      spread_rows({memory_->h, s.rows, s.hidden * element, place_of, s.k, memory_->rows}, nullptr);
    }
    ExpertGemmCall call = {.weights = memory_->gate_up, .x = codes ? static_cast<void*>(coded) : memory_->rows, .x_scales = scales, .places = pairs, .plan = memory_->plan, .tile_places = tile_places, .crowded_places = crowded_places, .plan_settled = true, .y = memory_->act, .y_dtype = s.dtype};
    if (c.rows_in_place) call.x = memory_->h, call.x_rows = s.rows;
    if (c.way == Way::wgmma_split) call.few_tiles = most_expert_tiles(pairs, s.experts, tile_places);
    const auto multiply = [&] { c.way == Way::tiles ? expert_tiles(call, s.dtype, nullptr) : expert_gemm(call, nullptr); };
    multiply();
    if (codes) code_rows({.x = memory_->act, .dtype = s.dtype, .rows = pairs, .cols = s.ffn, .codes = coded, .scales = scales}, nullptr);
    call.weights = memory_->down;
    call.x = codes ? static_cast<void*>(coded) : memory_->act;
    call.x_rows = 0;
    call.y = memory_->rows;
    multiply();
    after(*memory_);
    combine_experts({.sums = sums(), .dtype = s.dtype, .rows = s.rows, .hidden = s.hidden, .y = memory_->x}, nullptr);
  }

  // Outputs of gate and up in 8 bits, where its kernel rounds them.
  bool set_codes(ExpertGemmCall& call, int64_t places) const {
    const int64_t ffn = GetParam().shape.ffn;
    if (!expert_gemm_codes_outputs(call.weights, call.tile_places)) return false;
    call.codes = memory_->get<uint8_t>(places * ffn);
    call.code_scales = memory_->get<float>(places * ffn / kExpertCodeGroup);
    return true;
  }
  // x is what gate and up left.
  void turn_to_down(ExpertGemmCall& call) const {
    call.weights = memory_->down;
    call.y = memory_->rows;
    if (call.codes == nullptr) return;
    call.x = std::exchange(call.codes, nullptr);
    call.x_scales = std::exchange(call.code_scales, nullptr);
    call.x_by_group = true;
  }

  ExpertSums sums() const { return {memory_->rows, memory_->plan.place_of, memory_->plan.weights, GetParam().shape.k}; }

  // By norm_route, rows sharing places: h is the normed x.
  void run_shared() {
    const ExpertShape& s = GetParam().shape;
    std::vector<float> norm(s.hidden), router(s.experts * s.hidden);
    std::mt19937 random(4);
    std::normal_distribution<float> normal(0, 1);
    for (float& w : norm) w = 1 + 0.1f * normal(random);
    for (float& w : router) w = 0.05f * normal(random);
    float* const device_norm = memory_->get<float>(s.hidden);
    float* const device_router = memory_->get<float>(s.experts * s.hidden);
    to_device(norm, device_norm);
    to_device(router, device_router);
    const int64_t places = kSharedRows * std::min<int64_t>(s.rows * s.k, s.experts), widest = std::max(s.hidden, s.ffn);
    uint8_t* const coded = s.fp8 ? memory_->get<uint8_t>(places * widest) : nullptr;
    float* const scales = s.fp8 ? memory_->get<float>(places) : nullptr;
    NormRouteCall route = {.x = memory_->x, .rows = s.rows, .hidden = s.hidden, .norm_weight = device_norm,
                           .router = device_router, .rule = {.num_experts = s.experts, .k = s.k}, .h = memory_->h,
                           .dtype = s.dtype, .codes = coded, .code_scales = scales, .logits = memory_->logits,
                           .plan = memory_->plan};
    ASSERT_TRUE(norm_route_takes(route));
    ASSERT_TRUE(expert_gemm_takes(memory_->gate_up) && expert_gemm_takes(memory_->down));
    std::vector<int32_t> slots(s.rows, 7);
    slots.back() = s.rows > 1 ? -1 : 7;
    int32_t* const device_slots = memory_->get<int32_t>(s.rows);
    to_device(slots, device_slots);
    route.kv_slots = device_slots;
    norm_route(route, nullptr);
    const auto padded = from_device(route.plan.chosen, s.rows * s.k);
    for (int j = 0; j < s.k; ++j) ASSERT_EQ(padded[(s.rows - 1) * s.k + j], padded[j]);
    route.kv_slots = nullptr;
    norm_route(route, nullptr);
    const auto bits = from_device(static_cast<const uint16_t*>(memory_->h), s.rows * s.hidden);
    for (size_t i = 0; i < bits.size(); ++i) h_[i] = s.dtype == DType::bf16 ? bf16_to_f32(bits[i]) : f16_to_f32(bits[i]);
    for (int64_t row = 0; row < s.rows; ++row) {  // the norm itself
      double squares = 0;
      for (int64_t i = 0; i < s.hidden; ++i) squares += double{x_[row * s.hidden + i]} * x_[row * s.hidden + i];
      const double scale = 1 / std::sqrt(squares / static_cast<double>(s.hidden) + 1e-6);
      for (int64_t i = 0; i < s.hidden; ++i) {
        const double value = x_[row * s.hidden + i] * scale * norm[i];
        ASSERT_NEAR(h_[row * s.hidden + i], value, 0.01 * std::abs(value) + 1e-6);
      }
    }
    ExpertGemmCall call = {.weights = memory_->gate_up, .x = s.fp8 ? static_cast<void*>(coded) : memory_->h, .x_scales = scales,
                           .places = places, .plan = memory_->plan, .tile_places = expert_gemm_tile_places(0, s.experts),
                           .shared_rows = true, .few_tiles = places / kSharedRows,
                           .y = memory_->act, .y_dtype = s.dtype};
    const bool codes_outputs = s.fp8 && set_codes(call, places);
    expert_gemm(call, nullptr);
    if (s.fp8 && !codes_outputs) code_rows({.x = memory_->act, .dtype = s.dtype, .rows = places, .cols = s.ffn, .codes = coded, .scales = scales}, nullptr);
    call.x = s.fp8 ? static_cast<void*>(coded) : memory_->act;
    turn_to_down(call);
    call.shared_rows = false;
    call.plan_settled = true;
    expert_gemm(call, nullptr);
    combine_experts({.sums = sums(), .dtype = s.dtype, .rows = s.rows, .hidden = s.hidden, .y = memory_->x}, nullptr);
  }

  // The norm of the error over the norm of what was to be added, over rows for so many weights of one of the matrices.
  double error(int64_t most_weights = 30'000'000) const {
    const ExpertShape& s = GetParam().shape;
    const auto chosen = from_device(memory_->plan.chosen, s.rows * s.k);
    const auto weights = from_device(memory_->plan.weights, s.rows * s.k);
    const auto x = from_device(memory_->x, s.rows * s.hidden);
    const int64_t step = std::max<int64_t>(1, s.rows * s.k * s.hidden * s.ffn / most_weights);
    std::vector<int64_t> rows;
    for (int64_t row = s.rows - 1; row >= 0; row -= step) rows.push_back(row);
    const std::vector<double> added = expected(rows, chosen, weights);
    double wrong = 0, all = 0;
    for (size_t i = 0; i < added.size(); ++i) {
      const int64_t at = rows[i / s.hidden] * s.hidden + static_cast<int64_t>(i) % s.hidden;
      const double difference = x[at] - x_[at] - added[i];
      wrong += difference * difference;
      all += added[i] * added[i];
    }
    return std::isnan(wrong) ? INFINITY : std::sqrt(wrong / all);
  }
  double error_of_mistake() const { return error(3'000'000); }
  double bound() const {
    const DType dtype = GetParam().shape.dtype;
    if (GetParam().shape.fp8 && GetParam().way != Way::tiles) return 0.06;  // rows are rounded to 4 significant bits, twice
    return dtype == DType::bf16 ? 5e-3 : dtype == DType::f16 ? 7e-4 : 2e-6;
  }

  std::unique_ptr<ExpertMemory> memory_;
  std::vector<float> x_, h_, logits_;
};

constexpr auto kNothing = [](ExpertMemory&) {};

TEST_P(ExpertGemmTest, EqualsSumsInF64) {
  GetParam().way == Way::shared ? run_shared() : run(kNothing, kNothing);
  EXPECT_LT(error(), bound());
}

TEST_P(ExpertGemmTest, SeesPlantedMistakes) {
  const ExpertShape& s = GetParam().shape;
  if (GetParam().way == Way::shared || s.rows < 2) GTEST_SKIP() << "the plan is made and used in one call";
  const int64_t pairs = s.rows * s.k;
  std::vector<int32_t> place_of;
  run([&](ExpertMemory& memory) { place_of = memory.shift_places(pairs); },
      [&](ExpertMemory& memory) { to_device(place_of, memory.plan.place_of); });
  EXPECT_GT(error_of_mistake(), std::min(10 * bound(), 0.15));
  if (s.k > 1) {
    to_device(x_, memory_->x);
    run([&](ExpertMemory& memory) {  // weights are applied twice
      auto weights = from_device(memory.plan.weights, pairs);
      for (float& w : weights) w *= w;
      to_device(weights, memory.plan.weights);
    }, kNothing);
    auto weights = from_device(memory_->plan.weights, pairs);
    for (float& w : weights) w = std::sqrt(w);
    to_device(weights, memory_->plan.weights);
    EXPECT_GT(error_of_mistake(), std::min(10 * bound(), 0.15));
  }
  if (s.experts < 3 || GetParam().split == Split::one) return;
  to_device(x_, memory_->x);
  run([&](ExpertMemory& memory) {  // tiles multiply with the next expert's weights
    const int num_tiles = from_device(memory.plan.num_tiles, 1)[0];
    auto tiles = from_device(memory.plan.tiles, num_tiles);
    for (ExpertTile& tile : tiles) tile.expert = (tile.expert + 1) % s.experts;
    to_device(tiles, memory.plan.tiles);
  }, kNothing);
  EXPECT_GT(error_of_mistake(), std::min(10 * bound(), 0.15));
}

std::vector<GemmCase> gemm_cases() {
  std::vector<GemmCase> out;
  for (const Way way : {Way::wgmma_narrow, Way::wgmma_few, Way::wgmma_many, Way::tiles}) {
    out.push_back({way, {8, 2, 64, 64, 1}});
    out.push_back({way, {8, 2, 256, 128, 37}});
    out.push_back({way, {128, 8, 2048, 768, 40}});
    out.push_back({way, {60, 4, 200, 88, 300}});
    out.push_back({way, {4, 4, 328, 104, 259}, Split::even, true});
    out.push_back({way, {16, 2, 512, 256, 500}, Split::skewed});
    out.push_back({way, {32, 1, 128, 192, 700}, Split::one});
    out.push_back({way, {32, 4, 2880, 2880, 9, DType::bf16, GluActivation::swiglu_oai}, Split::even, true});
    out.push_back({way, {8, 2, 192, 320, 70, DType::f16, GluActivation::gelu_tanh}});
    out.push_back({way, {512, 10, 128, 64, 200}});
    out.push_back({way, {8, 2, 1032, 520, 130, DType::bf16, GluActivation::swiglu_oai}, Split::even, true});  // two warpgroups a tile
  }
  for (GemmCase c : std::vector<GemmCase>(out)) {
    if (c.way == Way::wgmma_many) c.rows_in_place = true, out.push_back(c);
  }
  for (const Way way : {Way::wgmma_narrow, Way::wgmma_few}) {
    GemmCase c = {way, {}, Split::even, true, false, true};
    for (const Split split : {Split::even, Split::skewed, Split::one}) {
      c.split = split;
      c.shape = {128, 8, 512, 768, way == Way::wgmma_narrow ? 40 : 300}, out.push_back(c);
      c.shape = {40, 4, 576, 1024, way == Way::wgmma_narrow ? 37 : 290, DType::f16, GluActivation::gelu_tanh}, out.push_back(c);
      c.shape = {32, 4, 320, 2880, way == Way::wgmma_narrow ? 33 : 200, DType::bf16, GluActivation::swiglu_oai}, out.push_back(c);
    }
  }
  out.push_back({Way::tiles, {8, 2, 192, 320, 70, DType::f32}});
  for (const int64_t rows : {9, 37, 120}) {  // 1 to 8 runs of 8 places, 2, 4 and 8 CTAs
    out.push_back({Way::wgmma_split, {14, 4, 576, 1096, rows}, Split::even, true});
    out.push_back({Way::wgmma_split, {3, 1, 2080, 200, rows, DType::f16, GluActivation::gelu_tanh}, Split::skewed});
    out.push_back({Way::wgmma_split, {5, 2, 256, 4104, rows, DType::bf16, GluActivation::swiglu_oai}, Split::one});
    for (const Fp8Scaling scaling : {Fp8Scaling::row, Fp8Scaling::block}) {
      out.push_back({Way::wgmma_split, {.experts = 4, .k = 2, .hidden = 512, .ffn = 2304, .rows = rows, .fp8 = true, .scaling = scaling}, Split::even, true});
    }
  }
  for (const Way way : {Way::wgmma_narrow, Way::wgmma_few, Way::wgmma_many, Way::tiles}) {
    for (const Fp8Scaling scaling : {Fp8Scaling::row, Fp8Scaling::block}) {
      for (const int64_t rows : {5, 40, 300, 600, 740}) {
        out.push_back({way, {.experts = 8, .k = 2, .hidden = 512, .ffn = 384, .rows = rows, .fp8 = true, .scaling = scaling}});
      }
      out.push_back({way, {.experts = 16, .k = 4, .hidden = 640, .ffn = 256, .rows = 500, .fp8 = true, .scaling = scaling}, Split::skewed, true});
      out.push_back({way, {.experts = 4, .k = 2, .hidden = 400, .ffn = 256, .rows = 33, .glu = GluActivation::gelu_tanh, .fp8 = true, .scaling = scaling}});
    }
  }
  for (const int64_t rows : {1, 2, 5, 8}) {
    for (const Fp8Scaling scaling : {Fp8Scaling::row, Fp8Scaling::block}) {
      out.push_back({Way::shared, {.experts = 8, .k = 2, .hidden = 512, .ffn = 384, .rows = rows, .fp8 = true, .scaling = scaling}});
      out.push_back({Way::shared, {.experts = 3, .k = 1, .hidden = 4096, .ffn = 256, .rows = rows, .fp8 = true, .scaling = scaling}});
      out.push_back({Way::shared, {.experts = 3, .k = 2, .hidden = 256, .ffn = 3328, .rows = rows, .fp8 = true, .scaling = scaling}});
    }
    // Few tiles, whose depth CTAs share.
    out.push_back({Way::shared, {50, 3, 320, 2784, rows}});
    out.push_back({Way::shared, {9, 1, 4096, 104, rows, DType::f16, GluActivation::gelu_tanh}, Split::even, true});
    out.push_back({Way::shared, {4, 2, 1032, 1096, rows, DType::bf16, GluActivation::swiglu_oai}, Split::even, true});
    out.push_back({Way::shared, {128, 8, 2048, 768, rows}});
    out.push_back({Way::shared, {32, 4, 2880, 2880, rows, DType::bf16, GluActivation::swiglu_oai}, Split::even, true});
    out.push_back({Way::shared, {8, 2, 64, 96, rows, DType::f16}});
    out.push_back({Way::shared, {60, 16, 320, 104, rows}, Split::even, true});
    out.push_back({Way::shared, {512, 10, 2048, 512, rows}});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Cases, ExpertGemmTest, testing::ValuesIn(gemm_cases()));

// Logits that only depend on the row, so that a row goes the same way in any batch.
TEST(GpuExpertsTest, ARowsBitsDoNotDependOnTheBatch) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  constexpr int64_t kRows = 1500, kHidden = 512;
  ExpertMemory memory(ExpertShape{16, 2, kHidden, 256, kRows});
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> logits(kRows * 16);
  std::vector<uint16_t> h(kRows * kHidden);
  for (float& x : logits) x = normal(random);
  for (uint16_t& x : h) x = f32_to_bf16(normal(random));
  to_device(logits, memory.logits);
  to_device(h, memory.h);
  std::vector<float> first;
  for (const int64_t rows : {int64_t{9}, int64_t{40}, int64_t{300}, kRows}) {
    for (const auto& [tile_places, crowded_places] : {std::pair{int{kNarrowTilePlaces}, 0}, {64, 0}, {192, 0}, {int{kNarrowTilePlaces}, 48}, {64, 128}}) {
      to_device(std::vector<float>(rows * kHidden, 0.0f), memory.x);
      plan_experts({.logits = memory.logits, .rows = rows, .rule = {.num_experts = 16, .k = 2}, .tile_places = tile_places, .crowded_places = crowded_places, .plan = memory.plan}, nullptr);
      spread_rows({memory.h, rows, kHidden * 2, memory.plan.place_of, 2, memory.rows}, nullptr);
      ExpertGemmCall call = {.weights = memory.gate_up, .x = memory.rows, .places = rows * 2, .plan = memory.plan, .tile_places = tile_places, .crowded_places = crowded_places, .plan_settled = true, .y = memory.act};
      expert_gemm(call, nullptr);
      call.weights = memory.down;
      call.x = memory.act;
      call.y = memory.rows;
      expert_gemm(call, nullptr);
      combine_experts({.sums = {memory.rows, memory.plan.place_of, memory.plan.weights, 2}, .rows = rows, .hidden = kHidden,
                       .y = memory.x}, nullptr);
      const auto x = from_device(memory.x, 9 * kHidden);
      if (first.empty()) first = x;
      ASSERT_EQ(std::memcmp(first.data(), x.data(), x.size() * 4), 0) << rows << " rows, tiles of " << tile_places << ", " << crowded_places;
    }
  }
}

// Where weights of shared experts are asked for before there is a plan, gate and up have the bits they had, layer behind layer.
TEST(GpuExpertsTest, CertainExpertsChangeNoBits) {
  if (!probe_cuda_device().ok() || !expert_gemm_takes({.rows = 64, .cols = 64})) GTEST_SKIP() << "no WGMMA";
  constexpr int kLayers = 4, kCertain = 2;
  // The last has few tiles, whose depth CTAs share.
  for (const ExpertShape& s : {ExpertShape{66, 8, 2048, 1408, 8}, ExpertShape{514, 12, 2048, 512, 8},
                               ExpertShape{.experts = 18, .k = 4, .hidden = 512, .ffn = 256, .rows = 8, .fp8 = true},
                               ExpertShape{6, 3, 2080, 104, 8}}) {
    ExpertMemory memory(s);
    std::mt19937 random(12);
    std::normal_distribution<float> normal(0, 1);
    const auto filled = [&](int64_t count, float scale) {
      std::vector<float> values(count);
      for (float& v : values) v = scale * normal(random);
      float* const out = memory.get<float>(count);
      to_device(values, out);
      return out;
    };
    const RouterRule rule = {.num_experts = s.experts - kCertain, .k = s.k - kCertain, .shared = kCertain};
    const float *const norm = filled(s.hidden, 1), *const router = filled(rule.num_experts * s.hidden, 0.05f), *const x = filled(kLayers * 8 * s.hidden, 1);
    uint8_t* const codes = s.fp8 ? memory.get<uint8_t>(8 * s.hidden) : nullptr;
    float* const scales = s.fp8 ? memory.get<float>(8) : nullptr;
    for (const int64_t rows : {1, 3, 8}) {
      const int64_t tiles = std::min<int64_t>(rows * rule.k, rule.num_experts) + kCertain, outputs = tiles * kSharedRows * s.ffn;
      auto* const act = memory.get<uint16_t>(kLayers * outputs);
      const auto run = [&](int certain) {
        must(cudaMemset(act, 0xff, kLayers * outputs * 2));
        for (int i = 0; i < kLayers; ++i) {
          norm_route({.x = x + i * 8 * s.hidden, .rows = rows, .hidden = s.hidden, .norm_weight = norm, .router = router, .rule = rule, .h = memory.h, .codes = codes, .code_scales = scales, .logits = memory.logits, .plan = memory.plan}, nullptr);
          expert_gemm({.weights = memory.gate_up, .x = s.fp8 ? static_cast<void*>(codes) : memory.h, .x_scales = scales, .places = tiles * kSharedRows, .plan = memory.plan, .tile_places = kSharedRows, .shared_rows = true, .few_tiles = tiles, .certain = certain, .y = act + i * outputs}, nullptr);
        }
        return from_device(act, kLayers * outputs);
      };
      const auto expected = run(0);
      EXPECT_NE(expected[0], 0xffff);
      EXPECT_EQ(run(kCertain), expected) << s.experts << " experts, " << rows << " rows";
      EXPECT_EQ(from_device(memory.plan.tiles, 1)[0].expert, rule.num_experts);
    }
  }
}

// The norm behind a layer adds what its experts left with the bits that a sum of its own has.
TEST(GpuExpertsTest, TheNextNormAddsWhatExpertsLeft) {
  if (!probe_cuda_device().ok()) GTEST_SKIP() << "no GPU";
  constexpr int kChoices = 5;
  for (const int64_t hidden : {64, 200, 1000, 1536, 2048, 2880, 4096, 5120, 7168, 10240}) {
    for (const int64_t rows : {1, 2, 31, 33, 500, 1100}) {
      ExpertMemory memory(ExpertShape{8, kChoices, hidden, 64, rows});
      std::mt19937 random(static_cast<unsigned>(hidden + rows));
      std::normal_distribution<float> normal(0, 1);
      std::vector<float> x(rows * hidden), weights(rows * kChoices), norm(hidden);
      std::vector<uint16_t> results(rows * kChoices * hidden);
      std::vector<int32_t> place_of(rows * kChoices);
      for (auto* const values : {&x, &weights, &norm}) {
        for (float& v : *values) v = normal(random);
      }
      for (uint16_t& v : results) v = f32_to_bf16(normal(random));
      for (size_t i = 0; i < place_of.size(); ++i) place_of[i] = static_cast<int32_t>(i);
      std::shuffle(place_of.begin(), place_of.end(), random);
      to_device(weights, memory.plan.weights);
      to_device(place_of, memory.plan.place_of);
      to_device(results, memory.rows);
      float* const device_norm = memory.get<float>(hidden);
      to_device(norm, device_norm);
      const ExpertSums sums = {memory.rows, memory.plan.place_of, memory.plan.weights, kChoices};
      const RmsNormCall call = {.x = memory.x, .rows = rows, .cols = hidden, .weight = device_norm, .out = memory.h};
      to_device(x, memory.x);
      combine_experts({.sums = sums, .rows = rows, .hidden = hidden, .y = memory.x}, nullptr);
      rms_norm(call, nullptr);
      const auto x_apart = from_device(memory.x, x.size());
      const auto h_apart = from_device(static_cast<const uint16_t*>(memory.h), x.size());
      for (const bool settled : {false, true}) {
        to_device(x, memory.x);
        ExpertSums of_layer = sums;
        of_layer.settled = settled;
        norm_experts({call, of_layer}, nullptr);
        EXPECT_EQ(x_apart, from_device(memory.x, x.size())) << hidden << " columns, " << rows << " rows";
        const auto h = from_device(static_cast<const uint16_t*>(memory.h), x.size());
        EXPECT_EQ(h_apart, h) << hidden << " columns, " << rows << " rows";
      }
      ASSERT_NE(x_apart, x);
    }
  }
}

}  // namespace
}  // namespace warpweave::gpu
