#include "server/connection.h"

#include <algorithm>

#include "base/log.h"

namespace warpweave::server::beast {
namespace {

constexpr size_t kMaxPipelinedBytes = 16 << 10;
constexpr double kLingerSeconds = 2;
constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";

}  // namespace

Task Connection::read_loop(std::shared_ptr<Connection> self) {
  while (socket_.is_open()) {
    if (phase_ == Phase::answering && pending_.size() >= kMaxPipelinedBytes) break;
    error_code error;
    co_await socket_.async_wait(Socket::wait_read, asio::redirect_error(kAwait, error));
    if (error || !socket_.is_open()) break;
    auto& buffer = shared_.read_buffer;
    const size_t bytes = socket_.read_some(asio::buffer(buffer), error);
    if (error == asio::error::would_block) continue;
    if (error) {
      close();
      break;
    }
    on_bytes({buffer.data(), bytes});
  }
  reading_ = false;
}

void Connection::on_bytes(std::string_view bytes) {
  if (phase_ == Phase::lingering) return;
  if (phase_ == Phase::answering) {
    pending_ += bytes;
    return;
  }
  if (pending_.empty()) {
    bytes.remove_prefix(parse(bytes));
    pending_ += bytes;
  } else {
    pending_ += bytes;
    pending_.erase(0, parse(pending_));
  }
}

// Feeds the parser until a request is complete or rejected, or more bytes are needed. Returns the
// bytes used.
size_t Connection::parse(std::string_view data) {
  size_t used = 0;
  while (used < data.size() && (phase_ == Phase::idle || phase_ == Phase::receiving)) {
    if (phase_ == Phase::idle) {
      if (data[used] == '\r' || data[used] == '\n') {  // stray line ends between requests
        ++used;
        continue;
      }
      begin_request();
    }
    error_code error;
    const size_t n = parser_->put(asio::buffer(data.data() + used, data.size() - used), error);
    used += n;
    if (error && error != http::error::need_more) {
      reject_unparsable(error);
      break;
    }
    if (parser_->is_header_done() && !std::exchange(header_checked_, true) && !check_header()) break;
    if (parser_->is_done()) {
      start_exchange();
    } else if (error == http::error::need_more || n == 0) {
      break;
    }
  }
  return used;
}

void Connection::begin_request() {
  phase_ = Phase::receiving;
  set_deadline(shared_.options.read_timeout_s);
  parser_ = std::make_unique<Parser>();
  parser_->header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
  parser_->body_limit(shared_.options.max_body_bytes);
  header_checked_ = false;
  route_ = nullptr;
}

// Everything that can be refused before the body arrives. False: an answer is on its way.
bool Connection::check_header() {
  const auto& request = parser_->get();
  if (request.version() != 11 && request.version() != 10) {
    reject(505, "this server speaks HTTP/1.1");
    return false;
  }
  if (request.version() == 11 && request.find(http::field::host) == request.end()) {
    reject(400, "the Host header is missing");
    return false;
  }
  const auto target = request.target();
  std::optional<Target> parsed = parse_target({target.data(), target.size()});
  if (!parsed) {
    reject(400, "the request target is malformed");
    return false;
  }
  target_ = *std::move(parsed);
  const std::string_view method(request.method_string().data(), request.method_string().size());
  const RouteTable::Match match = shared_.routes.find(method, target_.path);
  if (!check_access(method, match) || !reserve_body()) return false;
  const auto expect = request.find(http::field::expect);
  if (expect != request.end() && !parser_->is_done() &&
      boost::beast::iequals(expect->value(), "100-continue")) {
    error_code ignored;  // a client that cannot take 25 bytes will be seen to be gone
    socket_.write_some(asio::buffer(kContinue, sizeof kContinue - 1), ignored);
  }
  return true;
}

bool Connection::check_access(std::string_view method, const RouteTable::Match& match) {
  if (match.allowed.empty()) {
    reject(404, "there is no " + target_.path + " here; see GET /v1/models, POST /generate, "
                "POST /v1/completions, POST /v1/chat/completions");
    return false;
  }
  if (method == "OPTIONS" && match.route == nullptr) {
    answer_preflight(match.allowed);
    return false;
  }
  if (match.route == nullptr) {
    reject(405, target_.path + " does not take this method; use " + match.allowed,
           {{"Allow", match.allowed}});
    return false;
  }
  route_ = match.route;
  const auto authorization = parser_->get()[http::field::authorization];
  if (!authorized(route_->auth, {authorization.data(), authorization.size()}, shared_.keys)) {
    reject(401, "a valid key is needed: send the header 'Authorization: Bearer <key>'",
           {{"WWW-Authenticate", "Bearer"}});
    return false;
  }
  if (shared_.draining && route_->auth != AuthLevel::open && route_->method != "GET") {
    reject(503, "the server is shutting down; send this request to another one",
           {{"Retry-After", "5"}});
    return false;
  }
  return true;
}

// Bodies are held in memory until answered, so all of them together have a cap.
bool Connection::reserve_body() {
  if (parser_->is_done()) return true;
  const auto length = parser_->content_length();
  const size_t bytes = length ? static_cast<size_t>(*length) : shared_.options.max_body_bytes;
  if (bytes > shared_.options.max_total_body_bytes - shared_.body_bytes) {
    reject(503, "too many large requests at once; try again", {{"Retry-After", "1"}});
    return false;
  }
  reserved_body_bytes_ = bytes;
  shared_.body_bytes += bytes;
  return true;
}

void Connection::reject_unparsable(error_code error) {
  if (error == http::error::body_limit) {
    reject(413, "the body is larger than " + std::to_string(shared_.options.max_body_bytes) +
                    " bytes; raise --max-body-bytes or send less");
  } else if (error == http::error::header_limit) {
    reject(431, "the headers are larger than " + std::to_string(shared_.options.max_header_bytes) +
                    " bytes");
  } else if (error == http::error::bad_version) {
    reject(505, "this server speaks HTTP/1.1");
  } else {
    reject(400, "malformed HTTP: " + error.message());
  }
}

void Connection::open_exchange(bool keep_alive, bool cors) {
  phase_ = Phase::answering;
  deadline_.reset();
  ++shared_.active_requests;
  const ExchangeOptions options{
      .head_only = parser_->is_header_done() && parser_->get().method() == http::verb::head,
      .chunked = !parser_->is_header_done() || parser_->get().version() == 11,
      .keep_alive = keep_alive && !shared_.draining,
      .cors = cors,
      .max_buffer_bytes = shared_.options.max_write_buffer_bytes};
  exchange_ = std::make_shared<Exchange>(
      options, [gate = shared_.gate, weak = weak_from_this()] {
        gate->post([weak] {
          if (auto self = weak.lock()) self->flush();
        });
      });
}

// Answers at once. The connection stays usable only when the request was read to its end.
void Connection::reject(int status, std::string_view message, HeaderList headers) {
  const bool keep_alive = parser_->is_done() && parser_->keep_alive();
  open_exchange(keep_alive, /*cors=*/true);
  exchange_->send(status, "application/json", error_body(status, message), headers);
}

void Connection::answer_preflight(const std::string& allowed) {
  open_exchange(parser_->is_done() && parser_->keep_alive(), /*cors=*/true);
  exchange_->send(204, {}, {},
                  {{"Allow", allowed + ", OPTIONS"},
                   {"Access-Control-Allow-Methods", allowed + ", OPTIONS"},
                   {"Access-Control-Allow-Headers", "Authorization, Content-Type"},
                   {"Access-Control-Max-Age", "600"}});
}

void Connection::start_exchange() {
  // Admin routes change the server: no other web page may drive them.
  open_exchange(parser_->keep_alive(), /*cors=*/route_->auth != AuthLevel::admin);
  auto message = parser_->release();
  auto request = std::make_shared<HttpRequest>();
  request->method = std::string(message.method_string());
  request->path = std::move(target_.path);
  request->query = std::move(target_.query);
  request->body = std::move(message.body());
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return std::tolower(c); });
    request->headers.emplace_back(std::move(name), std::string(field.value()));
  }
  parser_.reset();
  auto writer = Exchange::make_writer(exchange_);
  const bool queued = shared_.workers.submit([route = route_, request, writer] {
    try {
      route->handler(request, writer);
    } catch (const std::exception& e) {
      LOG_ERROR("handler of {} failed: {}", route->path, log_safe(e.what()));
      writer->send(500, "application/json", error_body(500, "internal error"));
    }
  });
  if (!queued) {
    writer->send(503, "application/json", error_body(503, "the server is overloaded; try again"),
                 {{"Retry-After", "1"}});
  }
}

