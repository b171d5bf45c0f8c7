// One connection on a socket and a clock of the test's: its deadlines to the second, which no real socket shows.
#include "server/connection.h"

#include <gtest/gtest.h>

namespace warpweave::server {
namespace {

using namespace std::chrono_literals;

struct Line {
  std::string to_server, to_client;
  size_t room_bytes = 0;   // that the client takes
  bool closed = false;
  std::shared_ptr<SocketEvents> reader, writer;
};

class LineSocket : public Socket {
 public:
  explicit LineSocket(Line& line) : line_(line) {}
  IoResult read(char* into, size_t max_bytes) override {
    const size_t bytes = std::min(max_bytes, line_.to_server.size());
    line_.to_server.copy(into, bytes);
    line_.to_server.erase(0, bytes);
    return {bytes > 0 ? IoResult::State::ok : IoResult::State::would_block, bytes};
  }
  IoResult write(std::string_view bytes) override {
    const size_t sent = std::min(bytes.size(), line_.room_bytes);
    line_.room_bytes -= sent;
    line_.to_client += bytes.substr(0, sent);
    return {sent > 0 ? IoResult::State::ok : IoResult::State::would_block, sent};
  }
  void wait_readable(std::shared_ptr<SocketEvents> events) override { line_.reader = std::move(events); }
  void wait_writable(std::shared_ptr<SocketEvents> events) override { line_.writer = std::move(events); }
  void shutdown_send() override {}
  void close() override {
    line_.closed = true;
    line_.reader.reset();
    line_.writer.reset();
  }

 private:
  Line& line_;
};

class ConnectionTest : public ::testing::Test {
 protected:
  static constexpr size_t kAnswerBytes = 10 << 20;
  const size_t kStreamBufferBytes = ServerOptions{}.max_write_buffer_bytes;

  ConnectionTest() {
    Router router;
    router.add({"GET", "/long", AuthLevel::open,
                [](auto, auto writer) { writer->send(200, "text/plain", std::string(kAnswerBytes, 'x')); }, true});
    // A handler that its reader does not keep up with: it keeps its writer for when there is room.
    router.add({"GET", "/waits", AuthLevel::open,
                [this](auto, auto writer) {
                  writer->begin_stream(200, "text/event-stream");
                  writer->write(std::string(kStreamBufferBytes, 'x'));
                  EXPECT_TRUE(writer->call_when_room([writer] {}));
                  waits_ = writer;
                }, true});
    transport_ = std::make_unique<Transport>(
        ServerOptions{.read_timeout_s = 60,
                      .write_timeout_s = 60,
                      .on_response = [this](const AnsweredRequest& answered) { answered_.push_back(answered); }},
        router,
        TransportHooks{.now = [this] { return now_; },
                       .wake = [this] { woken_ = true; },
                       .submit = [](const std::function<void()>&) { return false; }});
    transport_->admit(std::make_unique<LineSocket>(line_), true);
  }
  ~ConnectionTest() override { transport_->close_all(); }

  void send(std::string_view bytes) {
    line_.to_server += bytes;
    if (line_.reader) std::exchange(line_.reader, nullptr)->on_readable();
    flush();
  }
  void flush() {
    while (std::exchange(woken_, false)) transport_->flush_woken();
  }
  void take(size_t bytes) {
    line_.room_bytes = bytes;
    if (line_.writer) std::exchange(line_.writer, nullptr)->on_writable();
  }
  void pass(Clock::duration time) {
    now_ += time;
    transport_->check_deadlines();
  }

