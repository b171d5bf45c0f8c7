#include "base/lossy_log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include <spdlog/sinks/base_sink.h>

namespace warpweave {
namespace {

// Writes what there is room for now and returns how much that was. Where poll() finds room in a pipe, a write of
// PIPE_BUF bytes does not wait, whether or not the descriptor may block.
size_t write_without_waiting(int fd, std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    pollfd wanted{fd, POLLOUT, 0};
    if (poll(&wanted, 1, 0) != 1 || (wanted.revents & POLLOUT) == 0) break;
    const ssize_t written = write(fd, bytes.data() + done, std::min<size_t>(bytes.size() - done, PIPE_BUF));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  return done;
}

const char* colour_of(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return "\033[1;31m";
  return level == spdlog::level::warn ? "\033[1;33m" : "\033[32m";
}

class LossySink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit LossySink(int fd) : fd_(fd), in_colour_(isatty(fd) == 1) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (lost_lines_ > 0) {
      const std::string text = "lines of this log that are lost, because its reader did not keep up: " +
                               std::to_string(lost_lines_);
      if (put({message.logger_name, spdlog::level::warn, text})) lost_lines_ = 0;
    }
    if (lost_lines_ > 0 || !put(message)) ++lost_lines_;
  }
  void flush_() override {}

 private:
  bool put(const spdlog::details::log_msg& message) {
    spdlog::memory_buf_t formatted;
    formatter_->format(message, formatted);
    std::string line(formatted.data(), formatted.size());
    if (in_colour_ && message.color_range_end > message.color_range_start) {
      line.insert(message.color_range_end, "\033[0m");
      line.insert(message.color_range_start, colour_of(message.level));
    }
    if (is_torn_) line.insert(0, 1, '\n');
    const size_t written = write_without_waiting(fd_, line);
    if (written > 0) is_torn_ = written < line.size();
    return written == line.size();
  }

  const int fd_;
  const bool in_colour_;
  bool is_torn_ = false;  // the last line that was begun has no end
  uint64_t lost_lines_ = 0;
};

}  // namespace

std::shared_ptr<spdlog::sinks::sink> lossy_log_sink(int fd) { return std::make_shared<LossySink>(fd); }

}  // namespace warpweave
