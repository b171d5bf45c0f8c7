#include "base/log.h"

#include <unistd.h>

#include "base/lossy_log.h"

namespace warpweave {

Status init_log(std::string_view level) {
  const auto parsed = level == "warning" ? spdlog::level::warn : spdlog::level::from_str(std::string(level));
  if (parsed == spdlog::level::off && level != "off") {
    return Status::invalid_argument("--log-level must be debug, info, warning or error", "--log-level");
  }
  auto logger = spdlog::get("warpweave");
  if (!logger) {
    logger = std::make_shared<spdlog::logger>("warpweave", lossy_log_sink(STDERR_FILENO));
    spdlog::register_logger(logger);
  }
  logger->set_pattern("[%Y-%m-%d %H:%M:%S] %^%l%$ %v");
  logger->set_level(parsed);
  spdlog::set_default_logger(logger);
  return {};
}

std::string log_safe(std::string_view text, size_t max_bytes) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  if (text.size() > max_bytes) out += "...";
  return out;
}

}  // namespace warpweave
