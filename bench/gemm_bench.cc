// GEMMs of the forward pass beside what the machine can do: GFLOP/s as a share of the
// measured multiply-add peak, and GB/s of weights as a share of the measured read bandwidth.
//
//   gemm_bench [--threads N] [--rows 1,8,512] [--tier avx512_bf16] [--dtype bf16] [--best 40]
//
// Small row counts stream weights larger than the caches (a chain of equal linears of >= 256 MB),
// as a decode step does. Medians of 7, or with --best N the
// fastest of N, for a machine that others use too. Needs AVX-512 for the peaks.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/float16.h"
#include "device/cpu/cpu_info.h"
#include "machine_peak.h"
#include "ops/aligned_buffer.h"
#include "ops/linear.h"

namespace warpweave {
namespace {

int sample_count = 7;
bool take_fastest = false;
constexpr size_t kStreamBytes = size_t{256} << 20;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <typename Body>
double sampled_seconds(Body body) {
  std::vector<double> samples;
  for (int i = 0; i < sample_count; ++i) {
    const double start = seconds();
    body();
    samples.push_back(seconds() - start);
  }
  std::sort(samples.begin(), samples.end());
  return samples[take_fastest ? 0 : samples.size() / 2];
}

struct Peaks {
  double f32_flops = 0, bf16_flops = 0, read_bytes = 0;  // per second
};

Peaks measure_peaks(ThreadTeam& team) {
  Peaks peaks;
  if (!cpu_info().avx512) return peaks;
  constexpr int64_t kIterations = 1'000'000;
  const auto rate = [&](int64_t (*run)(int64_t)) {
    int64_t ops = 0;
    const double s = sampled_seconds([&] {
      team.run([&](int member, int) {
        const int64_t n = run(kIterations);
        if (member == 0) ops = n;
      });
    });
    return 2.0 * static_cast<double>(ops) * team.size() / s;
  };
  peaks.f32_flops = rate(run_f32_fma);
  if (cpu_info().avx512_bf16) peaks.bf16_flops = rate(run_bf16_dot);
  AlignedBuffer memory = AlignedBuffer::allocate(2 * kStreamBytes);
  std::memset(memory.data(), 0, memory.size());
  const size_t share = memory.size() / team.size() / 512 * 512;
  const double s = sampled_seconds([&] {
    team.run([&](int member, int) { (void)read_memory(memory.data() + member * share, share); });
  });
  peaks.read_bytes = static_cast<double>(share * team.size()) / s;
  return peaks;
}

struct Case {
  DType dtype;
  ComputeMode mode;
  int64_t n, k, rows;
};

// Any bytes do as block formats; plain types get small finite values.
std::vector<unsigned char> random_weight(const Case& c) {
  const DTypeInfo& info = dtype_info(c.dtype);
  std::vector<unsigned char> bytes(c.n * c.k / info.block_elements * info.block_bytes);
  std::mt19937 rng(1);
  if (info.block_elements > 1) return bytes;
  for (int64_t i = 0; i < c.n * c.k; ++i) {
    const float value = static_cast<float>(static_cast<int>(rng() % 201) - 100) * 1e-3f;
    const uint16_t bits = c.dtype == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
    if (c.dtype == DType::f32) {
      std::memcpy(&bytes[i * 4], &value, 4);
    } else {
      std::memcpy(&bytes[i * 2], &bits, 2);
    }
  }
  return bytes;
}

void run_case(const Case& c, CpuTier tier, const Peaks& peaks, ThreadTeam& team) {
  const std::vector<unsigned char> bytes = random_weight(c);
  LinearPart part;
  part.weight = {.data = bytes.data(), .dtype = c.dtype, .rank = 2, .shape = {c.n, c.k}};
  const int copies =
      c.rows <= 64 ? static_cast<int>(std::max<size_t>(2, kStreamBytes / bytes.size())) : 1;
  std::vector<PackedLinear> linears;
  for (int i = 0; i < copies; ++i) {
    auto linear = PackedLinear::pack({&part, 1}, {.compute = c.mode, .tier = tier}, team);
    if (!linear.ok()) {
      std::printf("%s\n", linear.status().message().c_str());
      return;
    }
    linears.push_back(std::move(linear).value());
  }
  const DType in = linears[0].preferred_input();
  std::vector<float> x(c.rows * c.k, 0.01f), y(c.rows * c.n);
  std::vector<uint16_t> x16(c.rows * c.k, f32_to_bf16(0.01f));
  LinearInput input;
  input.data = in == DType::f32 ? static_cast<const void*>(x.data()) : x16.data();
  input.dtype = in;
  input.rows = c.rows;
  input.row_stride = c.k;
  // The fastest single GEMM, or the median of whole passes over the chain.
  size_t next = 0;
  const int passes = take_fastest ? 1 : copies > 1 ? copies : 4;
  const double s = sampled_seconds([&] {
                     for (int i = 0; i < passes; ++i) {
                       const PackedLinear& linear = linears[next++ % linears.size()];
                       linear.forward(input, {.data = y.data(), .row_stride = c.n}, team);
                     }
                   }) / passes;
  const double flops = 2.0 * static_cast<double>(c.rows * c.n * c.k) / s;
  const double rate = static_cast<double>(linears[0].size_bytes()) / s;
  const double peak = in == DType::bf16 ? peaks.bf16_flops : peaks.f32_flops;
  std::printf("%-5s %-4s %6ld %6ld %5ld %10.1f %9.1f %6.0f%% %8.1f %6.0f%%\n",
              dtype_info(c.dtype).name.data(), c.mode == ComputeMode::bf16 ? "bf16" : "f32",
              static_cast<long>(c.n), static_cast<long>(c.k), static_cast<long>(c.rows), s * 1e6,
              flops / 1e9, peak > 0 ? 100 * flops / peak : 0.0, rate / 1e9,
              peaks.read_bytes > 0 ? 100 * rate / peaks.read_bytes : 0.0);
}

int run(int argc, char** argv) {
  int threads = available_cpus();
  CpuTier tier = cpu_info().tier;
  std::vector<int64_t> row_counts = {1, 2, 4, 8, 16, 512};
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--threads") threads = std::stoi(value);
    if (flag == "--dtype") only = value;
    if (flag == "--best") {
      sample_count = std::max(1, std::stoi(value));
      take_fastest = true;
    }
    if (flag == "--rows") {
      row_counts.clear();
      std::stringstream list(value);
      for (std::string item; std::getline(list, item, ',');) row_counts.push_back(std::stoll(item));
    }
    if (flag == "--tier") {
      for (int t = 0; t <= static_cast<int>(cpu_info().tier); ++t) {
        if (cpu_tier_name(static_cast<CpuTier>(t)) == value) tier = static_cast<CpuTier>(t);
      }
    }
  }
  ThreadTeam team(threads);
  const Peaks peaks = measure_peaks(team);
  std::printf("%s, tier %s, %d threads\n", cpu_info().model_name.c_str(),
              cpu_tier_name(tier).data(), threads);
  std::printf("peak: f32 %.1f GFLOP/s, bf16 %.1f GFLOP/s, read %.1f GB/s\n",
              peaks.f32_flops / 1e9, peaks.bf16_flops / 1e9, peaks.read_bytes / 1e9);
  std::printf("dtype mode      n      k  rows         us   GFLOP/s  share     GB/s  share\n");
  const std::pair<int64_t, int64_t> shapes[] = {
      {768, 768}, {1280, 768}, {4096, 768}, {768, 2048}, {32000, 768}};
  const std::pair<DType, ComputeMode> kinds[] = {
      {DType::f32, ComputeMode::f32},   {DType::bf16, ComputeMode::bf16},
      {DType::bf16, ComputeMode::f32},  {DType::f16, ComputeMode::f32},
      {DType::q8_0, ComputeMode::f32},  {DType::q4_1, ComputeMode::f32},
      {DType::q4_k, ComputeMode::f32},  {DType::q6_k, ComputeMode::f32},
      {DType::q4_1, ComputeMode::bf16}};
  for (const auto& [dtype, mode] : kinds) {
    if (!only.empty() && dtype_info(dtype).name != only) continue;
    for (const auto& [n, k] : shapes) {
      for (const int64_t rows : row_counts) run_case({dtype, mode, n, k, rows}, tier, peaks, team);
    }
  }
  return 0;
}

}  // namespace
}  // namespace warpweave

int main(int argc, char** argv) { return warpweave::run(argc, argv); }
