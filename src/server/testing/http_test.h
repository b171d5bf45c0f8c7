// For the transport's tests: a client of raw bytes, and a server with routes that echo, stream, hold
// and fail. One thread uses a Client; Events is shared with the handlers.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http_server.h"

namespace warpweave::server::testing {

inline constexpr std::chrono::seconds kPatience{10};  // a bound for hangs, not a speed

class Client {
 public:
  explicit Client(int port, int receive_buffer_bytes = 0) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { close(); }
  Client(const Client&) = delete;

  bool connected() const { return connected_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      bytes.remove_prefix(n);
    }
  }
  // Reads until `enough` holds or the server closes or patience ends.
  template <typename F>
  std::string read_until(F enough) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!enough(received_) && std::chrono::steady_clock::now() < end) {
      pollfd waiting{fd_, POLLIN, 0};
      if (poll(&waiting, 1, 100) <= 0) continue;
      char buffer[65536];
      const ssize_t n = recv(fd_, buffer, sizeof buffer, 0);
      if (n <= 0) {
        closed_ = true;
        break;
      }
      received_.append(buffer, n);
    }
    return received_;
  }
  std::string read_all() { return read_until([](const std::string&) { return false; }); }
  std::string read_until_text(std::string_view text) {
    return read_until([&](const std::string& got) { return got.find(text) != std::string::npos; });
  }
  // The server has answered or closed: no use in sending on.
  bool refuses() {
    pollfd waiting{fd_, POLLIN, 0};
    return poll(&waiting, 1, 0) > 0;
  }
  bool closed() const { return closed_; }
  void forget() { received_.clear(); }

 private:
  int fd_ = -1;
  bool connected_ = false;
  bool closed_ = false;
  std::string received_;
};

inline int count(const std::string& text, std::string_view part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

inline std::string get(std::string_view path, std::string_view extra = "") {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\n" + std::string(extra) + "\r\n";
}
inline std::string post(std::string_view path, std::string_view body, std::string_view extra = "") {
  return "POST " + std::string(path) + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + std::string(extra) + "\r\n" + std::string(body);
}

// What the test routes share with the tests.
struct Events {
  std::mutex mutex;
  std::condition_variable changed;
  int disconnects = 0;
  bool released = false;  // /block goes on
  std::vector<std::shared_ptr<ResponseWriter>> held;  // streams kept open

  void disconnected() {
    std::lock_guard lock(mutex);
    ++disconnects;
    changed.notify_all();
  }
  bool wait_disconnects(int n) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, [&] { return disconnects >= n; });
  }
  bool wait_held(size_t n) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, kPatience, [&] { return held.size() >= n; });
  }
};

class HttpTest : public ::testing::Test {
 protected:
  ~HttpTest() override {
    release_held();
    server_.reset();
  }

  void release_held() {
    std::vector<std::shared_ptr<ResponseWriter>> held;
    std::lock_guard lock(events_->mutex);
    held.swap(events_->held);
    events_->released = true;
    events_->changed.notify_all();
  }

  // The streams of /hold, each after `work`; then they end with their writers.
  template <typename F>
  void release_held(const F& work) {
    std::vector<std::shared_ptr<ResponseWriter>> held;
    {
      std::lock_guard lock(events_->mutex);
      held.swap(events_->held);
    }
    for (const auto& writer : held) work(*writer);
  }

  Router make_router() {
    Router router;
    auto events = events_;
    router.add({"GET", "/ping", AuthLevel::open,
                [](auto, auto writer) { writer->send(200, "text/plain", "pong"); },
                /*runs_at_once=*/true});
    router.add({"POST", "/echo", AuthLevel::api_key, [](auto request, auto writer) {
                  writer->send(200, "text/plain", request->path + "|" + request->query + "|" +
                                                      request->body);
                }});
    router.add({"GET", "/models/*", AuthLevel::api_key, [](auto request, auto writer) {
                  writer->send(200, "text/plain", request->path);
                }});
    router.add({"POST", "/admin", AuthLevel::admin, [](auto, auto writer) {
                  writer->send(200, "text/plain", "done", {{"X-Odd", "a\r\nInjected: yes"}});
                }});
    router.add({"GET", "/stream", AuthLevel::open, [](auto, auto writer) {
                  writer->begin_stream(200, "text/event-stream");
                  for (int i = 0; i < 3; ++i) writer->write("data: " + std::to_string(i) + "\n\n");
                  writer->end();
                }});
    router.add({"GET", "/hold", AuthLevel::open, [events](auto, auto writer) {
                  writer->begin_stream(200, "text/event-stream");
                  writer->write(": open\n\n");
                  writer->on_disconnect([events] { events->disconnected(); });
                  std::lock_guard lock(events->mutex);
                  events->held.push_back(writer);
                  events->changed.notify_all();
                }});
    router.add({"POST", "/think", AuthLevel::open, [events](auto, auto writer) {
                  writer->on_disconnect([events] { events->disconnected(); });
                  std::lock_guard lock(events->mutex);
                  events->held.push_back(writer);
                  events->changed.notify_all();
                }});
    router.add({"POST", "/block", AuthLevel::open, [events](auto, auto writer) {
                  std::unique_lock lock(events->mutex);
                  events->held.push_back(writer);
                  events->changed.notify_all();
                  events->changed.wait_for(lock, kPatience, [&] { return events->released; });
                }});
    router.add({"GET", "/throws", AuthLevel::open, [](auto, auto) {
                  throw std::runtime_error("a secret path");
                }});
    router.add({"GET", "/drops", AuthLevel::open, [](auto, auto) {}});
    router.add({"GET", "/drops-stream", AuthLevel::open, [](auto, auto writer) {
                  writer->begin_stream(200, "text/plain");
                  writer->write("half");
                }});
    router.add({"GET", "/drops-events", AuthLevel::open, [](auto, auto writer) {
                  writer->begin_stream(200, "text/event-stream");
                  writer->write("data: half\n\n");
                }});
    return router;
  }

  void start(ServerOptions options = {}) {
    options.port = 0;
    server_ = std::make_unique<HttpServer>(std::move(options), make_router());
    const Status status = server_->start();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // One request on a connection of its own.
  std::string ask(std::string request) {
    const size_t line_end = request.find("\r\n");
    request.insert(line_end, "\r\nConnection: close");
    Client client(server_->port());
    client.send(request);
    return client.read_all();
  }

  std::shared_ptr<Events> events_ = std::make_shared<Events>();
  std::unique_ptr<HttpServer> server_;
};

}  // namespace warpweave::server::testing
