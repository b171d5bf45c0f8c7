// Hostile clients: bytes without end, framing that two servers could read differently, memory asked for
// and not used, streams larger than their buffer.
#include <future>
#include <thread>

#include "base/resident_memory.h"
#include "base/trim_memory.h"
#include "server/testing/http_test.h"

namespace warpweave::server {
namespace {

using namespace testing;
using namespace std::chrono_literals;

class HostileTest : public HttpTest {
 protected:
  std::string answer_to(const std::string& request) {
    Client client(server_->port());
    client.send(request);
    return client.read_all();
  }
};

constexpr char kChunkedHead[] = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

// What is sent without end is refused after a bounded number of bytes, and none of it is kept.
TEST_F(HostileTest, EndlessFramingIsRefusedAndNotKept) {
  start();
  const struct {
    std::string start, endless;
  } cases[] = {
      {"GET /ping HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;", "ext=aaaaaaaaaaaaaaaa;"},
      {std::string(kChunkedHead) + "5;", "ext=aaaaaaaaaaaaaaaa;"},
      {std::string(kChunkedHead) + "0\r\n", "Trailer: bbbbbbbbbbbbbbbb\r\n"},
      {std::string(kChunkedHead) + "0\r\nTrailer: ", "cccccccccccccccc"},
      {std::string(kChunkedHead), "0000000000000000"},
      {"GET /", "dddddddddddddddd"},
      {"GET /ping HTTP/1.1\r\nHost: x\r\n", "A: b\r\n"},
      {"GET /ping HTTP/1.1\r\nHost: x\r\nA: ", "                "},
  };
  for (const auto& c : cases) {
    const int64_t before = resident_memory().bytes;
    Client client(server_->port());
    std::string block;
    while (block.size() < (64 << 10)) block += c.endless;
    client.send(c.start);
    for (int sent = 0; sent < 1024 && !client.refuses(); ++sent) client.send(block);
    EXPECT_LT(resident_memory().bytes - before, 8 << 20) << c.start;
    const std::string answer = client.read_until_text("\r\n\r\n");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 4")) << c.start << "\n" << answer;
  }
  EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos);
}

struct Framing {
  std::string request;
  std::string status;
  std::string code;
};

// Framing on which a proxy before this server could disagree: one answer, and what follows is never
// run as a request of its own.
TEST_F(HostileTest, NoRequestIsSmuggledBehindAnother) {
  start();
  const std::string inner = get("/models/smuggled");
  const std::string length = "Content-Length: " + std::to_string(inner.size()) + "\r\n";
  const auto with = [&](const std::string& fields, const std::string& body) {
    return "POST /echo HTTP/1.1\r\nHost: x\r\n" + fields + "\r\n" + body;
  };
  const std::vector<Framing> cases = {
      {with("Transfer-Encoding: gzip\r\n", inner), "400", "bad_framing"},
      {with("Transfer-Encoding: identity\r\n", inner), "400", "bad_framing"},
      {with("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n" + inner), "400", "bad_framing"},
      {with("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n" + inner), "400", "bad_framing"},
      {with("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n" + inner), "400", "bad_framing"},
      {with("Transfer-Encoding:\r\n", inner), "400", "bad_framing"},
      {with("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n" + inner), "400",
       "bad_framing"},
      {with("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n" + inner), "501", "unsupported_encoding"},
      {with(length + "Transfer-Encoding: chunked\r\n", "0\r\n\r\n" + inner), "400", "bad_framing"},
      {with("Transfer-Encoding: chunked\r\n" + length, "0\r\n\r\n" + inner), "400", "bad_framing"},
      {with("Transfer-Encoding : chunked\r\n", "0\r\n\r\n" + inner), "400", "bad_header"},
      {with("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n" + inner), "400", "bad_header"},
      {with("X: a\r\n\tTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + inner), "400", "bad_header"},
      {with("Transfer\x0b-Encoding: chunked\r\n", "0\r\n\r\n" + inner), "400", "bad_header"},
      {with("X: a\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + inner), "400", "bad_header"},
      {with("X: a\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + inner), "400", "bad_header"},
      {with("X: a\n", inner), "400", "bad_header"},
      {with(std::string("X: a\0b\r\n", 8), inner), "400", "bad_header"},
      {with(": empty\r\n", inner), "400", "bad_header"},
      {with("no colon\r\n", inner), "400", "bad_header"},
      {with("Content-Length: 1\r\nContent-Length: 2\r\n", inner), "400", "bad_framing"},
      {with("Content-Length: 0\r\nContent-Length: 0\r\n", inner), "400", "bad_framing"},
      {with("Content-Length: 0, 0\r\n", inner), "400", "bad_framing"},
      {with("Content-Length: -0\r\n", inner), "400", "bad_framing"},
      {with("Content-Length: +0\r\n", inner), "400", "bad_framing"},
      {with("Content-Length: 0x0\r\n", inner), "400", "bad_framing"},
      {with("Content-Length: \r\n", inner), "400", "bad_framing"},
      {with("Content-Length: 18446744073709551616\r\n", inner), "400", "bad_framing"},
      {with("Transfer-Encoding: chunked\r\n", "-1\r\n\r\n" + inner), "400", "bad_chunk"},
      {with("Transfer-Encoding: chunked\r\n", " 0\r\n\r\n" + inner), "400", "bad_chunk"},
      {with("Transfer-Encoding: chunked\r\n", "0x0\r\n\r\n" + inner), "400", "bad_chunk"},
      {with("Transfer-Encoding: chunked\r\n", "0\n\r\n" + inner), "400", "bad_chunk"},
      {with("Transfer-Encoding: chunked\r\n", "1\r\nab\r\n0\r\n\r\n" + inner), "400", "bad_chunk"},
      {with("Transfer-Encoding: chunked\r\n", "1\r\na\n0\r\n\r\n" + inner), "400", "bad_chunk"},
      {with("Transfer-Encoding: chunked\r\n", "10000000000000000\r\n" + inner), "400", "bad_chunk"},
      {with("Transfer-Encoding: chunked\r\n", "fffffffffffffffffff\r\n" + inner), "400", "bad_chunk"},
      {with("Transfer-Encoding: chunked\r\n", "0;a=\"\n\"\r\n\r\n" + inner), "400", "bad_chunk"},
      {with("Transfer-Encoding: chunked\r\n", "0\r\nX : a\r\n\r\n" + inner), "400", "bad_chunk"},
      {"POST /echo HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner, "400",
       "bad_framing"},
      {"GET /ping HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" + inner, "400", "bad_host"},
      {"GET /ping HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n" + inner, "400", "bad_host"},
      {"GET /ping HTTP/1.1\r\nHost: a, b\r\n\r\n" + inner, "400", "bad_host"},
      {"GET /ping HTTP/1.1\r\nHost: a b\r\n\r\n" + inner, "400", "bad_host"},
      {"GET /ping HTTP/1.1\r\nHost: a/b\r\n\r\n" + inner, "400", "bad_host"},
      {"GET /ping HTTP/1.1\r\n\r\n" + inner, "400", "bad_host"},
      {"GET  /ping HTTP/1.1\r\nHost: x\r\n\r\n" + inner, "400", "bad_request_line"},
      {"GET /ping  HTTP/1.1\r\nHost: x\r\n\r\n" + inner, "400", "bad_request_line"},
      {"GET /ping HTTP/1.1 \r\nHost: x\r\n\r\n" + inner, "400", "bad_request_line"},
      {"GET\t/ping HTTP/1.1\r\nHost: x\r\n\r\n" + inner, "400", "bad_request_line"},
      {"GET /ping HTTP/1.1\nHost: x\r\n\r\n" + inner, "400", "bad_request_line"},
      {"GET /pi\x80ng HTTP/1.1\r\nHost: x\r\n\r\n" + inner, "400", "bad_request_line"},
      {"GET /ping\r\n\r\n" + inner, "400", "bad_request_line"},
      {"GET /ping http/1.1\r\nHost: x\r\n\r\n" + inner, "400", "bad_request_line"},
      {"GET /ping HTTP/11\r\nHost: x\r\n\r\n" + inner, "400", "bad_request_line"},
      {"GET /ping HTTP/2.0\r\nHost: x\r\n\r\n" + inner, "505", "http_version_not_supported"},
      {"GET /ping HTTP/1.2\r\nHost: x\r\n\r\n" + inner, "505", "http_version_not_supported"},
      {"GET /ping HTTP/0.9\r\nHost: x\r\n\r\n" + inner, "505", "http_version_not_supported"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505", "http_version_not_supported"},
  };
  for (const Framing& c : cases) {
    const std::string answer = answer_to(c.request);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + c.status)) << c.request << "\n" << answer;
    EXPECT_NE(answer.find("\"code\":\"" + c.code + "\""), std::string::npos) << c.request << "\n" << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
    EXPECT_EQ(count(answer, "HTTP/1.1 "), 1) << c.request << "\n" << answer;
    EXPECT_EQ(answer.find("smuggled\r\n"), std::string::npos) << c.request << "\n" << answer;
  }
}

TEST_F(HostileTest, UncommonButRightFramingIsRead) {
  start();
  const std::string chunks = "00003 ; a=b;c=\"d;\\\"\"\r\nabc\r\n4\r\ndefg\r\n0\r\nX: y\r\n\r\n";
  for (const std::string encoding : {"chunked", "Chunked", " \tchunked \t", ",chunked", "chunked,"}) {
    const std::string answer = ask("POST /echo HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding:" + encoding +
                                   "\r\n\r\n" + chunks);
    EXPECT_TRUE(answer.ends_with("/echo||abcdefg")) << encoding << answer;
  }
  EXPECT_TRUE(ask("POST /echo HTTP/1.1\r\nHOST:\r\ncontent-LENGTH: 0003\t\r\n\r\nabc").ends_with("|abc"));
}

// Sixteen uploads that announce much and send nothing leave room for everybody else.
TEST_F(HostileTest, AnnouncedBytesReserveNothing) {
  start();
  std::vector<std::unique_ptr<Client>> idle;
  for (int i = 0; i < 32; ++i) {
    idle.push_back(std::make_unique<Client>(server_->port()));
    idle.back()->send(i % 2 == 0 ? "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 33554432\r\n\r\na"
                                 : "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na");
  }
  for (int i = 0; i < 24; ++i) {
    const std::string answer = ask(std::string(kChunkedHead) + "3\r\nabc\r\n0\r\n\r\n");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
  }
}

TEST_F(HostileTest, ABodyLargerThanAllOfThemMayHoldIsStillTaken) {
  start({.max_body_bytes = 1 << 20, .max_total_body_bytes = 1 << 16});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ask(post("/echo", std::string(1 << 20, 'x'))).starts_with("HTTP/1.1 200"));
  }
}

// The memory belongs to a body until it was read, not until its answer ended.
TEST_F(HostileTest, ABodyIsReleasedWhenItsHandlerHasReadIt) {
  start({.max_body_bytes = 1000, .max_total_body_bytes = 1000});
  Client thinking(server_->port());
  thinking.send(post("/think", std::string(1000, 'x')));
  ASSERT_TRUE(events_->wait_held(1));
  std::string answer;
  for (int i = 0; i < 500 && !answer.starts_with("HTTP/1.1 200"); ++i) {
    answer = ask(post("/echo", std::string(900, 'y')));
  }
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
}

// When uploads that do not go on hold all the memory, the largest of them gives way.
TEST_F(HostileTest, UnfinishedUploadsGiveWayToSmallerOnes) {
  start({.max_body_bytes = 1000, .max_total_body_bytes = 1500});
  Client first(server_->port()), second(server_->port());
  first.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + std::string(900, 'a'));
  second.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + std::string(400, 'a'));
  for (int i = 0; i < 20; ++i) {
    const std::string answer = ask(post("/echo", std::string(300, 'y')));
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
  }
  EXPECT_TRUE(first.read_until_text("}}").starts_with("HTTP/1.1 503"));
}

TEST_F(HostileTest, RoutesWithoutABodyKeepNone) {
  start({.max_body_bytes = 32 << 20, .max_total_body_bytes = 1000});
  const int64_t before = resident_memory().bytes;
  Client client(server_->port());
  client.send("GET /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 33554432\r\n\r\n");
  client.send(std::string(32 << 20, 'x'));
  EXPECT_NE(client.read_until_text(": open").find(": open"), std::string::npos);
  EXPECT_LT(resident_memory().bytes - before, (32 << 20) + (8 << 20));  // the test's own string
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A body of megabytes is read into ten times as many bytes of small parts. What they leave goes back at once, for a
// request that is refused never reaches the engine, which gives back what it leaves when it is idle.
TEST(Hostile, WhatALargeBodyLeavesFreeGoesBack) {
  bound_free_memory();
  std::string last;  // stays where it is, behind all that was freed
  Router router;
  router.add({"POST", "/parts", AuthLevel::open, [&last](auto, auto writer) {
                std::vector<std::string> parts(48 << 10);
                for (std::string& part : parts) part.assign(1000, 'x');
                last.assign(1000, 'y');
                writer->send(200, "text/plain", "read");
              }});
  HttpServer server({.port = 0}, std::move(router));
  ASSERT_TRUE(server.start().ok());
  const auto post_bytes = [&](size_t bytes) {
    Client client(server.port());
    client.send(post("/parts", std::string(bytes, 'x')));
    EXPECT_TRUE(client.read_until_text("read").starts_with("HTTP/1.1 200"));
  };
  const int64_t before = resident_memory().bytes;
  post_bytes(10);
  EXPECT_GT(resident_memory().bytes, before + (32 << 20))
      << "the allocator gives parts back by itself: this test shows nothing";
  post_bytes(8 << 20);
  // The answer may be here before the memory is back.
  for (int i = 0; i < 2000 && resident_memory().bytes > before + (24 << 20); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_LE(resident_memory().bytes, before + (24 << 20));
}
#endif

// A reader that keeps up gets events of any size; the cap is for what lies unsent.
TEST_F(HostileTest, AnEventLargerThanTheBufferPasses) {
  start({.max_write_buffer_bytes = 64 << 10});
  Client client(server_->port());
  client.send(get("/hold", "Connection: close\r\n"));
  ASSERT_TRUE(events_->wait_held(1));
  std::shared_ptr<ResponseWriter> writer = events_->held[0];
  size_t sent_bytes = 0;
  for (int i = 1; i <= 20; ++i) {
    const std::string event = "data: " + std::string(i * 100'000, 'x') + "\n\n";
    sent_bytes += event.size();
    writer->write(event);
    client.read_until([&](const std::string& got) { return got.size() >= sent_bytes; });
  }
  writer->end();
  const std::string answer = client.read_all();
  EXPECT_TRUE(answer.ends_with("\n\n\r\n0\r\n\r\n"));
  EXPECT_GT(answer.size(), sent_bytes);
}

// Whoever asks for room before it writes is never cut, one write that does not ask still fits, and who waits is told.
TEST_F(HostileTest, AStreamThatAsksForRoomIsWhole) {
  start({.max_write_buffer_bytes = 64 << 10});
  Client client(server_->port(), 4096);
  client.send(get("/hold", "Connection: close\r\n"));
  ASSERT_TRUE(events_->wait_held(1));
  std::shared_ptr<ResponseWriter> writer = events_->held[0];
  int left_out = 0;
  for (int i = 0; i < 20000; ++i) {
    if (writer->has_room()) writer->write("data: " + std::string(1016, 'x') + "\n\n");
    else ++left_out;
  }
  EXPECT_GT(left_out, 0);
  std::promise<void> room;
  do {  // until the system's own buffers are full, too
    writer->write("data: " + std::string(300'000, 'z') + "\n\n");
  } while (!writer->call_when_room([&] { room.set_value(); }));
  const std::future<void> has_room = room.get_future();
  client.read_until([&](const std::string&) { return has_room.wait_for(0s) == std::future_status::ready; });
  ASSERT_EQ(has_room.wait_for(kPatience), std::future_status::ready);
  EXPECT_FALSE(writer->call_when_room([] { ADD_FAILURE() << "there is room"; }));
  writer->write("data: " + std::string(100'000, 'y') + "\n\n");
  writer->end();
  const std::string answer = client.read_all();
  EXPECT_TRUE(answer.ends_with("y\n\n\r\n0\r\n\r\n")) << answer.substr(answer.size() - 300);
}

// Nobody's answer is small enough to be cut alone; together they are too much.
TEST_F(HostileTest, AllUnsentBytesTogetherHaveACap) {
  start({.max_total_unsent_bytes = 50 << 20});
  std::vector<std::unique_ptr<Client>> clients;
  for (const size_t mib : {20, 24, 22}) {
    clients.push_back(std::make_unique<Client>(server_->port(), 4096));
    clients.back()->send(get("/hold", "Connection: close\r\n"));
    ASSERT_TRUE(events_->wait_held(clients.size()));
    events_->held.back()->write(std::string(mib << 20, 'x'));
  }
  EXPECT_TRUE(events_->wait_disconnects(1));  // the largest
  EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos);
  for (const auto& writer : events_->held) writer->end();
  EXPECT_GT(clients[0]->read_all().size(), size_t{20} << 20);
  EXPECT_LT(clients[1]->read_all().size(), size_t{24} << 20);
  EXPECT_GT(clients[2]->read_all().size(), size_t{22} << 20);
  EXPECT_EQ(server_->active_requests(), 0);
}

TEST_F(HostileTest, AStreamThatEndsEarlySaysWhy) {
  start({.max_write_buffer_bytes = 64 << 10});
  Client client(server_->port(), 4096);
  client.send(get("/hold"));
  ASSERT_TRUE(events_->wait_held(1));
  std::shared_ptr<ResponseWriter> writer = events_->held[0];
  for (int i = 0; i < 20000; ++i) writer->write("data: " + std::string(1024, 'x') + "\n\n");
  EXPECT_TRUE(events_->wait_disconnects(1));  // the engine hears of it at once
  const std::string answer = client.read_until_text("data: [DONE]\n\n\r\n0\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("\n\n\r\n0\r\n\r\n")) << answer.substr(answer.size() - 300);
  const size_t error = answer.find("data: {\"error\":");
  ASSERT_NE(error, std::string::npos);
  EXPECT_NE(answer.find("\"code\":\"reader_too_slow\"", error), std::string::npos) << answer.substr(error);
  Client dropped(server_->port());
  dropped.send(get("/drops-events"));
  EXPECT_NE(dropped.read_until_text("0\r\n\r\n").find("\"code\":\"stream_dropped\""), std::string::npos);
}

}  // namespace
}  // namespace warpweave::server
