// Where log lines go: a file descriptor that nobody waits for. A line that finds no room is lost and counted, and the
// next one that is written is preceded by how many were. So a pipe that nobody reads, a stopped terminal or a
// full disk never holds up who logs. Thread-safe.
#pragma once

#include <memory>

#include <spdlog/sinks/sink.h>

namespace warpweave {

// Levels are coloured on a terminal. `fd` stays open for as long as the sink lives.
std::shared_ptr<spdlog::sinks::sink> lossy_log_sink(int fd);

}  // namespace warpweave