void Connection::flush() {
  if (writing_ || exchange_ == nullptr) return;
  current_ = exchange_->take();
  if (current_.cut) {
    close();
    return;
  }
  std::string bytes = std::exchange(current_.bytes, {});
  size_t done = 0;
  if (!bytes.empty()) {
    error_code error;
    done = socket_.write_some(asio::buffer(bytes), error);
    if (error && error != asio::error::would_block) {
      close();
      return;
    }
    exchange_->written(done);
  }
  if (done < bytes.size()) {
    writing_ = true;
    set_deadline(shared_.options.write_timeout_s);
    asio::co_spawn(socket_.get_executor(),
                   write_rest(shared_from_this(), std::move(bytes), done), asio::detached);
  } else if (current_.last) {
    finish_exchange(current_.keep_alive, current_.status);
  }
}

Task Connection::write_rest(std::shared_ptr<Connection> self, std::string bytes, size_t done) {
  while (done < bytes.size()) {
    error_code error;
    const size_t n = co_await socket_.async_write_some(
        asio::buffer(bytes.data() + done, bytes.size() - done),
        asio::redirect_error(kAwait, error));
    if (error || exchange_ == nullptr) {
      close();
      co_return;
    }
    done += n;
    exchange_->written(n);
    set_deadline(shared_.options.write_timeout_s);
  }
  after_write();
}