  Clock::time_point now_{1h};
  bool woken_ = false;
  Line line_;
  std::vector<AnsweredRequest> answered_;
  std::weak_ptr<ResponseWriter> waits_;  // what the handler of /waits left behind
  std::unique_ptr<Transport> transport_;
};

constexpr char kGetLong[] = "GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n";

// A byte a second is no reading: the deadline does not move with it.
TEST_F(ConnectionTest, AReaderThatTricklesIsCutInTime) {
  send(kGetLong);
  int seconds = 0;
  while (!line_.closed && seconds < 1000) {
    take(1);
    pass(1s);
    ++seconds;
  }
  EXPECT_EQ(seconds, 60);
  EXPECT_EQ(transport_->active_requests, 0);
}

TEST_F(ConnectionTest, AReaderThatTakesEachMiBInTimeGetsItAll) {
  send(kGetLong);
  for (int i = 0; i < 11; ++i) {
    pass(59s);
    take(1 << 20);
  }
  EXPECT_FALSE(line_.closed);
  EXPECT_GT(line_.to_client.size(), kAnswerBytes);
  EXPECT_EQ(transport_->active_requests, 0);
}

// From the first byte that came to the last that went, the next request of the connection apart.
TEST_F(ConnectionTest, AnAnswerIsReportedWithItsTime) {
  send("GET /long HT");
  pass(2s);
  send(std::string_view(kGetLong).substr(12));
  take(1 << 20);
  EXPECT_TRUE(answered_.empty());
  pass(3s);
  take(2 * kAnswerBytes);
  pass(30s);
  line_.room_bytes = 10'000;
  send("DELETE /long HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_EQ(answered_.size(), 2u);
  EXPECT_EQ(answered_[0].route, "/long");
  EXPECT_EQ(answered_[0].method, "GET");
  EXPECT_EQ(answered_[0].status, 200);
  EXPECT_EQ(answered_[0].duration_s, 5);
  EXPECT_EQ(answered_[1].route, "unmatched");
  EXPECT_EQ(answered_[1].method, "DELETE");
  EXPECT_EQ(answered_[1].status, 405);
  EXPECT_EQ(answered_[1].duration_s, 0);
}

TEST_F(ConnectionTest, ASenderThatTricklesIsAnsweredInTime) {
  line_.room_bytes = 10'000;
  const std::string head = "GET /long HTTP/1.1\r\nX: " + std::string(1000, 'x');
  int seconds = 0;
  while (line_.to_client.empty() && seconds < 1000) {
    send(head.substr(static_cast<size_t>(seconds), 1));
    pass(1s);
    ++seconds;
    send("");  // what was posted runs
  }
  EXPECT_EQ(seconds, 60);
  EXPECT_TRUE(line_.to_client.starts_with("HTTP/1.1 408"));
  pass(2s);
  EXPECT_TRUE(line_.closed);
}

// What waits for room holds its writer, and that the stream: a circle that each end of the stream has to open.
TEST_F(ConnectionTest, AStreamThatEndsForgetsWhoWaitsForRoom) {
  send("GET /waits HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_FALSE(waits_.expired());
  waits_.lock()->end();  // as a server that stops does, while the reader is behind
  EXPECT_TRUE(waits_.expired());
}

TEST_F(ConnectionTest, AStreamThatIsCutForgetsWhoWaitsForRoom) {
  send("GET /waits HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_FALSE(waits_.expired());
  pass(61s);
  EXPECT_TRUE(line_.closed);
  EXPECT_TRUE(waits_.expired());
}

TEST_F(ConnectionTest, AStreamThatNobodyReadsForgetsWhoWaitsForRoom) {
  send("GET /waits HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_FALSE(waits_.expired());
  for (int i = 0; i < 3; ++i) waits_.lock()->write(std::string(kStreamBufferBytes, 'x'));  // without asking
  flush();
  for (int i = 0; i < 3; ++i) take(2 * kStreamBufferBytes);
  EXPECT_NE(line_.to_client.find("reader_too_slow"), std::string::npos);
  EXPECT_TRUE(waits_.expired());
}

// Time that stands still or leaps ends nothing that is not late.
TEST_F(ConnectionTest, AnIdleConnectionEndsAfterItsTimeAndNotBefore) {
  pass(59s);
  EXPECT_FALSE(line_.closed);
  pass(24h);
  EXPECT_TRUE(line_.closed);
}

}  // namespace
}  // namespace warpweave::server
