// The transport's start, its drain and its stop, with clients there.
#include <future>
#include <system_error>
#include <thread>

#include "server/testing/http_test.h"

namespace warpweave::server {
namespace {

using namespace std::chrono_literals;
using namespace testing;

class HttpLifecycleTest : public HttpTest {};

TEST_F(HttpLifecycleTest, DrainRefusesNewWorkAndFinishesOld) {
  start();
  Client running(server_->port());
  running.send(get("/hold"));
  running.read_until_text(": open");
  ASSERT_TRUE(
      events_->wait_held(1));  // what has been sent may be read before the handler says that it holds the answer
  server_->begin_drain();
  const std::string refused = ask(post("/echo", "a"));
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503")) << refused;
  EXPECT_NE(refused.find("Retry-After: "), std::string::npos);
  EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos);
  {
    std::lock_guard lock(events_->mutex);
    events_->held[0]->write("last words");
    events_->held[0]->end();
  }
  EXPECT_NE(running.read_all().find("last words"), std::string::npos);
  EXPECT_TRUE(running.closed());
}

TEST_F(HttpLifecycleTest, StopDisconnectsWhatRunsAndFreesThePort) {
  start();
  Client client(server_->port());
  client.send(get("/hold"));
  ASSERT_TRUE(events_->wait_held(1));
  const int port = server_->port();
  std::shared_ptr<ResponseWriter> writer = events_->held[0];
  server_->stop();
  EXPECT_EQ(events_->disconnects, 1);
  bool told_at_once = false;
  writer->on_disconnect([&] { told_at_once = true; });
  EXPECT_TRUE(told_at_once);
  server_.reset();
  writer->write("into the void");
  writer->end();
  ServerOptions options;
  options.port = port;
  server_ = std::make_unique<HttpServer>(options, make_router());
  EXPECT_TRUE(server_->start().ok());
}

// The I/O thread is busy while the sweep's timer runs out and stop() asks to end: the cancel comes
// too late, and the sweep must not wait once more.
TEST_F(HttpLifecycleTest, StopsAlthoughTheSweepTimerHasJustRunOut) {
  std::promise<void> busy;
  std::promise<void> stopping;
  auto stopping_now = stopping.get_future().share();
  ServerOptions options;
  options.read_timeout_s = options.idle_timeout_s = options.write_timeout_s = 1;  // sweep: 0.25 s
  options.on_response = [&busy, stopping_now](const AnsweredRequest&) {
    busy.set_value();
    stopping_now.wait();
    std::this_thread::sleep_for(400ms);
  };
  start(options);
  Client client(server_->port());
  client.send(get("/ping"));
  busy.get_future().wait();
  stopping.set_value();
  auto stopped = std::async(std::launch::async, [this] { server_->stop(); });
  if (stopped.wait_for(kPatience) != std::future_status::ready) {
    ADD_FAILURE() << "stop() hangs";
    std::_Exit(1);  // the thread inside stop() cannot be ended
  }
}

// No thread, whichever it is: an error, and the port is free again.
TEST_F(HttpLifecycleTest, AThreadThatDoesNotStartIsAnError) {
  for (int n = 0; n < 3; ++n) {
    ServerOptions options;
    options.port = 0;
    options.start_thread = [left = std::make_shared<int>(n)](std::function<void()> run) {
      if ((*left)-- == 0) throw std::system_error(EAGAIN, std::generic_category());
      return std::thread(std::move(run));
    };
    const Status status = HttpServer(options, make_router()).start();
    EXPECT_EQ(status.code(), StatusCode::unavailable) << n;
    EXPECT_NE(status.message().find("ulimit -u"), std::string::npos) << status.message();
  }
  start();
  EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos);
}

TEST_F(HttpLifecycleTest, RoutesCanBeReplacedWhileRequestsRun) {
  start();
  Client client(server_->port());
  client.send(get("/hold"));
  client.read_until_text(": open");
  ASSERT_TRUE(events_->wait_held(1));
  Router other;
  other.add({"GET", "/other", AuthLevel::open, [](auto, auto writer) { writer->send(200, "text/plain", "new"); }});
  server_->set_router(other);
  EXPECT_TRUE(ask(get("/other")).ends_with("new"));
  EXPECT_TRUE(ask(get("/ping")).starts_with("HTTP/1.1 404"));
  {
    std::lock_guard lock(events_->mutex);
    events_->held[0]->write("old one goes on");
  }
  EXPECT_NE(client.read_until_text("goes on").find("goes on"), std::string::npos);
}

TEST_F(HttpLifecycleTest, StartErrorsNameTheFlag) {
  start();
  ServerOptions options;
  options.port = server_->port();
  const Status in_use = HttpServer(options, make_router()).start();
  EXPECT_EQ(in_use.field(), "--port");
  EXPECT_NE(in_use.message().find("--port " + std::to_string(options.port + 1)), std::string::npos);
  options.host = "203.0.113.7";
  EXPECT_EQ(HttpServer(options, make_router()).start().field(), "--host");
}

}  // namespace
}  // namespace warpweave::server