void Connection::after_write() {
  writing_ = false;
  deadline_.reset();
  if (current_.last) {
    finish_exchange(current_.keep_alive, current_.status);
  } else {
    flush();
  }
}

void Connection::finish_exchange(bool keep_alive, int status) {
  exchange_.reset();
  parser_.reset();
  --shared_.active_requests;
  shared_.body_bytes -= std::exchange(reserved_body_bytes_, 0);
  if (shared_.options.on_response) {
    shared_.options.on_response(route_ != nullptr ? route_->path : "unmatched", status);
  }
  if (!keep_alive || shared_.draining) {
    linger();
    return;
  }
  phase_ = Phase::idle;
  set_deadline(shared_.options.idle_timeout_s);
  pending_.erase(0, parse(pending_));
  if (pending_.empty()) pending_.shrink_to_fit();
  start_reading();
}

// Closing with unread input would reset the connection, and the client could lose the answer:
// read on for a moment, throwing away what comes.
void Connection::linger() {
  phase_ = Phase::lingering;
  pending_ = {};
  set_deadline(kLingerSeconds);
  error_code ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  start_reading();
}

void Connection::close() {
  if (!socket_.is_open()) return;
  const auto self = shared_from_this();
  error_code ignored;
  socket_.close(ignored);
  deadline_.reset();
  shared_.body_bytes -= std::exchange(reserved_body_bytes_, 0);
  if (exchange_ != nullptr) {
    --shared_.active_requests;
    std::exchange(exchange_, nullptr)->disconnect();
    if (shared_.options.on_response) {
      // 499: the client closed before its answer was whole.
      shared_.options.on_response(route_ != nullptr ? route_->path : "unmatched", 499);
    }
  }
  shared_.connections.erase(self);
}

void Connection::check_deadline(Clock::time_point now) {
  if (!deadline_ || now < *deadline_) return;
  if (phase_ == Phase::receiving) {
    reject(408, "the request did not arrive within " +
                    std::to_string(static_cast<int>(shared_.options.read_timeout_s)) + " s");
  } else {
    close();
  }
}

}  // namespace warpweave::server::beast
