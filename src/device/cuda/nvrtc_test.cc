// Compiling needs the library, not a GPU; running needs both.
#include "device/cuda/nvrtc.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/testing/temporary_folder.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/memory.h"
#include "device/cuda/nvrtc_program.h"

namespace warpweave {
namespace {

NvrtcSource scale_source(const char* factor) {
  return {.text = "struct Args { float* x; int n; };\n"
                  "extern \"C\" __global__ void scale(Args a) {\n"
                  "  if (threadIdx.x < a.n) a.x[threadIdx.x] *= FACTOR;\n"
                  "}\n",
          .defines = {std::string("FACTOR=") + factor},
          .compute_capability = 80};
}

struct Args {
  float* x;
  int n;
};

#define SKIP_WITHOUT_NVRTC() \
  if (const auto nvrtc = Nvrtc::get(); !nvrtc.ok()) GTEST_SKIP() << nvrtc.status().message()

TEST(Nvrtc, CompilesForTheNamedArchitecture) {
  SKIP_WITHOUT_NVRTC();
  for (const int capability : {80, 90}) {
    NvrtcSource source = scale_source("3.0f");
    source.compute_capability = capability;
    const auto cubin = (*Nvrtc::get())->compile(source);
    ASSERT_TRUE(cubin.ok()) << cubin.status().message();
    EXPECT_EQ(cubin->substr(0, 4), "\x7f" "ELF");
  }
}

TEST(Nvrtc, SaysWhatDoesNotCompile) {
  SKIP_WITHOUT_NVRTC();
  const auto cubin = (*Nvrtc::get())->compile(scale_source("undeclared_factor"));
  ASSERT_FALSE(cubin.ok());
  EXPECT_NE(cubin.status().message().find("undeclared_factor"), std::string::npos) << cubin.status().message();
}

class NvrtcProgramTest : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_NVRTC();
    if (const auto gpu = probe_cuda_device(); !gpu.ok()) {
      GTEST_SKIP() << gpu.status().message();
    } else {
      capability_ = gpu->compute_capability;
    }
  }

  // Builds, runs on {1, 2}, and returns whether the program came from the cache.
  bool run(const char* factor, float expected) {
    NvrtcSource source = scale_source(factor);
    source.compute_capability = capability_;
    auto program = NvrtcProgram::build(source, ProgramCache(folder_));
    EXPECT_TRUE(program.ok()) << program.status().message();
    auto kernel = (*program)->kernel("scale", 0);
    EXPECT_TRUE(kernel.ok()) << kernel.status().message();
    float values[] = {1, 2};
    auto memory = DeviceBuffer::allocate(sizeof(values), "a test");
    Args args = {memory->as<float>(), 2};
    cudaMemcpy(args.x, values, sizeof(values), cudaMemcpyHostToDevice);
    EXPECT_TRUE(launch_kernel(*kernel, {.threads = 2}, &args, nullptr).ok());
    cudaMemcpy(values, args.x, sizeof(values), cudaMemcpyDeviceToHost);
    EXPECT_EQ(values[0], expected);
    EXPECT_EQ(values[1], 2 * expected);
    return (*program)->from_cache();
  }

  int capability_ = 0;
  const TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(NvrtcProgramTest, ASecondBuildReadsTheCacheAndADamagedFileIsMadeAnew) {
  EXPECT_FALSE(run("3.0f", 3));
  EXPECT_TRUE(run("3.0f", 3));
  EXPECT_FALSE(run("5.0f", 5));
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.put('\xff');
  }
  EXPECT_FALSE(run("3.0f", 3));
  EXPECT_TRUE(run("3.0f", 3));
}

}  // namespace
}  // namespace warpweave
