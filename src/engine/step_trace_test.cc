// The trace of /start_profile: what is written, and who hears that it could not be.
#include "engine/step_trace.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace warpweave {
namespace {

namespace fs = std::filesystem;

class StepTraceTest : public testing::Test {
 protected:
  void SetUp() override { folder_ = fs::path(testing::TempDir()) / "step_trace_test"; }
  void TearDown() override { fs::remove_all(folder_); }

  void record(StepTrace& trace, int steps) {
    for (int i = 0; i < steps; ++i) {
      StepTrace::Step step{
          .launched = std::chrono::steady_clock::now(), .finished = std::chrono::steady_clock::now(), .mode = "decode"};
      trace.record(step);
    }
  }

  fs::path folder_;
};

TEST_F(StepTraceTest, BeginsBehindTheStepsAskedFor) {
  StepTrace trace;
  record(trace, 2);
  ASSERT_TRUE(trace.start({.folder = folder_.string(), .num_steps = 2, .start_step = 5}).ok());
  record(trace, 4);
  EXPECT_TRUE(fs::is_empty(folder_));  // of the fifth step on there is one
  record(trace, 3);
  const Result<std::string> path = trace.stop();
  ASSERT_TRUE(path.ok()) << path.status().message();
  std::ifstream file(*path);
  EXPECT_EQ(nlohmann::json::parse(file)["traceEvents"].size(), 2u + 2 * 2);
}

TEST_F(StepTraceTest, WritesWhatWasRecorded) {
  StepTrace trace;
  ASSERT_TRUE(trace.start({.folder = folder_.string()}).ok());
  EXPECT_EQ(trace.start({.folder = folder_.string()}).code(), StatusCode::invalid_argument);
  record(trace, 3);
  const Result<std::string> path = trace.stop();
  ASSERT_TRUE(path.ok()) << path.status().message();
  std::ifstream file(*path);
  EXPECT_EQ(nlohmann::json::parse(file)["traceEvents"].size(), 2u + 2 * 3);
  EXPECT_EQ(trace.stop().status().code(), StatusCode::invalid_argument);
}

TEST_F(StepTraceTest, ARecordingThatEndedByItselfIsFetchedOnce) {
  StepTrace trace;
  ASSERT_TRUE(trace.start({.folder = folder_.string(), .num_steps = 2}).ok());
  record(trace, 5);
  const Result<std::string> path = trace.stop();
  ASSERT_TRUE(path.ok()) << path.status().message();
  EXPECT_TRUE(fs::exists(*path));
  EXPECT_EQ(trace.stop().status().code(), StatusCode::invalid_argument);
}

// Whether the recording ended by itself or was ended: /stop_profile says that the file is lost, and no part stays.
TEST_F(StepTraceTest, AFailedWriteIsTold) {
  for (const int num_steps : {2, 0}) {
    StepTrace trace;
    ASSERT_TRUE(trace.start({.folder = folder_.string(), .num_steps = num_steps}).ok());
    fs::remove_all(folder_);
    record(trace, 2);
    const Result<std::string> path = trace.stop();
    EXPECT_EQ(path.status().code(), StatusCode::internal) << num_steps;
    EXPECT_NE(path.status().message().find("--profile-dir"), std::string::npos);
    EXPECT_EQ(trace.stop().status().code(), StatusCode::invalid_argument) << "it is told once";
    EXPECT_TRUE(trace.start({.folder = folder_.string()}).ok());
  }
}

}  // namespace
}  // namespace warpweave
