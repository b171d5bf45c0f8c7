// The transport from outside: raw bytes into a socket, raw bytes out.
#include "server/testing/http_test.h"

#include <cstdlib>
#include <thread>

#include "server/http_wire.h"
#include "server/route_table.h"

namespace warpweave::server {
namespace {

using namespace std::chrono_literals;
using namespace testing;

class HttpServerTest : public HttpTest {};

TEST_F(HttpServerTest, AnswersAndKeepsTheConnection) {
  start();
  Client client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.forget();
    client.send(get("/ping"));
    const std::string answer = client.read_until_text("pong");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;
    EXPECT_NE(answer.find("Content-Length: 4\r\n"), std::string::npos);
  }
  EXPECT_FALSE(client.closed());
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  Client client(server_->port());
  std::string all;
  for (int i = 0; i < 50; ++i) all += post("/echo?n=" + std::to_string(i), "body");
  client.send(all + get("/stream") + get("/ping"));
  const std::string answer = client.read_until_text("pong");
  size_t at = 0;
  for (int i = 0; i < 50; ++i) {
    at = answer.find("/echo|n=" + std::to_string(i) + "|body", at);
    ASSERT_NE(at, std::string::npos) << i;
  }
  EXPECT_NE(answer.find("data: 2", at), std::string::npos);
  EXPECT_EQ(count(answer, "HTTP/1.1 200"), 52);
}

TEST_F(HttpServerTest, ManyPipelinedBytesWhileARequestRunsAreNotReadWithoutBound) {
  start();
  Client client(server_->port());
  client.send(post("/think", "x"));
  ASSERT_TRUE(events_->wait_held(1));
  std::thread sender([&] {
    std::string all;
    for (int i = 0; i < 2000; ++i) all += get("/ping");
    client.send(all);
  });
  {
    std::lock_guard lock(events_->mutex);
    events_->held[0]->send(200, "text/plain", "thought");
  }
  const std::string answer =
      client.read_until([](const std::string& got) { return count(got, "pong") == 2000; });
  sender.join();
  EXPECT_EQ(count(answer, "HTTP/1.1 200"), 2001);
}

TEST_F(HttpServerTest, RequestArrivingByteByByte) {
  start();
  Client client(server_->port());
  for (char c : post("/echo", "slow")) client.send({&c, 1});
  EXPECT_NE(client.read_until_text("slow").find("/echo||slow"), std::string::npos);
}

TEST_F(HttpServerTest, ChunkedRequestBody) {
  start();
  const std::string answer = ask(
      "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
  EXPECT_NE(answer.find("abcdefg"), std::string::npos) << answer;
}

TEST_F(HttpServerTest, StreamsChunksToHttp11AndRawToHttp10) {
  start();
  const std::string chunked = ask(get("/stream"));
  EXPECT_NE(chunked.find("Transfer-Encoding: chunked"), std::string::npos);
  EXPECT_NE(chunked.find("9\r\ndata: 0\n\n\r\n"), std::string::npos) << chunked;
  EXPECT_TRUE(chunked.ends_with("0\r\n\r\n")) << chunked;
  Client old(server_->port());
  old.send("GET /stream HTTP/1.0\r\n\r\n");
  const std::string raw = old.read_all();
  EXPECT_EQ(raw.find("chunked"), std::string::npos);
  EXPECT_TRUE(raw.ends_with("data: 0\n\ndata: 1\n\ndata: 2\n\n")) << raw;
}

struct Malformed {
  std::string request;
  std::string status;
};

TEST_F(HttpServerTest, MalformedRequestsGetOpenAiShapedErrors) {
  start({.max_header_bytes = 4096, .max_body_bytes = 1000});
  const std::string big(5000, 'a');
  const std::vector<Malformed> cases = {
      {"GARBAGE\r\n\r\n", "400"},
      {"GET /ping HTTP/1.1\r\n\r\n", "400"},  // no Host
      {"GET /ping HTTP/3.7\r\nHost: x\r\n\r\n", "505"},
      {"GET /pi%zzng HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
      {"GET /ping%00 HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
      {"GET ping HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
      {"GET /ping HTTP/1.1\r\nHost: x\r\nA: " + big + "\r\n\r\n", "431"},
      {"GET /" + big + " HTTP/1.1\r\nHost: x\r\n\r\n", "431"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", "400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n", "400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", "413"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
       "0\r\n\r\n", "400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nabc\r\n", "400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
           std::string(2000, 'b') + "\r\n0\r\n\r\n", "413"},
      {"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", "404"},
      {"GET /pingg HTTP/1.1\r\nHost: x\r\n\r\n", "404"},
      {"DELETE /ping HTTP/1.1\r\nHost: x\r\n\r\n", "405"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", "415"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: identity\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
       "415"},
      {"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n", "405"},
  };
  for (const Malformed& c : cases) {
    Client client(server_->port());
    client.send(c.request);
    const std::string answer = client.read_until_text("}}");
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 " + c.status)) << c.request << "\n" << answer;
    EXPECT_NE(answer.find("{\"error\":{\"message\":"), std::string::npos) << answer;
  }
  EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos);
}

TEST_F(HttpServerTest, ARefusedLargeUploadStillGetsItsAnswer) {
  start({.max_body_bytes = 1000});
  Client client(server_->port());
  std::thread sender([&] { client.send(post("/echo", std::string(4 << 20, 'x'))); });
  const std::string answer = client.read_until_text("}}");
  sender.join();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 413")) << answer;
}

TEST_F(HttpServerTest, ExpectContinue) {
  start({.max_body_bytes = 1000});
  Client client(server_->port());
  client.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(client.read_until_text("\r\n\r\n").starts_with("HTTP/1.1 100 Continue"));
  client.forget();
  client.send("hello");
  EXPECT_NE(client.read_until_text("hello").find("/echo||hello"), std::string::npos);
  Client refused(server_->port());
  refused.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(refused.read_until_text("}}").starts_with("HTTP/1.1 413"));
}

TEST_F(HttpServerTest, HeadAndOptions) {
  start();
  const std::string head = ask("HEAD /ping HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(head.find("Content-Length: 4\r\n"), std::string::npos);
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  const std::string options = ask("OPTIONS /echo HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(options.starts_with("HTTP/1.1 204")) << options;
  EXPECT_NE(options.find("Access-Control-Allow-Methods: POST, OPTIONS"), std::string::npos);
  EXPECT_EQ(ask(post("/admin", "")).find("Access-Control-Allow-Origin"), std::string::npos);
}

TEST_F(HttpServerTest, HandlersCannotInjectHeadersOrLeakExceptions) {
  start();
  EXPECT_EQ(ask(post("/admin", "")).find("\r\nInjected"), std::string::npos);
  const std::string thrown = ask(get("/throws"));
  EXPECT_TRUE(thrown.starts_with("HTTP/1.1 500")) << thrown;
  EXPECT_EQ(thrown.find("secret"), std::string::npos);
  EXPECT_TRUE(ask(get("/drops")).starts_with("HTTP/1.1 500"));
  const std::string cut = ask(get("/drops-stream"));
  EXPECT_FALSE(cut.ends_with("0\r\n\r\n")) << cut;
}

// Anthropic's clients read errors in a shape of their own, also those that no handler has written.
TEST_F(HttpServerTest, RefusalsOfMessagesHaveAnthropicsShape) {
  start({.api_key = "user"});
  const std::string answer = ask(post("/v1/messages", "{}"));  // no route of this test
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 404")) << answer;
  EXPECT_NE(
      answer.find(
          "\r\n\r\n{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\",\"message\":\"there is no /v1/messages"),
      std::string::npos)
      << answer;
  EXPECT_NE(ask(post("/echo", "a")).find("{\"error\":{\"message\""), std::string::npos);
}

TEST_F(HttpServerTest, KeysAreNeededWhereDeclared) {
  start({.api_key = "user", .admin_api_key = "root"});
  const auto with = [](std::string_view key) {
    return "Authorization: Bearer " + std::string(key) + "\r\n";
  };
  EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos);
  EXPECT_TRUE(ask(post("/echo", "a")).starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(ask(post("/echo", "a", with("use"))).starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(ask(post("/echo", "a", with("userr"))).starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(ask(post("/echo", "a", with(""))).starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(ask(post("/echo", "a", with("user"))).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(ask(post("/echo", "a", with("root"))).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(ask(post("/admin", "", with("user"))).starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(ask(post("/admin", "", with("root"))).starts_with("HTTP/1.1 200"));
  EXPECT_TRUE(ask(get("/models/a%2Fb", with("user"))).ends_with("/models/a/b"));
  EXPECT_TRUE(ask(get("/models/a")).starts_with("HTTP/1.1 401"));
  EXPECT_TRUE(ask("GET http://h/models/a HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 401"));
}

TEST_F(HttpServerTest, DisconnectIsSeenWhileARequestRuns) {
  start();
  Client thinking(server_->port());
  thinking.send(post("/think", "x"));
  Client streaming(server_->port());
  streaming.send(get("/hold"));
  streaming.read_until_text(": open");
  ASSERT_TRUE(events_->wait_held(2));
  EXPECT_EQ(server_->active_requests(), 2);
  thinking.close();
  streaming.close();
  EXPECT_TRUE(events_->wait_disconnects(2));
}

TEST_F(HttpServerTest, DisconnectIsSeenBehindPipelinedBytes) {
  start();
  Client client(server_->port());
  client.send(post("/think", "x") + get("/ping"));
  ASSERT_TRUE(events_->wait_held(1));
  client.close();
  EXPECT_TRUE(events_->wait_disconnects(1));
}

TEST_F(HttpServerTest, AReaderSlowerThanItsStreamIsCutOff) {
  start({.max_write_buffer_bytes = 64 << 10});
  Client client(server_->port(), 4096);
  client.send(get("/hold"));
  ASSERT_TRUE(events_->wait_held(1));
  std::shared_ptr<ResponseWriter> writer = events_->held[0];
  for (int i = 0; i < 20000; ++i) writer->write(std::string(1024, 'x'));  // 20 MB, nobody reads
  EXPECT_TRUE(events_->wait_disconnects(1));
}

TEST_F(HttpServerTest, AReaderThatStopsIsCutOffBehindWhatWasSentBefore) {
  start({.max_write_buffer_bytes = 64 << 10});
  Client client(server_->port(), 4096);
  client.send(get("/hold"));
  ASSERT_TRUE(events_->wait_held(1));
  std::shared_ptr<ResponseWriter> writer = events_->held[0];
  const auto now = [] { return std::chrono::steady_clock::now(); };
  for (auto had_room = now(); now() - had_room < 200ms;) {  // until the connection waits for its reader
    if (writer->has_room()) {
      writer->write(std::string(1024, 'x'));
      had_room = now();
    } else {
      std::this_thread::sleep_for(1ms);
    }
  }
  for (int i = 0; i < 100; ++i) writer->write(std::string(1024, 'x'));
  EXPECT_TRUE(events_->wait_disconnects(1));
}

TEST_F(HttpServerTest, AStalledReaderTimesOut) {
  start({.max_write_buffer_bytes = 64 << 20, .write_timeout_s = 0.2});
  Client client(server_->port(), 4096);
  client.send(get("/hold"));
  ASSERT_TRUE(events_->wait_held(1));
  events_->held[0]->write(std::string(20 << 20, 'x'));
  EXPECT_TRUE(events_->wait_disconnects(1));
}

TEST_F(HttpServerTest, SlowHeadersGet408AndIdleConnectionsClose) {
  start({.read_timeout_s = 0.2, .idle_timeout_s = 0.2});
  Client slow(server_->port());
  slow.send("GET /ping HTTP/1.1\r\nHo");
  EXPECT_TRUE(slow.read_all().starts_with("HTTP/1.1 408"));
  Client body(server_->port());
  body.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc");
  EXPECT_TRUE(body.read_all().starts_with("HTTP/1.1 408"));
  Client idle(server_->port());
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle.closed());
}

TEST_F(HttpServerTest, OpenStreamsDoNotTimeOut) {
  start({.read_timeout_s = 0.1, .idle_timeout_s = 0.1, .write_timeout_s = 0.1});
  Client client(server_->port());
  client.send(get("/hold"));
  ASSERT_TRUE(events_->wait_held(1));
  std::this_thread::sleep_for(500ms);
  events_->held[0]->write("still here");
  EXPECT_NE(client.read_until_text("still here").find("still here"), std::string::npos);
}

TEST_F(HttpServerTest, ConnectionsPastTheCapGet503) {
  start({.max_connections = 2, .spare_connections = 1});
  Client a(server_->port()), b(server_->port());
  a.send(get("/hold"));
  b.send(get("/hold"));
  a.read_until_text(": open");
  b.read_until_text(": open");
  for (int i = 0; i < 3; ++i) EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos) << "health is answered";
  const std::string refused = ask(post("/echo", "x"));
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503")) << refused;
  EXPECT_NE(refused.find("too_many_connections"), std::string::npos) << refused;
  Client spare(server_->port());
  spare.send("GET /pi");
  std::this_thread::sleep_for(50ms);
  Client past(server_->port());
  EXPECT_TRUE(past.read_all().starts_with("HTTP/1.1 503"));
  a.close();
  std::string answer;
  for (int i = 0; i < 100 && answer.find("pong") == std::string::npos; ++i) {
    std::this_thread::sleep_for(10ms);
    answer = ask(get("/ping"));
  }
  EXPECT_NE(answer.find("pong"), std::string::npos);
}

// Bodies that wait for their handler or are in it cannot give way: the newcomer does.
TEST_F(HttpServerTest, AllBodiesTogetherHaveACap) {
  start({.max_body_bytes = 1000, .max_total_body_bytes = 1500});
  Client first(server_->port());
  first.send(post("/block", std::string(1000, 'x')));
  ASSERT_TRUE(events_->wait_held(1));
  const std::string refused = ask(post("/echo", std::string(900, 'x')));
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503")) << refused;
  EXPECT_TRUE(ask(post("/echo", std::string(500, 'x'))).starts_with("HTTP/1.1 200"));
  first.close();  // its handler has the body still
  EXPECT_TRUE(ask(post("/echo", std::string(900, 'x'))).starts_with("HTTP/1.1 503"));
  release_held();
  std::string answer;
  for (int i = 0; i < 500 && !answer.starts_with("HTTP/1.1 200"); ++i) {
    answer = ask(post("/echo", std::string(900, 'x')));
  }
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
}

// With every worker in a handler that does not end, /ping still answers.
TEST_F(HttpServerTest, HealthIsAnsweredWhileAllWorkersAreBusy) {
  start({.worker_threads = 2});
  Client first(server_->port()), second(server_->port());
  first.send(post("/block", "x"));
  second.send(post("/block", "x"));
  ASSERT_TRUE(events_->wait_held(2));
  for (int i = 0; i < 10; ++i) EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos);
  release_held();
}

TEST_F(HttpServerTest, ThousandIdleStreamsAndStillResponsive) {
  start();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 1000; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    if (!clients.back()->connected()) GTEST_SKIP() << "too few file descriptors here";
    clients.back()->send(get("/hold"));
  }
  ASSERT_TRUE(events_->wait_held(1000));
  EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos);
  {
    std::lock_guard lock(events_->mutex);
    for (auto& writer : events_->held) writer->write("data: tick\n\n");
  }
  for (auto& client : clients) {
    ASSERT_NE(client->read_until_text("tick").find("tick"), std::string::npos);
  }
  clients.clear();
  EXPECT_TRUE(events_->wait_disconnects(1000));
}

TEST_F(HttpServerTest, StreamsWrittenFromManyThreadsStayWhole) {
  start();
  constexpr int kStreams = 16, kPieces = 500;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.push_back(std::make_unique<Client>(server_->port()));
    clients.back()->send(get("/hold", "Connection: close\r\n"));
  }
  ASSERT_TRUE(events_->wait_held(kStreams));
  std::vector<std::thread> threads;
  for (int i = 0; i < kStreams; ++i) {
    threads.emplace_back([writer = events_->held[i]] {
      for (int piece = 0; piece < kPieces; ++piece) writer->write("[piece]");
      writer->end();
    });
  }
  for (auto& thread : threads) thread.join();
  for (auto& client : clients) {
    const std::string answer = client->read_all();
    EXPECT_EQ(count(answer, "7\r\n[piece]\r\n"), kPieces);
    EXPECT_TRUE(answer.ends_with("0\r\n\r\n"));
  }
}

TEST(Authorized, EveryLevelAndEveryKeySetting) {
  const ApiKeys none{}, user{"u", ""}, admin{"", "a"}, both{"u", "a"};
  for (const ApiKeys& keys : {none, user, admin, both}) {
    EXPECT_TRUE(authorized(AuthLevel::open, "", keys));
  }
  EXPECT_TRUE(authorized(AuthLevel::api_key, "", none));
  EXPECT_FALSE(authorized(AuthLevel::api_key, "", user));
  EXPECT_TRUE(authorized(AuthLevel::api_key, "bearer u", user));
  EXPECT_FALSE(authorized(AuthLevel::api_key, "Basic u", user));
  EXPECT_FALSE(authorized(AuthLevel::api_key, "u", user));
  EXPECT_TRUE(authorized(AuthLevel::api_key, "", admin));
  EXPECT_TRUE(authorized(AuthLevel::admin, "Bearer a", admin));
  EXPECT_FALSE(authorized(AuthLevel::admin, "", admin));
  EXPECT_FALSE(authorized(AuthLevel::admin, "", user));
  EXPECT_TRUE(authorized(AuthLevel::admin, "Bearer u", user));
  EXPECT_FALSE(authorized(AuthLevel::admin, "Bearer u", both));
  EXPECT_TRUE(authorized(AuthLevel::admin, "Bearer a", both));
  EXPECT_TRUE(authorized(AuthLevel::admin, "", none));
}

TEST(ConstantTimeEqual, ComparesLikeEquals) {
  EXPECT_TRUE(constant_time_equal("abc", "abc"));
  EXPECT_FALSE(constant_time_equal("abc", "abd"));
  EXPECT_FALSE(constant_time_equal("abcabc", "abc"));
  EXPECT_FALSE(constant_time_equal("ab", "abc"));
  EXPECT_FALSE(constant_time_equal("", "abc"));
  EXPECT_FALSE(constant_time_equal("abc", ""));
  EXPECT_TRUE(constant_time_equal("", ""));
}

}  // namespace
}  // namespace warpweave::server
