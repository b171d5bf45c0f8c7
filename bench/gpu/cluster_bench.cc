// GEMMs of 17 to 256 rows of models whose hidden rows are narrow, each between norms as in a decode step: cuBLASLt, what the
// server takes otherwise, and every plan of cluster_gemm.
//
//   cluster_bench [ROWS ...]      default: 64 128 256
//
// us of a norm and a GEMM, which begin as early as their kernels may; graphs by turns in random order, weights not in the L2 cache,
// the median of eleven. Results are first held to cuBLASLt's.
#include <fmt/format.h>

#include <cmath>
#include <functional>

#include "cuda_bench.h"
#include "ops/cuda/cluster_gemm.h"
#include "ops/cuda/gemm.h"
#include "ops/cuda/wide_gemm.h"

using namespace warpweave;
using namespace warpweave::gpu;
using bench::check;
using bench::take;

namespace {

constexpr int64_t kMaxRows = 256, kHidden = 2048, kWidest = 160000, kDeepest = 4096, kWeights = int64_t{1} << 29;

struct Shape {
  const char* name;
  int64_t n, k;
  DType y_dtype;
  bool residual;  // added to the rows that the norm reads
};
constexpr Shape kShapes[] = {{"MLA in", 3648, 2048, DType::bf16, false},   {"MLA o", 2048, 2048, DType::f32, true},
                             {"GDN in", 12352, 2048, DType::bf16, false},  {"GDN out", 2048, 4096, DType::f32, true},
                             {"gated qkv", 9216, 2048, DType::bf16, false},   {"qkv", 5120, 2048, DType::bf16, false}, {"router 64", 64, 2048, DType::f32, false},
                             {"router 512", 512, 2048, DType::f32, false}, {"head", 102400, 2048, DType::f32, false}};

struct Way {
  std::string name;
  std::function<void(int)> run;  // of copy i of the weights
  CudaGraphExec graph = {};
  std::vector<float> us = {};
};

class Bench {
 public:
  Bench() : stream_(take(create_stream())), library_(take(GpuGemm::create())), served_(take(GpuGemm::create())) {
    library_->set_library_only();
    weights_ = bench::random_matrix(kWeights / 2, 1 / 64.0f);
    x_ = bench::random_matrix(kMaxRows * kDeepest, 1);
    for (auto& [buffer, count] : {std::pair{&y_, kMaxRows * kWidest}, {&residual_, kMaxRows * kHidden}, {&h_, kMaxRows * kHidden},
                                  {&partials_, kMaxRows * kWidest}, {&flush_, int64_t{1} << 26}}) {
      *buffer = take(DeviceBuffer::allocate(count * 4, "a benchmark"));
      check(cudaMemset(buffer->as<void>(), 0, buffer->size_bytes()));
    }
    const std::vector<float> ones(kHidden, 1);
    ones_ = take(DeviceBuffer::allocate(kHidden * 4, "a benchmark"));
    check(cudaMemcpy(ones_.as<void>(), ones.data(), ones.size() * 4, cudaMemcpyHostToDevice));
  }

