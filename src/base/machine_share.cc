#include "base/machine_share.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace warpweave {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kAssumedBytes = int64_t{4} << 30;
// Version 1 writes the largest number of whole pages for "no limit".
constexpr int64_t kNoLimitBytes = int64_t{1} << 60;
// What heaps and the stacks of threads to come set aside of the address space, without taking memory for it.
constexpr int64_t kHeapAddressBytes = int64_t{128} << 20;

std::optional<int64_t> read_number(const fs::path& file) {
  int64_t value = 0;
  if (std::ifstream(file) >> value) return value;
  return std::nullopt;  // not there, or "max"
}

// The value of "key value" in a file of such lines.
int64_t read_key(const fs::path& file, std::string_view wanted) {
  std::ifstream in(file);
  std::string key;
  int64_t value = 0;
  while (in >> key >> value) {
    if (key == wanted) return value;
  }
  return 0;
}

struct MemoryFiles {
  const char *limit, *usage, *cache_key;
};
constexpr MemoryFiles kMemoryV2 = {"memory.max", "memory.current", "inactive_file"};
constexpr MemoryFiles kMemoryV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};

void narrow_memory(const fs::path& folder, const MemoryFiles& files, CgroupLimits& out) {
  const std::optional<int64_t> limit = read_number(folder / files.limit);
  if (!limit || *limit >= kNoLimitBytes) return;
  const int64_t cached = read_key(folder / "memory.stat", files.cache_key);
  const int64_t used = read_number(folder / files.usage).value_or(0) - cached;
  const int64_t left = std::clamp<int64_t>(*limit - used, 0, *limit);
  out.memory_bytes = std::min(out.memory_bytes.value_or(left), left);
}

void narrow_cpus(std::optional<int64_t> quota_us, std::optional<int64_t> period_us, CgroupLimits& out) {
  if (!quota_us || *quota_us <= 0 || !period_us || *period_us <= 0) return;
  const double cpus = static_cast<double>(*quota_us) / static_cast<double>(*period_us);
  out.cpus = std::min(out.cpus.value_or(cpus), cpus);
}

void narrow_v2(const fs::path& folder, CgroupLimits& out) {
  narrow_memory(folder, kMemoryV2, out);
  int64_t quota_us = 0, period_us = 0;  // "max 100000": no limit
  if (std::ifstream(folder / "cpu.max") >> quota_us >> period_us) narrow_cpus(quota_us, period_us, out);
}

// From the group's folder up to where the hierarchy is mounted. In a container without a namespace of its own that
// mount is the container's group, and the path, the host's, leads nowhere in it: the mount alone is asked then.
template <typename Narrow>
void each_level(const fs::path& mount, const std::string& group, Narrow narrow) {
  fs::path below = fs::path(group).relative_path();
  std::error_code error;
  if (!fs::is_directory(mount / below, error)) below.clear();
  for (; !below.empty(); below = below.parent_path()) narrow(mount / below);
  narrow(mount);
}

// "4:memory,hugetlb:/path" of /proc/self/cgroup; version 2 has no controllers.
struct GroupLine {
  std::string controllers, path;
};

std::vector<GroupLine> group_lines(const fs::path& root) {
  std::vector<GroupLine> out;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    out.push_back({"," + line.substr(first + 1, second - first - 1) + ",", line.substr(second + 1)});
  }
  return out;
}

}  // namespace

CgroupLimits cgroup_limits(const fs::path& root) {
  CgroupLimits out;
  const fs::path mounts = root / "sys/fs/cgroup";
  for (const GroupLine& line : group_lines(root)) {
    if (line.controllers == ",,") {
      each_level(mounts, line.path, [&](const fs::path& folder) { narrow_v2(folder, out); });
    }
    if (line.controllers.find(",memory,") != std::string::npos) {
      each_level(mounts / "memory", line.path,
                 [&](const fs::path& folder) { narrow_memory(folder, kMemoryV1, out); });
    }
    if (line.controllers.find(",cpu,") != std::string::npos) {
      each_level(mounts / "cpu", line.path, [&](const fs::path& folder) {
        narrow_cpus(read_number(folder / "cpu.cfs_quota_us"), read_number(folder / "cpu.cfs_period_us"), out);
      });
    }
  }
  return out;
}

std::optional<int64_t> process_limit_bytes(const fs::path& root) {
  int64_t pages[6] = {};  // of the whole address space, resident, of files, code, libraries, data and stack
  std::ifstream used(root / "proc/self/statm");
  for (int64_t& count : pages) used >> count;
  std::optional<int64_t> out;
  std::ifstream in(root / "proc/self/limits");
  for (std::string line; std::getline(in, line);) {
    struct Limit {
      std::string_view name;
      int64_t used_pages, kept_bytes;
    };
    for (const Limit& limit :
         {Limit{"Max address space ", pages[0], kHeapAddressBytes}, Limit{"Max data size ", pages[5], 0}}) {
      int64_t most = 0;  // "unlimited": none
      if (!line.starts_with(limit.name) || !(std::istringstream(line.substr(limit.name.size())) >> most)) continue;
      const int64_t used = limit.used_pages * sysconf(_SC_PAGESIZE) + limit.kept_bytes;
      const int64_t left = std::clamp<int64_t>(most - used, 0, most);
      out = std::min(out.value_or(left), left);
    }
  }
  return out;
}

int64_t available_memory_bytes(const fs::path& root) {
  std::ifstream info(root / "proc/meminfo");
  std::string key, unit;
  int64_t kilobytes = 0, available = kAssumedBytes;
  while (info >> key >> kilobytes) {
    std::getline(info, unit);
    if (key == "MemAvailable:") available = kilobytes * 1024;
  }
  for (const std::optional<int64_t> left : {cgroup_limits(root).memory_bytes, process_limit_bytes(root)}) {
    available = std::min(available, left.value_or(available));
  }
  return available;
}

}  // namespace warpweave
