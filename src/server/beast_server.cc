#include <thread>
#include <vector>

#include "base/log.h"
#include "server/connection.h"

namespace warpweave::server {
namespace {

using namespace beast;

constexpr char kFull[] =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
    "Connection: close\r\n\r\n";

Task sweep_deadlines(Shared& shared, Timer& timer) {
  const ServerOptions& options = shared.options;
  const double shortest =
      std::min({options.read_timeout_s, options.idle_timeout_s, options.write_timeout_s});
  const auto period = seconds(std::clamp(shortest / 4, 0.01, 0.5));
  while (!shared.stopping) {  // a cancel just after the timer ran out goes unnoticed
    timer.expires_after(period);
    error_code error;
    co_await timer.async_wait(asio::redirect_error(kAwait, error));
    if (error) co_return;
    const auto now = Clock::now();
    // A copy: closing removes the connection from the set.
    const std::vector<std::shared_ptr<Connection>> all(shared.connections.begin(),
                                                       shared.connections.end());
    for (const auto& connection : all) connection->check_deadline(now);
  }
}

Task accept_connections(Shared& shared, Acceptor& acceptor) {
  Timer pause(acceptor.get_executor());
  while (acceptor.is_open()) {
    Socket socket(acceptor.get_executor());
    error_code error;
    co_await acceptor.async_accept(socket, asio::redirect_error(kAwait, error));
    if (error == asio::error::operation_aborted || !acceptor.is_open()) co_return;
    if (error) {  // out of file descriptors, most likely: do not spin
      LOG_WARN("accept failed: {}", error.message());
      pause.expires_after(std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(kAwait, error));
      continue;
    }
    socket.non_blocking(true, error);
    socket.set_option(tcp::no_delay(true), error);
    if (static_cast<int>(shared.connections.size()) >= shared.options.max_connections) {
      socket.write_some(asio::buffer(kFull, sizeof kFull - 1), error);
      continue;
    }
    auto connection = std::make_shared<Connection>(shared, std::move(socket));
    shared.connections.insert(connection);
    connection->start_reading();
  }
}

}  // namespace

struct HttpServer::Impl {
  Impl(ServerOptions options, const Router& router) : shared(std::move(options), router, io) {}

  Status listen();

  asio::io_context io{1};
  Shared shared;
  Acceptor acceptor{io};
  Timer sweep_timer{io};
  std::thread thread;
  int port = 0;
};

Status HttpServer::Impl::listen() {
  const ServerOptions& options = shared.options;
  const std::string where = options.host + ":" + std::to_string(options.port);
  error_code error;
  asio::ip::address address = asio::ip::make_address(options.host, error);
  if (error) {
    asio::ip::tcp::resolver resolver(io);
    const auto found = resolver.resolve(options.host, std::to_string(options.port), error);
    if (error || found.empty()) {
      return Status::invalid_argument("--host " + options.host + " is no address of this machine (" +
                                          error.message() + "); use --host 127.0.0.1 or 0.0.0.0",
                                      "--host");
    }
    address = found.begin()->endpoint().address();
  }
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    error_code ignored;
    acceptor.close(ignored);
    const bool in_use = error == asio::error::address_in_use;
    return Status::invalid_argument(
        "cannot listen on " + where + ": " + error.message() +
            (in_use ? "; stop the other process or use --port " +
                          std::to_string(options.port % 65535 + 1)
                    : "; use --host 127.0.0.1 or 0.0.0.0 and a --port above 1023"),
        in_use ? "--port" : "--host");
  }
  port = acceptor.local_endpoint(error).port();
  return {};
}

HttpServer::HttpServer(ServerOptions options, Router router)
    : impl_(std::make_unique<Impl>(std::move(options), router)) {}

HttpServer::~HttpServer() { stop(); }

Status HttpServer::start() {
  WW_RETURN_IF_ERROR(impl_->listen());
  asio::co_spawn(impl_->io, accept_connections(impl_->shared, impl_->acceptor), asio::detached);
  asio::co_spawn(impl_->io, sweep_deadlines(impl_->shared, impl_->sweep_timer), asio::detached);
  impl_->thread = std::thread([impl = impl_.get()] { impl->io.run(); });
  return {};
}

int HttpServer::port() const { return impl_->port; }

void HttpServer::begin_drain() { impl_->shared.draining = true; }

int HttpServer::active_requests() const { return impl_->shared.active_requests; }

void HttpServer::stop() {
  if (!impl_->thread.joinable()) return;
  // With every socket closed and nothing new posted, the I/O thread runs out of work and returns.
  asio::post(impl_->io, [impl = impl_.get()] {
    impl->shared.stopping = true;
    impl->shared.gate->close();
    error_code ignored;
    impl->acceptor.close(ignored);
    impl->sweep_timer.cancel();
    const std::vector<std::shared_ptr<Connection>> all(impl->shared.connections.begin(),
                                                       impl->shared.connections.end());
    for (const auto& connection : all) connection->close();
  });
  impl_->thread.join();
  impl_->shared.workers.stop();
}

}  // namespace warpweave::server
