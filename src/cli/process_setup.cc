#include "cli/process_setup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace warpweave {
namespace {

constexpr rlim_t kOwnFiles = 128;  // weights, logs, the event loop, plug-ins

}  // namespace

void survive_lost_output() {
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    const int null = open("/dev/null", O_RDWR);  // the lowest free number, so `fd`
    if (null > STDERR_FILENO) close(null);
  }
}

ConnectionRoom make_connection_room(int max_connections, int spare_connections) {
  const rlim_t around = kOwnFiles + static_cast<rlim_t>(spare_connections);
  const rlim_t needed = static_cast<rlim_t>(max_connections) + around;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return {max_connections, {}};
  rlimit raised = limit;
  raised.rlim_cur = std::min(needed, limit.rlim_max);
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  if (limit.rlim_cur >= needed) return {max_connections, {}};
  const rlim_t room = limit.rlim_cur > around ? limit.rlim_cur - around : 1;
  return {static_cast<int>(room),
          fmt::format("--max-connections {} is lowered to {}: the system allows {} open files; raise that with "
                      "ulimit -n {}",
                      max_connections, room, limit.rlim_cur, needed)};
}

}  // namespace warpweave
