#include "server/testing/transport_sim.h"

#include <gtest/gtest.h>

#include "base/log.h"

namespace warpweave::server::testing {
namespace {

class TransportSimTest : public ::testing::Test {
 protected:
  void SetUp() override { spdlog::set_level(spdlog::level::off); }  // streams that end early by the thousand
  void TearDown() override { spdlog::set_level(spdlog::level::info); }
};

// With room for everybody and nothing going wrong every request gets its whole answer.
TEST_F(TransportSimTest, CalmWeather) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    const std::string wrong = TransportSim({.seed = seed, .rough = false}).run();
    ASSERT_EQ(wrong, "");
  }
}

// Slow readers, clients that leave, clock jumps, a dying engine, too little room for all.
TEST_F(TransportSimTest, RoughWeather) {
  for (uint64_t seed = 1; seed <= 10'000; ++seed) {
    const std::string wrong = TransportSim({.seed = seed, .clients = 1 + static_cast<int>(seed % 7)}).run();
    ASSERT_EQ(wrong, "");
  }
}

TEST_F(TransportSimTest, EveryReadAndWriteMayBreak) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    TransportSim whole({.seed = seed, .rough = seed % 2 == 0});
    ASSERT_EQ(whole.run(), "");
    for (int n = 1; n <= whole.io_calls(); ++n) {
      const std::string wrong = TransportSim({.seed = seed, .rough = seed % 2 == 0, .fail_nth_io = n}).run();
      ASSERT_EQ(wrong, "") << "breaking " << n;
    }
  }
}

TEST_F(TransportSimTest, WorkersMayBeFull) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    ASSERT_EQ(TransportSim({.seed = seed, .rough = seed % 2 == 0, .fail_nth_submit = true}).run(), "");
  }
}

}  // namespace
}  // namespace warpweave::server::testing
