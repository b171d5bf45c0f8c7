#include "base/lossy_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <future>
#include <string>
#include <thread>

namespace warpweave {
namespace {

class LossyLog : public ::testing::Test {
 protected:
  LossyLog() {
    EXPECT_EQ(pipe(ends_.data()), 0);
    logger_ = std::make_unique<spdlog::logger>("test", lossy_log_sink(ends_[1]));
    logger_->set_pattern("%v");
  }
  ~LossyLog() override {
    for (const int fd : ends_) {
      if (fd >= 0) close(fd);
    }
  }
  // All that is in the pipe now.
  std::string read_all() {
    std::string text;
    std::array<char, 4096> part{};
    fcntl(ends_[0], F_SETFL, O_NONBLOCK);
    for (ssize_t got; (got = read(ends_[0], part.data(), part.size())) > 0;) text.append(part.data(), got);
    return text;
  }

  std::array<int, 2> ends_{};
  std::unique_ptr<spdlog::logger> logger_;
};

TEST_F(LossyLog, WritesLines) {
  logger_->info("one");
  logger_->info("two");
  EXPECT_EQ(read_all(), "one\ntwo\n");
}

TEST_F(LossyLog, NeverWaitsForAReaderAndSaysOnceWhatIsLost) {
  constexpr int kLines = 5000;
  const std::string line(99, 'x');
  auto logged = std::async(std::launch::async, [&] {
    for (int i = 0; i < kLines; ++i) logger_->info(line);
  });
  ASSERT_EQ(logged.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  const std::string kept = read_all();
  ASSERT_LT(kept.size(), kLines * size_t{100});
  EXPECT_EQ(kept.size() % 100, 0u);  // whole lines
  logger_->info("after");
  logger_->info("and more");
  const auto lost = kLines - kept.size() / 100;
  EXPECT_EQ(read_all(), "lines of this log that are lost, because its reader did not keep up: " + std::to_string(lost) +
                            "\nafter\nand more\n");
}

TEST_F(LossyLog, ALineLargerThanThePipeIsTornAndTheNextBeginsANewOne) {
  logger_->info(std::string(1 << 20, 'x'));
  const std::string part = read_all();
  EXPECT_GT(part.size(), 0u);
  EXPECT_LT(part.size(), size_t{1} << 20);
  logger_->info("after");
  EXPECT_EQ(read_all(), "\nlines of this log that are lost, because its reader did not keep up: 1\nafter\n");
}

TEST_F(LossyLog, AReaderThatWentAwayHoldsNobodyUp) {
  signal(SIGPIPE, SIG_IGN);
  close(ends_[0]);
  for (int i = 0; i < 100; ++i) logger_->info("x");
  ends_[0] = -1;
}

}  // namespace
}  // namespace warpweave
