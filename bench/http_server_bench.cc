// The HTTP server without an engine: requests per second on a trivial route, and the memory of
// many idle SSE connections. Server and clients are two processes, so that the memory is the
// server's own.  Usage: http_server_bench [connections=1000] [seconds=3]
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/http_server.h"

namespace {

using namespace warpweave::server;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double resident_mb(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmRSS:")) return std::atof(line.c_str() + 6) / 1024;
  }
  return 0;
}

// Serves until killed; writes its port into `port_pipe`.
[[noreturn]] void run_server(int port_pipe) {
  std::vector<std::shared_ptr<ResponseWriter>> held;
  Router router;
  router.add({"GET", "/ping", AuthLevel::open,
              [](auto, auto writer) { writer->send(200, "text/plain", "pong"); }});
  std::mutex mutex;
  router.add({"GET", "/stream", AuthLevel::open, [&](auto, auto writer) {
                writer->begin_stream(200, "text/event-stream");
                writer->write(": open\n\n");
                std::lock_guard lock(mutex);
                held.push_back(writer);
              }});
  ServerOptions options;
  options.port = 0;
  options.max_connections = 100000;
  HttpServer server(options, std::move(router));
  if (!server.start().ok()) std::exit(1);
  const int port = server.port();
  if (write(port_pipe, &port, sizeof port) != sizeof port) std::exit(1);
  while (true) pause();
}

int connect_to(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    std::perror("connect");
    std::exit(1);
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

void send_get(int fd, const std::string& path) {
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) < 0) std::exit(1);
}

std::string receive_until(int fd, const std::string& end) {
  std::string got;
  char buffer[4096];
  while (!got.ends_with(end)) {
    const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n <= 0) std::exit(1);
    got.append(buffer, n);
  }
  return got;
}

// Each client thread keeps one request on each of its connections, one after the other.
void measure_rate(int port, int threads, int per_thread, double duration_s) {
  std::atomic<long> answered{0};
  std::vector<std::thread> clients;
  const auto start = Clock::now();
  for (int t = 0; t < threads; ++t) {
    clients.emplace_back([&] {
      std::vector<int> fds;
      for (int i = 0; i < per_thread; ++i) fds.push_back(connect_to(port));
      while (seconds_since(start) < duration_s) {
        for (int fd : fds) send_get(fd, "/ping");
        for (int fd : fds) receive_until(fd, "pong");
        answered += per_thread;
      }
      for (int fd : fds) close(fd);
    });
  }
  for (std::thread& client : clients) client.join();
  std::printf("%d connections, GET /ping: %.0f requests/s\n", threads * per_thread,
              static_cast<double>(answered) / seconds_since(start));
}

void measure_idle_streams(int port, pid_t server, int connections) {
  const double before = resident_mb(server);
  std::vector<int> fds;
  for (int i = 0; i < connections; ++i) {
    fds.push_back(connect_to(port));
    send_get(fds.back(), "/stream");
  }
  for (int fd : fds) receive_until(fd, ": open\n\n\r\n");
  const double with_streams = resident_mb(server);
  const int fd = connect_to(port);
  std::vector<double> latencies;
  for (int i = 0; i < 1000; ++i) {
    const auto start = Clock::now();
    send_get(fd, "/ping");
    receive_until(fd, "pong");
    latencies.push_back(seconds_since(start) * 1e3);
  }
  std::sort(latencies.begin(), latencies.end());
  std::printf("%d idle SSE connections: %.1f MB more (%.1f MB in all, %.1f KB each); "
              "GET /ping beside them: median %.3f ms, p99 %.3f ms\n",
              connections, with_streams - before, with_streams,
              (with_streams - before) * 1024 / connections, latencies[500], latencies[990]);
  close(fd);
  for (int stream : fds) close(stream);
}

}  // namespace

int main(int argc, char** argv) {
  const int connections = argc > 1 ? std::atoi(argv[1]) : 1000;
  const double duration_s = argc > 2 ? std::atof(argv[2]) : 3;
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  int ports[2];
  if (pipe(ports) != 0) return 1;
  const pid_t server = fork();
  if (server == 0) run_server(ports[1]);
  int port = 0;
  if (read(ports[0], &port, sizeof port) != sizeof port) return 1;
  measure_idle_streams(port, server, connections);
  measure_rate(port, 1, 64, duration_s);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  return 0;
}
