// One connection of the HTTP server, and what all of them share. Only connection.cc and beast_server.cc
// include this: they alone see Boost. Everything here runs on the I/O thread unless said otherwise. A
// connection always keeps a read pending (or as many pipelined bytes as it may hold), so that a client
// that goes away is noticed while its request runs.
#pragma once

#include <utility>  // Asio 1.74 uses std::exchange without including it

#include <boost/asio.hpp>
#include <boost/beast/http.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "server/exchange.h"
#include "server/http_server.h"
#include "server/http_wire.h"
#include "server/route_table.h"
#include "server/worker_pool.h"

namespace warpweave::server::beast {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using asio::ip::tcp;
using Executor = asio::io_context::executor_type;
using Socket = asio::basic_stream_socket<tcp, Executor>;
using Acceptor = asio::basic_socket_acceptor<tcp, Executor>;
using Timer = asio::basic_waitable_timer<std::chrono::steady_clock,
                                         asio::wait_traits<std::chrono::steady_clock>, Executor>;
using Task = asio::awaitable<void, Executor>;
inline constexpr asio::use_awaitable_t<Executor> kAwait;
using Clock = std::chrono::steady_clock;

inline Clock::duration seconds(double s) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(s));
}

// Lets other threads post work for as long as the I/O thread runs.
class IoGate {
 public:
  explicit IoGate(asio::io_context& io) : io_(&io) {}
  template <typename F>
  void post(F&& work) {
    std::lock_guard lock(mutex_);
    if (io_ != nullptr) asio::post(*io_, std::forward<F>(work));
  }
  void close() {
    std::lock_guard lock(mutex_);
    io_ = nullptr;
  }

 private:
  std::mutex mutex_;
  asio::io_context* io_;
};

class Connection;

// What connections share.
struct Shared {
  Shared(ServerOptions server_options, const Router& router, asio::io_context& io)
      : options(std::move(server_options)),
        keys{options.api_key, options.admin_api_key},
        routes(router),
        gate(std::make_shared<IoGate>(io)),
        workers(options.worker_threads, options.max_pending_handlers) {}

  const ServerOptions options;
  const ApiKeys keys;
  const RouteTable routes;
  const std::shared_ptr<IoGate> gate;
  std::unordered_set<std::shared_ptr<Connection>> connections;
  std::array<char, 64 << 10> read_buffer;  // one for all: filled and parsed without suspending
  size_t body_bytes = 0;                   // announced by requests not yet answered
  std::atomic<bool> draining{false};
  bool stopping = false;                   // of the I/O thread
  std::atomic<int> active_requests{0};
  WorkerPool workers;                      // last: its jobs use the rest
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared& shared, Socket socket) : shared_(shared), socket_(std::move(socket)) {
    set_deadline(shared_.options.idle_timeout_s);
  }

  void start_reading() {
    if (std::exchange(reading_, true)) return;
    asio::co_spawn(socket_.get_executor(), read_loop(shared_from_this()), asio::detached);
  }
  void close();
  void flush();
  void check_deadline(Clock::time_point now);

 private:
  using Parser = http::request_parser<http::string_body>;
  enum class Phase { idle, receiving, answering, lingering };

  Task read_loop(std::shared_ptr<Connection> self);
  void on_bytes(std::string_view bytes);
  size_t parse(std::string_view data);
  void begin_request();
  bool check_header();
  bool check_access(std::string_view method, const RouteTable::Match& match);
  bool reserve_body();
  void start_exchange();
  void open_exchange(bool keep_alive, bool cors);
  void reject(int status, std::string_view message, HeaderList headers = {});
  void reject_unparsable(error_code error);
  void answer_preflight(const std::string& allowed);
  void finish_exchange(bool keep_alive, int status);
  void linger();
  Task write_rest(std::shared_ptr<Connection> self, std::string bytes, size_t done);
  void after_write();
  void set_deadline(double s) { deadline_ = Clock::now() + seconds(s); }

  Shared& shared_;
  Socket socket_;
  Phase phase_ = Phase::idle;
  std::optional<Clock::time_point> deadline_;
  std::string pending_;                  // bytes read and not parsed
  std::unique_ptr<Parser> parser_;       // of the request being received
  bool header_checked_ = false;
  bool reading_ = false;
  bool writing_ = false;
  size_t reserved_body_bytes_ = 0;
  Target target_;
  const Route* route_ = nullptr;
  std::shared_ptr<Exchange> exchange_;   // set while answering
  Exchange::Output current_;             // flags of the output being written
};

}  // namespace warpweave::server::beast
