// The kernel text compiles for GPUs that this machine need not have: as CUDA with nvcc, as HIP with a clang that knows the
// device. Skips, saying so, where the compiler is missing.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <string>

#include "base/testing/compiler_run.h"
#include "base/testing/temporary_folder.h"
#include "linear/tile/tile_spec.h"

namespace warpweave::linear_tile {
namespace {

constexpr size_t kAmdLocalBytes = size_t{64} << 10, kNvidiaLocalBytes = size_t{160} << 10;

constexpr LinearAttnShape kShapes[] = {{LinearAttnKind::gdn, 16, 32, 128, 128},
                                       {LinearAttnKind::kda, 16, 16, 128, 128},
                                       {LinearAttnKind::gdn, 1, 2, 48, 80},
                                       {LinearAttnKind::kda, 1, 1, 256, 256}};

// `command` on the source for each shape, in a file with this suffix.
void expect_compiles(const std::string& suffix, const std::string& command, size_t local_bytes) {
  for (const LinearAttnShape& shape : kShapes) {
    const auto spec =
        choose_tile(shape, {.lanes = tile::LaneKind::threads, .local_memory_bytes = local_bytes});
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    const TemporaryFolder folder;
    const std::string file = folder / ("linear" + suffix);
    std::ofstream(file) << tile_source();
    std::string options;
    for (const std::string& define : tile_defines(*spec)) options += " -D" + define;
    const CompilerRun run = run_compiler(command + options + " -o " + file + ".out " + file);
    EXPECT_EQ(run.status, 0) << options << "\n"
                             << run.text;
    EXPECT_FALSE(std::regex_search(run.text, std::regex("[1-9][0-9]* bytes spill"))) << options << "\n"
                                                                                     << run.text;
  }
}

TEST(LinearTileCompile, Cuda) {
  const std::string nvcc = find_nvcc();
  if (nvcc.empty()) GTEST_SKIP() << "no nvcc here: the CUDA dialect is not compiled";
  for (const char* arch : {"sm_80", "sm_90"}) {
    expect_compiles(".cu", nvcc + " -std=c++17 -O3 --cubin -Xptxas -v -arch=" + arch, kNvidiaLocalBytes);
  }
}

class LinearTileCompileHip : public testing::TestWithParam<const char*> {};

TEST_P(LinearTileCompileHip, Compiles) {
  const std::string arch = GetParam(), clang = find_hip_clang(arch);
  if (clang.empty()) {
    GTEST_SKIP() << "no clang here that knows " << arch << ": the HIP dialect is not compiled for it";
  }
  // To assembly: Debian's clang has the AMD code generator, but not ROCm's linker wrappers.
  expect_compiles(".hip", clang + " -x hip -std=c++17 -nogpuinc -nogpulib --cuda-device-only -O3 -S --offload-arch=" + arch,
                  kAmdLocalBytes);
}

INSTANTIATE_TEST_SUITE_P(Devices, LinearTileCompileHip, testing::Values("gfx90a", "gfx942"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace warpweave::linear_tile
