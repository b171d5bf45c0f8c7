#include <CLI/CLI.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdio>

#include "cli/commands.h"

namespace warpweave {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using tcp = boost::asio::ip::tcp;

struct Probe {
  beast::error_code error;
  int status = 0;
};

// GET /health, answered within the time or not at all.
Probe probe(const std::string& host, int port, double timeout_s) {
  boost::asio::io_context io;
  Probe result;
  tcp::resolver resolver(io);
  const auto addresses = resolver.resolve(host, std::to_string(port), result.error);
  if (result.error) return result;

  beast::tcp_stream stream(io);
  stream.expires_after(std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000)));
  http::request<http::empty_body> request{http::verb::get, "/health", 11};
  request.set(http::field::host, host);
  http::response<http::string_body> response;
  beast::flat_buffer buffer;
  stream.async_connect(addresses, [&](beast::error_code connect_error, const tcp::endpoint&) {
    if ((result.error = connect_error)) return;
    http::async_write(stream, request, [&](beast::error_code write_error, size_t) {
      if ((result.error = write_error)) return;
      http::async_read(stream, buffer, response, [&](beast::error_code read_error, size_t) {
        result.error = read_error;
        result.status = static_cast<int>(response.result_int());
      });
    });
  });
  io.run();
  return result;
}

}  // namespace

int health_command(std::span<const std::string> argv) {
  CLI::App app("Ask a running server whether it is ready: exit code 0 when it is, 1 when not", "warpweave health");
  std::string host = "127.0.0.1";
  int port = 30000;
  double timeout_s = 5;
  app.add_option("--host", host, "The server's address")->capture_default_str();
  app.add_option("--port", port, "The server's port")->capture_default_str()->check(CLI::Range(1, 65535));
  app.add_option("--timeout", timeout_s, "Seconds to wait")->capture_default_str()->check(CLI::Range(0.1, 3600.0));
  if (const std::optional<int> over = parse_command(app, argv)) return *over;

  const Probe answer = probe(host, port, timeout_s);
  const std::string where = host + ":" + std::to_string(port);
  if (answer.error) {
    return fail(Status::unavailable("no answer from " + where + ": " + answer.error.message() +
                                    "; is the server running there? See --host and --port"),
                kExitFailed);
  }
  if (answer.status != 200) {
    return fail(Status::unavailable(where + " answered " + std::to_string(answer.status) +
                                    ": it still loads its model, or stops"),
                kExitFailed);
  }
  std::printf("%s is ready\n", where.c_str());
  return 0;
}

}  // namespace warpweave
