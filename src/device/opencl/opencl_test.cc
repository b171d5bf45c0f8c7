#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "base/testing/temporary_folder.h"
#include "device/opencl/opencl_device.h"
#include "device/opencl/opencl_program.h"

namespace warpweave::opencl {
namespace {

// A device that runs here, or a skip that says why not.
#define OPEN_DEVICE_OR_SKIP(device, threads)                                       \
  auto found = devices();                                                          \
  if (!found.ok()) GTEST_SKIP() << found.status().message();                       \
  auto opened = Device::open(found->front(), threads);                             \
  ASSERT_TRUE(opened.ok()) << opened.status().message();                           \
  Device& device = **opened

constexpr char kSource[] =
    "typedef struct { ulong values; int add; } Args;\n"
    "__kernel void add(Args args) {\n"
    "  __global int* values = (__global int*)args.values;\n"
    "  values[get_global_id(0)] += args.add * SCALE;\n"
    "}\n";

struct Args {
  uint64_t values = 0;
  int32_t add = 0;
};

TEST(OpenCl, KernelsReadAndWriteThisProcessMemory) {
  OPEN_DEVICE_OR_SKIP(device, 1);
  EXPECT_LE(device.info().compute_units, std::max(1, found->front().compute_units));
  auto program = Program::build(device, {kSource, "-DSCALE=3"}, ProgramCache(""));
  ASSERT_TRUE(program.ok()) << program.status().message();
  auto kernel = (*program)->kernel("add");
  ASSERT_TRUE(kernel.ok()) << kernel.status().message();
  std::vector<int32_t> values(1000);
  std::iota(values.begin(), values.end(), 0);
  const Args args = {reinterpret_cast<uint64_t>(values.data()), 7};
  Grid grid;
  grid.groups[0] = 100;
  grid.work_items = 10;
  ASSERT_TRUE(device.launch(*kernel, &args, sizeof(args), grid).ok());
  ASSERT_TRUE(device.finish().ok());
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(values[i], i + 21);
}

// A driver's threads may still be leaving a kernel when its device is closed and the next one opened.
TEST(OpenCl, DevicesMayBeOpenedAndClosedManyTimes) {
  for (int i = 0; i < 100; ++i) {
    OPEN_DEVICE_OR_SKIP(device, 1 + i % 2);
    auto program = Program::build(device, {kSource, "-DSCALE=1"}, ProgramCache(""));
    ASSERT_TRUE(program.ok()) << program.status().message();
    auto kernel = (*program)->kernel("add");
    ASSERT_TRUE(kernel.ok()) << kernel.status().message();
    std::vector<int32_t> values(8);
    const Args args = {reinterpret_cast<uint64_t>(values.data()), 1};
    ASSERT_TRUE(device.launch(*kernel, &args, sizeof(args), Grid{.groups = {8, 1, 1}}).ok());
    ASSERT_TRUE(device.finish().ok());
    for (int value : values) ASSERT_EQ(value, 1);
  }
}

TEST(OpenCl, ABuildErrorShowsTheCompilersWords) {
  OPEN_DEVICE_OR_SKIP(device, 0);
  const auto program = Program::build(device, {"__kernel void f() { undeclared_name = 1; }", ""},
                                      ProgramCache(""));
  ASSERT_FALSE(program.ok());
  EXPECT_NE(program.status().message().find("undeclared_name"), std::string::npos)
      << program.status().message();
  EXPECT_NE(program.status().message().find(device.info().name), std::string::npos);
}

TEST(OpenCl, AMissingKernelIsAnError) {
  OPEN_DEVICE_OR_SKIP(device, 0);
  auto program = Program::build(device, {kSource, "-DSCALE=1"}, ProgramCache(""));
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_FALSE((*program)->kernel("no_such_kernel").ok());
}

TEST(OpenCl, ASecondBuildComesFromTheCache) {
  OPEN_DEVICE_OR_SKIP(device, 0);
  const TemporaryFolder folder;
  const ProgramCache cache(folder.path());
  auto first = Program::build(device, {kSource, "-DSCALE=5"}, cache);
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_FALSE((*first)->from_cache());
  auto second = Program::build(device, {kSource, "-DSCALE=5"}, cache);
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_TRUE((*second)->from_cache());
  auto other = Program::build(device, {kSource, "-DSCALE=6"}, cache);
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_FALSE((*other)->from_cache());
  EXPECT_TRUE((*second)->kernel("add").ok());
}

}  // namespace
}  // namespace warpweave::opencl
