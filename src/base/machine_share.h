// What of the machine this process may use: a container's limits (control groups, versions 1 and 2) and the process's
// own (ulimit) beside what is there. Thread-safe; read anew at each call.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace warpweave {

struct CgroupLimits {
  std::optional<int64_t> memory_bytes;  // that are left below the limit, with what the page cache would give back
  std::optional<double> cpus;           // the quota: time a second of all threads together
};

// The narrowest of the process's own group and those above it. `root` is "/", or a test's.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

// What the process's own limits (ulimit -v and -d) leave of its address space and data; none: it has none.
std::optional<int64_t> process_limit_bytes(const std::filesystem::path& root = "/");

// What the kernel says is available and the limits leave; 4 GiB where the kernel says nothing.
int64_t available_memory_bytes(const std::filesystem::path& root = "/");

}  // namespace warpweave