  void measure(const Shape& shape, int64_t rows) {
    shape_ = &shape, rows_ = rows;
    copies_ = static_cast<int>(std::min<int64_t>(16, kWeights / (shape.n * shape.k * 2)));
    library_->start_tuning();
    for (int i = 0; i < 48; ++i) run(*library_, i);
    library_->stop_tuning();
    const std::vector<float> wanted = result([&] { run(*library_, 0); });
    std::vector<Way> ways;
    ways.push_back({"norm alone", [this](int) { norm({}); }});
    ways.push_back({"lib", [this](int i) { norm({}), run(*library_, i); }});
    if (rows <= kMostPartialRows && shape.residual) ways.push_back({"sums", [this](int i) { leave_sums(i); }});
    GpuLinear linear;
    const GemmCall call = call_of(0, linear);
    for (const ClusterPlan& plan : all_cluster_plans(call)) {
      if (shape.n > 20000 && plan.splits > 1) continue;
      const auto run_plan = [this, plan](int i) {
        GpuLinear of_copy;
        cluster_gemm(call_of(i, of_copy), plan, stream_.get());
      };
      const double error = error_of(wanted, result([&] { run_plan(0); }));
      ways.push_back({fmt::format("{}x{}/{}{}{}", plan.rows, plan.tile, plan.splits, plan == cluster_plan(call) ? "*" : "",
                                  error < 0.04 ? "" : fmt::format(" WRONG {:.2g}", error)),
                      [this, run_plan](int i) { norm({}), run_plan(i); }});
    }
    if (wide_gemm_takes(call) && shape.n <= 20000) {
      for (const WidePlan& plan : all_wide_plans(call)) {
        const auto run_plan = [this, plan](int i) {
          GpuLinear of_copy;
          wide_gemm(call_of(i, of_copy), plan, stream_.get());
        };
        ways.push_back({fmt::format("wide {}{}", plan.tile_columns, plan.share == WideShare::weights ? "w" : "i"),
                        [this, run_plan](int i) { norm({}), run_plan(i); }});
      }
    }
    time(ways);
    std::sort(ways.begin() + 2, ways.end(), [](const Way& a, const Way& b) { return a.us[0] < b.us[0]; });
    fmt::print("{} {}:", rows, shape.name);
    for (size_t i = 0; i < ways.size(); ++i) {
      if (i < 8 || ways[i].name.find_first_of("*Ws") != std::string::npos) fmt::print(" | {} {:.1f}", ways[i].name, ways[i].us[0]);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }

 private:
  GemmCall call_of(int copy, GpuLinear& linear) const {
    const Shape& s = *shape_;
    linear.weight = weights_.memory.as<uint16_t>() + copy % copies_ * s.n * s.k;
    linear.in_features = s.k;
    linear.out_features = s.n;
    return {.linear = &linear, .x = s.residual ? x_.memory.as<void>() : h_.as<void>(), .rows = rows_,
            .y = s.residual ? residual_.as<void>() : y_.as<void>(), .y_dtype = s.y_dtype, .y_stride = s.n, .accumulate = s.residual};
  }
  void run(GpuGemm& gemm, int copy) {
    GpuLinear linear;
    check(gemm.run(call_of(copy, linear), stream_.get()));
  }
  void norm(const PartialSums& sums) {
    rms_norm({.x = residual_.as<float>(), .partials = sums, .rows = rows_, .cols = kHidden, .weight = ones_.as<float>(),
              .eps = 1e-5f, .out = h_.as<void>(), .out_dtype = DType::bf16},
             stream_.get());
  }
  void leave_sums(int copy) {
    GpuLinear linear;
    GemmCall call = call_of(copy, linear);
    call.accumulate = false;
    const int splits = served_->partial_splits(call);
    if (splits == 0) return norm({}), run(*served_, copy);
    call.partials = partials_.as<float>();
    check(served_->run(call, stream_.get()));
    norm({partials_.as<float>(), splits, rows_ * shape_->n});
  }
  template <typename Run>
  std::vector<float> result(const Run& run_once) {
    const int64_t count = rows_ * shape_->n;
    check(cudaMemcpy(h_.as<void>(), x_.memory.as<void>(), h_.size_bytes() / 2, cudaMemcpyDeviceToDevice));
    check(cudaMemset(residual_.as<void>(), 0, residual_.size_bytes()));
    check(cudaDeviceSynchronize());
    run_once();
    check(cudaStreamSynchronize(stream_.get()));
    std::vector<float> out(count);
    const void* const y = shape_->residual ? residual_.as<void>() : y_.as<void>();
    if (shape_->y_dtype == DType::f32) {
      check(cudaMemcpy(out.data(), y, count * 4, cudaMemcpyDeviceToHost));
    } else {
      std::vector<uint16_t> halves(count);
      check(cudaMemcpy(halves.data(), y, count * 2, cudaMemcpyDeviceToHost));
      for (int64_t i = 0; i < count; ++i) out[i] = bf16_to_f32(halves[i]);
    }
    check(cudaMemset(residual_.as<void>(), 0, residual_.size_bytes()));
    return out;
  }
  static double error_of(const std::vector<float>& wanted, const std::vector<float>& y) {
    double worst = 0, size = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      const double error = std::abs(wanted[i] - y[i]);
      worst = error <= worst ? worst : error;
      if (std::isnan(y[i])) return NAN;
      size += double{wanted[i]} * wanted[i];
    }
    return worst / std::sqrt(size / static_cast<double>(y.size()));
  }
  void time(std::vector<Way>& ways) {
    constexpr int kRounds = 11, kLaunches = 16;
    for (Way& way : ways) {
      way.run(0);
      check(cudaStreamSynchronize(stream_.get()));
      way.graph = bench::graph_of(stream_.get(), [&] {
        for (int i = 0; i < kLaunches; ++i) way.run(i);
      });
    }
    CudaEvent begin, end;
    check(cudaEventCreate(begin.out()));
    check(cudaEventCreate(end.out()));
    std::vector<size_t> order(ways.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::mt19937 random(std::random_device{}());
    for (int round = 0; round < kRounds; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) {
        float ms = 0;
        check(cudaMemsetAsync(flush_.as<void>(), round, flush_.size_bytes(), stream_.get()));
        check(cudaEventRecord(begin.get(), stream_.get()));
        check(cudaGraphLaunch(ways[i].graph.get(), stream_.get()));
        check(cudaEventRecord(end.get(), stream_.get()));
        check(cudaEventSynchronize(end.get()));
        check(cudaEventElapsedTime(&ms, begin.get(), end.get()));
        ways[i].us.push_back(ms * 1e3f / kLaunches);
      }
    }
    for (Way& way : ways) {
      std::sort(way.us.begin(), way.us.end());
      way.us = {way.us[kRounds / 2]};
    }
  }

  CudaStream stream_;
  std::unique_ptr<GpuGemm> library_, served_;
  bench::Matrix weights_, x_;
  DeviceBuffer y_, residual_, h_, partials_, flush_, ones_;
  const Shape* shape_ = nullptr;
  int64_t rows_ = 0;
  int copies_ = 1;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<int64_t> row_counts;
  for (int i = 1; i < argc; ++i) row_counts.push_back(std::clamp<int64_t>(std::atoi(argv[i]), 17, kMaxRows));
  if (row_counts.empty()) row_counts = {64, 128, 256};
  Bench bench;
  for (const int64_t rows : row_counts) {
    for (const Shape& shape : kShapes) bench.measure(shape, rows);
  }
  return 0;
}
