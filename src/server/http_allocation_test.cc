// Every allocation of the server's own threads fails once per distinct call stack, alone and with those that follow it:
// through a start, requests of every kind, clients that leave, a change of routes and a stop. The request concerned
// gets one answer or a closed connection, and the server serves the next one.
#include <chrono>
#include <thread>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/testing/failing_allocator.h"
#include "server/testing/http_test.h"

namespace warpweave::server {
namespace {

using namespace testing;
using warpweave::testing::AllocationFailure;
using warpweave::testing::NoAllocationFailure;

constexpr int kBurst = 12;
constexpr int kMostRuns = 5000;

class HttpAllocation : public HttpTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    spdlog::set_level(spdlog::level::off);
    hold_memory_reserve();
    AllocationFailure::forget_places();
  }
  void TearDown() override { spdlog::set_level(spdlog::level::info); }

  // True until the server has served and everything before is gone.
  void expect_sound() {
    EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos);
    EXPECT_TRUE(ask(post("/echo", "whole")).ends_with("|whole"));
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (server_->active_requests() > 0 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(server_->active_requests(), 0);
    refill_memory_reserve();
  }

  // `once` runs with each place failing in turn until a few runs in a row find no new one; what it allocates on the
  // test's own thread never fails.
  template <typename F>
  void fail_each_place(const F& once) {
    int quiet = 0, runs = 0;
    for (; quiet < 3 && runs < kMostRuns && !HasFailure(); ++runs) {
      bool happened = false;
      {
        AllocationFailure failure({.burst = GetParam()});
        const NoAllocationFailure never;
        once();
        happened = AllocationFailure::happened();
      }
      quiet = happened ? 0 : quiet + 1;
      expect_sound();
    }
    EXPECT_LT(runs, kMostRuns) << "new places are still found";
    std::printf("%d runs, %zu places\n", runs, AllocationFailure::places());
  }

  // One answer, whole or cut by a closed connection.
  void expect_one_answer(Client& client) {
    const std::string answer = client.read_until([](const std::string& got) { return got.ends_with("0\r\n\r\n"); });
    EXPECT_TRUE(client.closed() || answer.ends_with("0\r\n\r\n")) << "neither answered nor closed: " << answer;
    EXPECT_LE(count(answer, "HTTP/1.1 ") - count(answer, "HTTP/1.1 100"), 1) << answer;
  }
};

TEST_P(HttpAllocation, InRequestsEndsThemAndNothingElse) {
  start();
  fail_each_place([&] {
    const std::string closing = "Connection: close\r\n";
    const std::string requests[] = {
        get("/ping", closing),
        post("/echo", std::string(3000, 'x'),
             closing + "Authorization: Bearer a key longer than a string's own bytes\r\n"),
        "POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\nTransfer-Encoding: "
        "chunked\r\n\r\n"
        "5\r\nhello\r\n0\r\nTrailer: yes\r\n\r\n",
        get("/stream", closing),
        get("/throws", closing),
        get("/drops", closing),
        get("/drops-events", closing),
        get("/drops-stream", closing),
        get("/nothing", closing),
        "BREW / HTTP/1.1\r\n\r\n",
        "OPTIONS /echo HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a.example\r\nConnection: close\r\n"
        "Access-Control-Request-Headers: x-a-header-of-some-length\r\n\r\n"};
    for (const std::string& request : requests) {
      Client client(server_->port());
      client.send(request);
      expect_one_answer(client);
    }
    Client pipelining(server_->port());
    pipelining.send(get("/ping") + post("/echo", "a body longer than a string's own bytes") + get("/ping", closing));
    EXPECT_LE(count(pipelining.read_all(), "HTTP/1.1 "), 3);
    EXPECT_TRUE(pipelining.closed());
  });
  EXPECT_GT(AllocationFailure::places(), 60U);
}

// Streams that are written from elsewhere, read slowly, waited for, cut, and left.
TEST_P(HttpAllocation, InStreamsEndsThemAndNothingElse) {
  start({.max_write_buffer_bytes = 16 << 10, .max_total_unsent_bytes = 64 << 10});
  fail_each_place([&] {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 4; ++i) {
      clients.push_back(std::make_unique<Client>(server_->port(), 4096));
      clients.back()->send(get("/hold", "Connection: close\r\n"));
      clients.back()->read_until_text(": open");  // or nothing, where it failed
    }
    std::thread engine([&] {
      release_held([](ResponseWriter& writer) {
        try {
          for (int i = 0; i < 40 && writer.has_room(); ++i) writer.write("data: " + std::string(40'000, 'x') + "\n\n");
          writer.call_when_room([] {});
          writer.write("data: last\n\n");
        } catch (const std::bad_alloc&) {  // the caller's own
        }
      });
    });
    engine.join();
    clients[0]->close();
    for (auto& client : clients) {
      if (client != clients[0]) client->read_all();
    }
  });
}

TEST_P(HttpAllocation, InAStartOrAStopIsAnErrorOrNothing) {
  int quiet = 0, runs = 0, refused = 0;
  for (; quiet < 3 && runs < kMostRuns && !HasFailure(); ++runs) {
    bool happened = false;
    Status status;
    ServerOptions options;
    options.port = 0;
    auto server = std::make_unique<HttpServer>(options, make_router());
    {
      AllocationFailure failure({.burst = GetParam()});
      status = server->start();
      if (status.ok()) {
        const NoAllocationFailure never;
        Client waiting(server->port()), asking(server->port());
        waiting.send("GET /pi");
        asking.send(get("/hold", "Connection: close\r\n"));
        asking.read_until_text(": open");
      }
      server->stop();
      happened = AllocationFailure::happened();
    }
    release_held([](ResponseWriter&) {});
    refused += !status.ok();
    quiet = happened ? 0 : quiet + 1;
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::unavailable) << status.message();
  }
  EXPECT_LT(runs, kMostRuns);
  EXPECT_GT(refused, 3);
  start();
  expect_sound();
}

INSTANTIATE_TEST_SUITE_P(OneAndBursts, HttpAllocation, ::testing::Values(1, kBurst));

}  // namespace
}  // namespace warpweave::server
