// The kernel text compiles for GPUs that this machine need not have: as CUDA with nvcc, as HIP with a
// clang that knows the device. Skips, saying so, where the compiler is missing.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <string>

#include "attention/tile/tile_spec.h"
#include "base/testing/compiler_run.h"
#include "base/testing/temporary_folder.h"

namespace warpweave::tile {
namespace {

struct Build {
  std::string name;
  LaneKind lanes;
  TileShape shape;
  int rows;
  std::string prelude = {};  // declarations that the real compiler would bring
};

TileShape shape(int dim, KvFormat format, DType dtype) {
  TileShape shape;
  shape.head_dim = shape.v_head_dim = dim;
  shape.kv_format = format;
  shape.q_dtype = shape.out_dtype = dtype;
  return shape;
}

// `command` with the source file in the place of "SOURCE".
void expect_compiles(const Build& build, const std::string& suffix, const std::string& command) {
  auto spec = choose_tile(build.shape, build.rows,
                          {.lanes = build.lanes, .local_memory_bytes = size_t{160} << 10,
                           .intel_shuffle = build.lanes == LaneKind::dpas});
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  spec->aligned_rows = build.lanes == LaneKind::mma;
  const TemporaryFolder folder;
  const std::string file = folder / ("tile" + suffix);
  std::ofstream(file) << build.prelude << tile_source(spec->lanes);
  std::string options;
  for (const std::string& define : tile_defines(*spec)) options += " -D" + define;
  const CompilerRun outcome = run_compiler(command + options + " -o " + file + ".out " + file);
  EXPECT_EQ(outcome.status, 0) << build.name << "\n" << outcome.text;
  EXPECT_FALSE(std::regex_search(outcome.text, std::regex("[1-9][0-9]* bytes spill")))
      << build.name << "\n" << outcome.text;
}

TEST(TileCompile, Cuda) {
  const std::string nvcc = find_nvcc();
  if (nvcc.empty()) GTEST_SKIP() << "no nvcc here: the CUDA dialect is not compiled";
  const Build mma_prefill = {"bf16 prefill", LaneKind::mma,
                             shape(128, KvFormat::bf16, DType::bf16), 1 << 20};
  const Build mma_fp8 = {"fp8 decode", LaneKind::mma, shape(64, KvFormat::fp8_e4m3, DType::bf16), 4};
  const Build mma_fp4 = {"fp4 decode", LaneKind::mma, shape(64, KvFormat::fp4_e2m1, DType::f16), 4};
  TileShape latent = shape(576, KvFormat::bf16, DType::bf16);
  latent.v_head_dim = 512;
  latent.latent = true;
  const Build mma_latent = {"latent prompts", LaneKind::mma, latent, 1 << 20};
  const Build mma_latent_decode = {"latent decode", LaneKind::mma, latent, 16};
  latent.kv_format = KvFormat::fp4_mla;
  const Build mma_latent_fp4 = {"latent fp4 decode", LaneKind::mma, latent, 16};
  const Build plain = {"f32 lanes", LaneKind::threads, shape(64, KvFormat::f32, DType::f32), 1 << 20};
  const std::string command = nvcc + " -std=c++17 -O3 --cubin -Xptxas -v -arch=";
  expect_compiles(mma_prefill, ".cu", command + "sm_80");
  expect_compiles(mma_prefill, ".cu", command + "sm_90");
  expect_compiles(mma_fp8, ".cu", command + "sm_80");
  expect_compiles(mma_fp4, ".cu", command + "sm_90");
  expect_compiles(mma_latent, ".cu", command + "sm_90");
  expect_compiles(mma_latent_decode, ".cu", command + "sm_90");
  expect_compiles(mma_latent_fp4, ".cu", command + "sm_90");
  expect_compiles(plain, ".cu", command + "sm_75");
}

// Intel's matrix units, with any clang: their builtins are declared here, as Intel's driver does.
TEST(TileCompile, IntelMatrixUnits) {
  if (run_compiler("clang --version").status != 0) GTEST_SKIP() << "no clang here: dpas.cl is not compiled";
  const Build build = {"bf16 on Intel matrix units", LaneKind::dpas,
                       shape(128, KvFormat::bf16, DType::f32), 1 << 20,
                       "float8 intel_sub_group_bf16_bf16_matrix_mad_k16(short8, int8, float8);\n"
                       "float intel_sub_group_shuffle_xor(float, uint);\n"};
  expect_compiles(build, ".cl",
                  "clang -x cl -cl-std=CL1.2 -Xclang -finclude-default-header -O2 -S -emit-llvm "
                  "--target=spir64");
}

class TileCompileHip : public testing::TestWithParam<const char*> {};

TEST_P(TileCompileHip, Compiles) {
  const std::string arch = GetParam(), clang = find_hip_clang(arch);
  if (clang.empty()) {
    GTEST_SKIP() << "no clang here that knows " << arch << ": the HIP dialect is not compiled for it";
  }
  const Build build = {"bf16 on " + arch, LaneKind::threads, shape(128, KvFormat::bf16, DType::bf16),
                       1 << 20};
  // To assembly: Debian's clang has the AMD code generator, but not ROCm's linker wrappers.
  expect_compiles(build, ".hip",
                  clang + " -x hip -std=c++17 -nogpuinc -nogpulib --cuda-device-only -O3 -S "
                          "--offload-arch=" + arch);
}

INSTANTIATE_TEST_SUITE_P(Devices, TileCompileHip, testing::Values("gfx90a", "gfx942"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace warpweave::tile
