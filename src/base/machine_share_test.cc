// Limits of containers, from made-up trees of control groups.
#include "base/machine_share.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/testing/temporary_folder.h"

namespace warpweave {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kGiB = int64_t{1} << 30;

class MachineShare : public testing::Test {
 protected:
  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((folder_.path() / file).parent_path());
    std::ofstream(folder_.path() / file) << text;
  }
  CgroupLimits limits() const { return cgroup_limits(folder_.path()); }

  const TemporaryFolder folder_;
};

TEST_F(MachineShare, WithoutGroupsOrLimitsAllIsLeft) {
  EXPECT_FALSE(limits().memory_bytes || limits().cpus);
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_FALSE(limits().memory_bytes || limits().cpus);
  EXPECT_EQ(available_memory_bytes(folder_.path()), 4 * kGiB);
  write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapFree: 1 kB\n");
  EXPECT_EQ(available_memory_bytes(folder_.path()), 8 * kGiB);
}

TEST_F(MachineShare, OfAContainerItIsWhatItsGroupLeaves) {
  write("proc/meminfo", "MemAvailable: 67108864 kB\n");
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", std::to_string(4 * kGiB));
  write("sys/fs/cgroup/memory.current", std::to_string(3 * kGiB));
  write("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file " + std::to_string(2 * kGiB) + "\nslab 1\n");
  write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(limits().memory_bytes, 3 * kGiB) << "2 of 3 GiB in use are cached files, which give way";
  EXPECT_EQ(limits().cpus, 1.5);
  EXPECT_EQ(available_memory_bytes(folder_.path()), 3 * kGiB);
}

TEST_F(MachineShare, GroupsAboveCountToo) {
  write("proc/self/cgroup", "0::/pods/pod1/main\n");
  write("sys/fs/cgroup/pods/pod1/main/memory.max", "max\n");
  write("sys/fs/cgroup/pods/pod1/memory.max", std::to_string(2 * kGiB));
  write("sys/fs/cgroup/pods/memory.max", std::to_string(8 * kGiB));
  write("sys/fs/cgroup/pods/pod1/main/cpu.max", "400000 100000");
  write("sys/fs/cgroup/pods/cpu.max", "200000 100000");
  EXPECT_EQ(limits().memory_bytes, 2 * kGiB);
  EXPECT_EQ(limits().cpus, 2.0);
}

TEST_F(MachineShare, TheFirstVersionAndPathsOfTheHostAreUnderstood) {
  write("proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\nnonsense\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(kGiB));  // the mount is the container's group
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", std::to_string(kGiB / 4));
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(limits().memory_bytes, kGiB * 3 / 4);
  EXPECT_EQ(limits().cpus, 0.5);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_FALSE(limits().memory_bytes || limits().cpus);
}

TEST_F(MachineShare, TheProcesssOwnLimitsCountToo) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const auto limits_are = [&](const std::string& data, const std::string& address_space) {
    std::string text = "Limit                     Soft Limit           Hard Limit           Units     \n";
    text += "Max cpu time              1                    unlimited            seconds   \n";
    text += "Max data size             " + data + "            unlimited            bytes     \n";
    text += "Max address space         " + address_space + "            unlimited            bytes     \n";
    write("proc/self/limits", text);
  };
  write("proc/meminfo", "MemAvailable: 67108864 kB\n");
  write("proc/self/statm", std::to_string(kGiB / page) + " 5 4 3 0 " + std::to_string(kGiB / 4 / page) + " 0\n");
  limits_are("unlimited", "unlimited");
  EXPECT_FALSE(process_limit_bytes(folder_.path()));
  EXPECT_EQ(available_memory_bytes(folder_.path()), 64 * kGiB);
  limits_are("unlimited", std::to_string(4 * kGiB));
  EXPECT_EQ(available_memory_bytes(folder_.path()), 3 * kGiB - kGiB / 8) << "heaps and stacks need some of it";
  limits_are(std::to_string(kGiB), std::to_string(4 * kGiB));
  EXPECT_EQ(available_memory_bytes(folder_.path()), kGiB * 3 / 4);
  limits_are(std::to_string(100), std::to_string(4 * kGiB));
  EXPECT_EQ(available_memory_bytes(folder_.path()), 0) << "already above";
}

TEST_F(MachineShare, AGroupThatUsesMoreThanItsLimitHasNothingLeft) {
  write("proc/self/cgroup", "0::/\n");
  write("sys/fs/cgroup/memory.max", "100");
  write("sys/fs/cgroup/memory.current", "200");
  EXPECT_EQ(limits().memory_bytes, 0);
}

}  // namespace
}  // namespace warpweave
