// The process's log: one logger, one line format, no prompt text at info level.
// Use LOG_INFO("loaded {} tensors", n); levels follow --log-level.
#pragma once

#include <spdlog/spdlog.h>

#include <string>
#include <string_view>

#include "warpweave/status.h"

#define LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)
#define LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define LOG_WARN(...) ::spdlog::warn(__VA_ARGS__)
#define LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)

namespace warpweave {

// "debug", "info", "warning", "error". Call once at start; logs go to stderr.
Status init_log(std::string_view level);

// Text from outside made safe for one log line: control characters escaped, cut to `max_bytes`.
std::string log_safe(std::string_view text, size_t max_bytes = 200);

}  // namespace warpweave
