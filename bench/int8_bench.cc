// GEMMs of compressed GGUF panels on a CPU with AMX, three ways: as integers by VNNI, as integers on AMX tiles, and
// widened to bf16 for AMX. What src/ops/linear.cc chooses among.
//
//   int8_bench [threads] [rows,rows,...]      (default: all CPUs; 1,4,8,16,64,512)
//
// One weight of 4096 inputs and 14336 outputs, in as many copies as make 256 MB, one after the other, so that few rows
// read from memory. Prints the fastest of 5: GB/s of weights and billions of multiply-adds a second, times two.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/threads.h"
#include "device/cpu/cpu_info.h"
#include "ops/aligned_buffer.h"
#include "ops/kernels/linear_kernels.h"
#include "ops/linear_pack.h"

namespace warpweave {
namespace {

constexpr int64_t kInputs = 4096, kOutputs = 14336, kPanels = kOutputs / kPanelCols, kTilePanels = 8;
constexpr size_t kStreamBytes = size_t{256} << 20;
enum class Way { vnni, tiles, widened };

struct Format {
  DType dtype;
  Int8TileFn Int8Kernels::* product;
  DequantizeFn DequantizeKernels::* dequantize;
};

struct Bench {
  Format format;
  AlignedBuffer weights;  // copies of all panels
  int64_t copies;
  std::vector<unsigned char> x_int8;
  std::vector<uint16_t> x_bf16;
  int rows;

  int64_t panel_bytes() const { return static_cast<int64_t>(panel_size_bytes(format.dtype, kInputs)); }
};

void multiply_as_integers(const Bench& b, const Int8Kernels& kernels, const unsigned char* weights, float* acc) {
  (kernels.*b.format.product)({.x = b.x_int8.data(),
                               .x_stride_bytes = int8_row_bytes(kInputs),
                               .rows = b.rows,
                               .k = kInputs,
                               .weights = weights,
                               .panel_bytes = b.panel_bytes(),
                               .panels = kTilePanels,
                               .acc = acc,
                               .acc_stride = kTilePanels * kPanelCols});
}

// As PackedLinear does it, in ranges of k.
void multiply_widened(const Bench& b, const unsigned char* weights, float* acc) {
  constexpr int kRange = 512;
  thread_local AlignedBuffer wide = AlignedBuffer::allocate(kTilePanels * kRange * kPanelCols * 2);
  auto* const expanded = reinterpret_cast<unsigned char*>(wide.data());
  const LinearKernels& kernels = kLinearAmxBf16;
  GemmTile tile{.x_stride = kInputs, .rows = b.rows, .k = kRange, .weights = expanded, .panel_bytes = kRange * kPanelCols * 2,
                .panels = kTilePanels, .acc = acc, .acc_stride = kTilePanels * kPanelCols};
  for (int64_t k = 0; k < kInputs; k += kRange) {
    for (int64_t p = 0; p < kTilePanels; ++p) {
      (kernels.to_bf16.*b.format.dequantize)(weights + p * b.panel_bytes(), k, kRange, expanded + p * tile.panel_bytes);
    }
    tile.x = b.x_bf16.data() + k;
    tile.load_acc = k > 0;
    kernels.bf16_dot(tile);
  }
}

double seconds_of(const Bench& b, Way way, ThreadTeam& team) {
  const int64_t jobs = b.copies * kPanels / kTilePanels;
  double best = 1e9;
  for (int sample = 0; sample < 5; ++sample) {
    const auto start = std::chrono::steady_clock::now();
    team.parallel_for(jobs, 1, [&](int64_t begin, int64_t end) {
      thread_local AlignedBuffer acc = AlignedBuffer::allocate(512 * kTilePanels * kPanelCols * sizeof(float));
      for (int64_t job = begin; job < end; ++job) {
        const auto* weights = reinterpret_cast<const unsigned char*>(b.weights.data()) + job * kTilePanels * b.panel_bytes();
        auto* const out = reinterpret_cast<float*>(acc.data());
        if (way == Way::widened) {
          multiply_widened(b, weights, out);
        } else {
          multiply_as_integers(b, way == Way::vnni ? kInt8Vnni : kInt8Amx, weights, out);
        }
      }
    });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

Bench make_bench(const Format& format, int rows) {
  Bench b{.format = format, .weights = {}, .copies = 1, .x_int8 = {}, .x_bf16 = {}, .rows = rows};
  const size_t bytes = b.panel_bytes() * kPanels;
  if (rows <= 16) b.copies = static_cast<int64_t>((kStreamBytes + bytes - 1) / bytes);
  b.weights = AlignedBuffer::allocate(bytes * b.copies);
  // Every byte is a code or a part of a small positive f16: results are finite and no product is denormal.
  auto* const at = reinterpret_cast<unsigned char*>(b.weights.data());
  for (size_t i = 0; i < b.weights.size(); ++i) at[i] = 0x11;
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> row(kInputs);
  b.x_int8.resize(rows * int8_row_bytes(kInputs));
  b.x_bf16.assign(rows * kInputs, 0x3f80);
  for (int r = 0; r < rows; ++r) {
    for (float& value : row) value = normal(rng);
    kInt8Scalar.quantize(row.data(), kInputs, &b.x_int8[r * int8_row_bytes(kInputs)]);
  }
  return b;
}

int run(int threads, const std::vector<int>& rows) {
  if (!cpu_info().amx_int8) {
    std::fprintf(stderr, "int8_bench: this CPU (%s) has no AMX with int8, which is what is compared\n", cpu_info().model_name.c_str());
    return 2;
  }
  ThreadTeam team(threads);
  std::printf("%s, %d threads\n%-6s %5s  %22s %22s %22s\n", cpu_info().model_name.c_str(), threads, "format", "rows", "VNNI GB/s Gop/s",
              "AMX int8", "AMX bf16, widened");
  const Format formats[] = {{DType::q4_k, &Int8Kernels::q4_k, &DequantizeKernels::q4_k},
                            {DType::q4_0, &Int8Kernels::q4_0, &DequantizeKernels::q4_0},
                            {DType::q8_0, &Int8Kernels::q8_0, &DequantizeKernels::q8_0},
                            {DType::q6_k, &Int8Kernels::q6_k, &DequantizeKernels::q6_k}};
  for (const Format& format : formats) {
    for (const int count : rows) {
      const Bench b = make_bench(format, count);
      std::printf("%-6s %5d ", std::string(dtype_info(format.dtype).name).c_str(), count);
      for (const Way way : {Way::vnni, Way::tiles, Way::widened}) {
        const double s = seconds_of(b, way, team);
        std::printf(" %10.1f %11.0f", b.weights.size() / s / 1e9, 2.0 * kInputs * kOutputs * b.copies * count / s / 1e9);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace warpweave

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : warpweave::cpu_info().cpus;
  std::vector<int> rows;
  std::stringstream list(argc > 2 ? argv[2] : "1,4,8,16,64,512");
  for (std::string word; std::getline(list, word, ',');) rows.push_back(std::atoi(word.c_str()));
  if (threads < 1 || rows.empty() || *std::min_element(rows.begin(), rows.end()) < 1 || *std::max_element(rows.begin(), rows.end()) > 512) {
    std::fprintf(stderr, "int8_bench [threads >= 1] [rows of 1 to 512, by commas]\n");
    return 2;
  }
  return warpweave::run(threads, rows);
}
