// The n-th accept, read, write or registration of a socket fails, for every n of a scenario and with the errors that
// the system gives: the connection concerned may end, and the server takes the next one.
#include <sys/epoll.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "base/log.h"
#include "server/testing/http_test.h"

namespace warpweave::server {
namespace {

enum class Call { accept, read, write, watch };

std::atomic<int> failing{-1};      // a Call; -1: none
std::atomic<int> calls_left{0};    // until the one that fails
std::atomic<int> error_number{0};
std::atomic<bool> has_failed{false};
thread_local bool is_client = false;  // the test's own calls never fail

bool fails(Call call) {
  if (is_client || failing != static_cast<int>(call) || --calls_left != 0) return false;
  has_failed = true;
  errno = error_number;
  return true;
}

}  // namespace
}  // namespace warpweave::server

// In place of the C library's.
extern "C" {

using warpweave::server::Call;

int accept(int fd, sockaddr* address, socklen_t* bytes) {
  if (warpweave::server::fails(Call::accept)) return -1;
  return static_cast<int>(syscall(SYS_accept, fd, address, bytes));
}
ssize_t recv(int fd, void* into, size_t bytes, int flags) {
  if (warpweave::server::fails(Call::read)) return -1;
  return syscall(SYS_recvfrom, fd, into, bytes, flags, nullptr, nullptr);
}
ssize_t recvmsg(int fd, msghdr* message, int flags) {
  if (warpweave::server::fails(Call::read)) return -1;
  return syscall(SYS_recvmsg, fd, message, flags);
}
ssize_t send(int fd, const void* from, size_t bytes, int flags) {
  if (warpweave::server::fails(Call::write)) return -1;
  return syscall(SYS_sendto, fd, from, bytes, flags, nullptr, 0);
}
ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  if (warpweave::server::fails(Call::write)) return -1;
  return syscall(SYS_sendmsg, fd, message, flags);
}
int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) noexcept {
  if (operation == EPOLL_CTL_ADD && warpweave::server::fails(Call::watch)) return -1;
  return static_cast<int>(syscall(SYS_epoll_ctl, epoll, operation, fd, event));
}

}  // extern "C"

namespace warpweave::server {
namespace {

using namespace testing;

struct Failure {
  const char* name;
  Call call;
  int error;
};

class SystemCalls : public HttpTest, public ::testing::WithParamInterface<Failure> {
 protected:
  void SetUp() override {
    is_client = true;
    spdlog::set_level(spdlog::level::off);
  }
  void TearDown() override {
    failing = -1;
    spdlog::set_level(spdlog::level::info);
  }

  void requests() {
    for (const std::string& request :
         {get("/ping") + post("/echo", std::string(3000, 'x')) + get("/ping", "Connection: close\r\n"),
          get("/stream", "Connection: close\r\n"),
          std::string("POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: "
                      "100-continue\r\nContent-Length: 2\r\n\r\nab")}) {
      Client client(server_->port());
      client.send(request);
      client.read_all();
      EXPECT_TRUE(client.closed()) << "neither answered nor closed";
    }
    Client leaving(server_->port());
    leaving.send(get("/hold"));
    leaving.read_until_text("\r\n\r\n");
  }
};

TEST_P(SystemCalls, ThatFailOnceEndAConnectionAtMost) {
  start();
  int n = 0, quiet = 0;
  for (; quiet < 3 && n < 1000 && !HasFailure(); ++n) {
    has_failed = false;
    error_number = GetParam().error;
    calls_left = n + 1;
    failing = static_cast<int>(GetParam().call);
    requests();
    failing = -1;
    quiet = has_failed ? 0 : quiet + 1;
    EXPECT_NE(ask(get("/ping")).find("pong"), std::string::npos) << "after call " << n;
    EXPECT_TRUE(ask(post("/echo", "whole")).ends_with("|whole")) << "after call " << n;
    release_held([](ResponseWriter&) {});
  }
  EXPECT_GT(n, 5) << "no call of this kind is made";
  EXPECT_LT(n, 1000);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (server_->active_requests() > 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(server_->active_requests(), 0);
}

INSTANTIATE_TEST_SUITE_P(Errors, SystemCalls,
                         ::testing::Values(Failure{"accept_no_descriptor", Call::accept, EMFILE},
                                           Failure{"accept_no_memory", Call::accept, ENOBUFS},
                                           Failure{"accept_aborted", Call::accept, ECONNABORTED},
                                           Failure{"accept_refused", Call::accept, EPERM},
                                           Failure{"read_reset", Call::read, ECONNRESET},
                                           Failure{"read_no_memory", Call::read, ENOMEM},
                                           Failure{"read_interrupted", Call::read, EINTR},
                                           Failure{"write_pipe", Call::write, EPIPE},
                                           Failure{"write_no_memory", Call::write, ENOBUFS},
                                           Failure{"write_interrupted", Call::write, EINTR},
                                           Failure{"watch_no_memory", Call::watch, ENOMEM},
                                           Failure{"watch_no_space", Call::watch, ENOSPC}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace warpweave::server
