#include "server/connection.h"

#include <algorithm>
#include <exception>
#include <new>

#include "base/log.h"
#include "base/trim_memory.h"
#include "server/http_syntax.h"

namespace warpweave::server {
namespace {

constexpr size_t kMaxPipelinedBytes = 16 << 10;
constexpr size_t kSliceBytes = 1 << 20;  // of an answer, to be taken within write_timeout_s
constexpr double kLingerSeconds = 2;
constexpr double kSpareReadSeconds = 5;
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

constexpr size_t kTrimBodyBytes = 4 << 20;  // what reading a larger body left free goes back to the system

// A request in its handler. The body's memory is given back with it.
struct HeldRequest {
  ~HeldRequest() {
    lease->release();
    if (request.body.size() <= kTrimBodyBytes) return;
    std::string().swap(request.body);
    trim_memory();
  }
  std::shared_ptr<BodyLease> lease;
  HttpRequest request;
};

// Where not even this can be said, dropping the writer ends the answer.
void answer_failure(const Route& route, ResponseWriter& writer, const std::exception& error) noexcept {
  try {
    LOG_ERROR("handler of {} failed: {}", route.path, log_safe(error.what()));
    writer.send(500, "application/json", error_body(500, "internal error"));
  } catch (const std::exception&) {
    LOG_ERROR("a handler failed, and so did saying it");
  }
}

}  // namespace

Connection::Connection(Transport& transport, std::unique_ptr<Socket> socket, PeerFacts peer)
    : transport_(transport), socket_(std::move(socket)), peer_(peer), parser_(parser_limits()) {}

void Connection::start() {
  guarded([this] {
    become_idle();
    read_on();
  });
}

// The end of every way in from outside.
template <typename F>
void Connection::guarded(const F& work) noexcept {
  try {
    work();
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

void Connection::fail(const char* what) noexcept {
  if (closed_) return;
  try {
    LOG_ERROR("a connection failed: {}", what);
    if (phase_ == Phase::receiving) {
      return reject({503, "service_unavailable", "the server could not take this request now; try again"},
                    {{"Retry-After", "1"}}, /*keep_alive=*/false);
    }
  } catch (const std::exception&) {
  }
  close();
}

ParserLimits Connection::parser_limits() const {
  return {.max_header_bytes = transport_.options.max_header_bytes,
          .max_body_bytes = transport_.options.max_body_bytes};
}

void Connection::set_deadline(double seconds) {
  deadline_ = transport_.hooks.now() +
              std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string_view Connection::header(std::string_view name) const {
  for (const auto& [field, value] : parser_.head().fields) {
    if (field == name) return value;
  }
  return {};
}

// How much may be read now: what cannot be parsed yet has to be kept.
size_t Connection::read_room() const {
  if (phase_ == Phase::answering) return kMaxPipelinedBytes - std::min(pending_.size(), kMaxPipelinedBytes);
  return phase_ == Phase::receiving && parser_.head_done() ? transport_.read_buffer.size() : kMaxPipelinedBytes;
}

void Connection::read_on() {
  if (closed_ || reading_ || read_room() == 0) return;
  reading_ = true;
  socket_->wait_readable(shared_from_this());
}

void Connection::on_readable() {
  reading_ = false;
  guarded([this] { read(); });
}

void Connection::read() {
  const size_t room = read_room();
  if (closed_ || room == 0) return;
  auto& buffer = transport_.read_buffer;
  const IoResult got = socket_->read(buffer.data(), std::min(room, buffer.size()));
  if (got.state == IoResult::State::closed) return close();
  on_bytes({buffer.data(), got.bytes});
  read_on();
}

void Connection::on_bytes(std::string_view bytes) {
  if (phase_ == Phase::lingering) return;
  if (phase_ != Phase::answering) bytes.remove_prefix(parse(bytes));
  if (phase_ == Phase::answering) pending_ += bytes;
}

// Until a request is whole or refused, or more bytes are needed. Returns the bytes used.
size_t Connection::parse(std::string_view bytes) {
  size_t used = 0;
  while (!closed_ && (phase_ == Phase::idle || phase_ == Phase::receiving)) {
    const RequestParser::Step step = parser_.next(bytes.substr(used));
    used += step.used;
    if (phase_ == Phase::idle && parser_.begun()) begin_request();
    switch (step.event) {
      case RequestParser::Event::need_more: return used;
      case RequestParser::Event::head:
        if (check_head() && parser_.head().expects_continue && parser_.head().has_body()) send_continue();
        break;
      case RequestParser::Event::body: take_body(step.body); break;
      case RequestParser::Event::done: start_exchange(); break;
      case RequestParser::Event::failed: reject(parser_.error()); break;
    }
  }
  return used;
}

void Connection::begin_request() {
  leave_idle();
  phase_ = Phase::receiving;
  request_begun_ = transport_.hooks.now();
  const double allowed_s = transport_.options.read_timeout_s;
  set_deadline(peer_.is_spare ? std::min(allowed_s, kSpareReadSeconds) : allowed_s);
  allow_origin_ = transport_.guard.allow_origin(AuthLevel::open, {}, {});
  lease_ = std::make_shared<BodyLease>(transport_.body_memory);
}

// Everything that can be refused before the body arrives. False: an answer is on its way.
bool Connection::check_head() {
  const RequestHead& head = parser_.head();
  std::optional<Target> parsed = parse_target(head.target);
  if (!parsed) {
    reject({400, "bad_target", "the request target is malformed"});
    return false;
  }
  target_ = *std::move(parsed);
  if (target_.authority.empty()) target_.authority = head.host;
  return check_route(transport_.routes().find(head.method, target_.path));
}

bool Connection::check_route(const RouteTable::Match& match) {
  const AuthLevel level = match.route != nullptr ? match.route->auth : match.strictest;
  allow_origin_ = transport_.guard.allow_origin(level, target_.authority, header("origin"));
  if (match.allowed.empty()) {
    reject({404, "not_found", "there is no " + target_.path + " here; see GET /v1/models, POST /generate, "
                              "POST /v1/completions, POST /v1/chat/completions"});
    return false;
  }
  if (match.route == nullptr) {
    if (parser_.head().method == "OPTIONS") {
      answer_preflight(match.allowed);
    } else {
      reject({405, "method_not_allowed", target_.path + " does not take this method; use " + match.allowed},
             {{"Allow", match.allowed}});
    }
    return false;
  }
  route_ = match.route;
  return check_access(*route_) && check_content_encoding();
}

bool Connection::check_content_encoding() {
  if (!route_->takes_body()) return true;
  for (const auto& [name, value] : parser_.head().fields) {
    if (name != "content-encoding" || equal_ignoring_case(value, "identity")) continue;
    reject({415, "unsupported_content_encoding",
            "Content-Encoding must be identity: bodies are not decompressed here; send the JSON as it is"});
    return false;
  }
  return true;
}

bool Connection::check_access(const Route& route) {
  // Anthropic's clients send their key in a header of its own.
  std::string authorization(header("authorization"));
  if (authorization.empty() && !header("x-api-key").empty())
    authorization = "Bearer " + std::string(header("x-api-key"));
  if (!authorized(route.auth, authorization, transport_.keys)) {
    reject({401, "invalid_api_key", "a valid key is needed: send the header 'Authorization: Bearer <key>'"},
           {{"WWW-Authenticate", "Bearer"}});
    return false;
  }
  const WebRequest web{.host = target_.authority,
                       .origin = header("origin"),
                       .content_type = header("content-type"),
                       .peer_is_loopback = peer_.is_loopback,
                       .key_was_checked = needs_key(route.auth, transport_.keys)};
  if (const auto refused = transport_.guard.check(route.auth, web)) {
    reject(*refused);
    return false;
  }
  if (route.auth == AuthLevel::open) return true;
  if (peer_.is_spare) {
    reject({503, "too_many_connections", "too many connections are open; try again"}, {{"Retry-After", "1"}});
    return false;
  }
  if (transport_.draining && route.method != "GET") {
    reject({503, "service_unavailable", "the server is shutting down; send this request to another one"},
           {{"Retry-After", "5"}});
    return false;
  }
  return true;
}

void Connection::send_continue() {
  // Nothing else is on its way out, so that only a client that never reads has no room for this.
  if (socket_->write(kContinue).bytes != kContinue.size()) close();
}

bool Connection::take_body(std::string_view piece) {
  if (!route_->takes_body()) return true;
  if (!transport_.take_body_memory(*this, piece.size())) {
    give_way();
    return false;
  }
  body_ += piece;
  return true;
}

void Connection::give_way() {
  body_ = {};
  lease_->release();
  reject({503, "service_unavailable", "too many large requests at once; try again"}, {{"Retry-After", "1"}});
}

ExchangeHooks Connection::exchange_hooks() {
  const auto entry = std::make_shared<WakeList::Entry>(weak_from_this());
  return {.wake = [list = transport_.woken, entry] { list->add(entry); },
          .run = [&transport = transport_](const std::function<void()>& job) {
            try {
              if (transport.hooks.submit(job)) return;
            } catch (const std::exception&) {
            }
            job();
          }};
}

void Connection::open_exchange(bool keep_alive) {
  const RequestHead& head = parser_.head();
  const ExchangeOptions options{.head_only = head.method == "HEAD",
                                .chunked = head.minor_version == 1,
                                .keep_alive = keep_alive && !transport_.draining && !peer_.is_spare,
                                .allow_origin = allow_origin_,
                                .max_buffer_bytes = transport_.options.max_write_buffer_bytes,
                                .memory = transport_.output_memory};
  exchange_ = std::make_shared<Exchange>(options, exchange_hooks());
  phase_ = Phase::answering;
  deadline_.reset();
  ++transport_.active_requests;
}

// Answers at once. The connection stays usable only when the request was read to its end.
void Connection::reject(const HttpError& error, const HeaderList& headers, bool keep_alive) {
  const bool whole = parser_.done() || (parser_.head_done() && !parser_.head().has_body());
  body_ = {};
  lease_.reset();
  open_exchange(keep_alive && whole && parser_.head().keep_alive);
  const bool anthropic = target_.path == "/v1/messages" || target_.path.starts_with("/v1/messages/");
  exchange_->send(error.status, "application/json",
                  anthropic ? anthropic_error_body(error.status, error.message)
                            : error_body(error.status, error.message, error.code), headers);
}

// What a page's client wants to send (SDKs add headers of their own), as far as these are names of headers.
static std::string allowed_headers(std::string_view asked) {
  constexpr size_t kMaxBytes = 2048;
  std::string out = "Authorization, Content-Type";
  if (asked.size() > kMaxBytes) return out;
  for_each_element(asked, [&](std::string_view name) {
    const bool plain = equal_ignoring_case(name, "authorization") || equal_ignoring_case(name, "content-type");
    if (is_token(name) && !plain) out.append(", ").append(name);
  });
  return out;
}

void Connection::answer_preflight(const std::string& allowed) {
  HeaderList headers = {{"Allow", allowed + ", OPTIONS"}};
  if (!allow_origin_.empty()) {
    headers.insert(headers.end(),
                   {{"Access-Control-Allow-Methods", allowed + ", OPTIONS"},
                    {"Access-Control-Allow-Headers", allowed_headers(header("access-control-request-headers"))},
                    {"Access-Control-Max-Age", "600"}});
  }
  open_exchange(parser_.head().keep_alive && !parser_.head().has_body());
  exchange_->send(204, {}, {}, headers);
}

void Connection::start_exchange() {
  open_exchange(parser_.head().keep_alive);
  auto held = std::make_shared<HeldRequest>();
  held->lease = lease_;
  HttpRequest& request = held->request;
  request.method = parser_.head().method;  // kept there, too, for on_response
  request.path = std::move(target_.path);
  request.query = std::move(target_.query);
  request.headers = std::move(parser_.head().fields);
  request.body = std::exchange(body_, {});
  run_handler({held, &request});
}

void Connection::run_handler(std::shared_ptr<const HttpRequest> request) {
  auto writer = Exchange::make_writer(exchange_);
  const auto job = [route = route_, request = std::move(request), writer]() noexcept {
    try {
      route->handler(request, writer);
    } catch (const std::exception& error) {
      answer_failure(*route, *writer, error);
    }
  };
  if (route_->runs_at_once) return job();
  bool taken = false;
  try {
    taken = transport_.hooks.submit(job);
  } catch (const std::bad_alloc&) {
  }
  if (!taken) {
    writer->send(503, "application/json", error_body(503, "the server is overloaded; try again"),
                 {{"Retry-After", "1"}});
  }
}

void Connection::on_output() {
  guarded([this] { flush(); });
}

void Connection::flush() {
  if (closed_ || exchange_ == nullptr) return;
  if (writing_) return end_early(exchange_->take_early_end());
  out_ = exchange_->take();
  out_done_bytes_ = 0;
  slice_end_bytes_ = kSliceBytes;
  end_early(std::move(out_));
  if (!closed_) write_on();
}

void Connection::end_early(Exchange::Output&& output) {
  if (!output.early_end.empty()) {
    LOG_WARN("the stream of {} ended early: {}", route_name(), output.early_end);
    for (const auto& callback : std::exchange(output.disconnected, {})) callback();
  }
  if (output.cut) close();
}

void Connection::write_on() {
  while (out_done_bytes_ < out_.bytes.size()) {
    const IoResult sent = socket_->write(std::string_view(out_.bytes).substr(out_done_bytes_));
    if (sent.state == IoResult::State::closed) return close();
    if (sent.state == IoResult::State::would_block) {
      if (!std::exchange(writing_, true)) set_deadline(transport_.options.write_timeout_s);
      socket_->wait_writable(shared_from_this());
      return;
    }
    out_done_bytes_ += sent.bytes;
    if (out_done_bytes_ >= slice_end_bytes_) {
      slice_end_bytes_ = out_done_bytes_ + kSliceBytes;
      if (writing_) set_deadline(transport_.options.write_timeout_s);
    }
  }
  out_.bytes = {};
  exchange_->written();
  writing_ = false;
  deadline_.reset();
  if (out_.last) finish_exchange();
}

void Connection::on_writable() {
  if (closed_ || exchange_ == nullptr) return;
  guarded([this] {
    write_on();
    flush();  // what came while this was being written
  });
}

void Connection::count_response(int status) const noexcept {
  if (!transport_.options.on_response) return;
  try {
    const std::chrono::duration<double> taken = transport_.hooks.now() - request_begun_;
    transport_.options.on_response({.route = std::string(route_name()),
                                    .method = parser_.head().method,
                                    .status = status,
                                    .duration_s = taken.count()});
  } catch (const std::exception&) {
    LOG_ERROR("an answer was not counted");
  }
}

void Connection::give_up_answer() {
  LOG_WARN("the answer of {} ended early: the unsent bytes of all answers passed their limit, and its reader left the "
           "most of them, {}", route_name(), unsent_bytes());
  close();
}

void Connection::finish_exchange() {
  exchange_.reset();
  if (lease_) std::exchange(lease_, nullptr)->release();
  --transport_.active_requests;
  count_response(out_.status);
  parser_ = RequestParser(parser_limits());
  route_ = nullptr;
  if (!out_.keep_alive) return linger();
  become_idle();
  const std::string pending = std::exchange(pending_, {});
  on_bytes(pending);
  if (!closed_ && phase_ == Phase::idle && transport_.draining) {
    leave_idle();
    return linger();
  }
  read_on();
}

void Connection::become_idle() {
  phase_ = Phase::idle;
  idle_since_ = transport_.hooks.now();
  const double allowed_s = transport_.options.idle_timeout_s;
  set_deadline(peer_.is_spare ? std::min(allowed_s, kSpareReadSeconds) : allowed_s);
  idle_place_ = transport_.idle.insert(transport_.idle.end(), this);
}

void Connection::leave_idle() {
  if (idle_place_) transport_.idle.erase(*idle_place_);
  idle_place_.reset();
}

// Closing with unread input would reset the connection, and the client could lose the answer:
// read on for a moment, throwing away what comes.
void Connection::linger() {
  phase_ = Phase::lingering;
  pending_ = {};
  set_deadline(kLingerSeconds);
  socket_->shutdown_send();
  read_on();
}

void Connection::close() noexcept {
  if (std::exchange(closed_, true)) return;
  const auto self = shared_from_this();
  socket_->close();
  leave_idle();
  deadline_.reset();
  lease_.reset();  // a request in its handler keeps it
  body_ = {};
  if (exchange_ != nullptr) {
    --transport_.active_requests;
    std::exchange(exchange_, nullptr)->disconnect();
    // 499: the client closed before its answer was whole.
    count_response(499);
  }
  transport_.forget(self);
}

void Connection::check_deadline(Clock::time_point now) {
  guarded([this, now] { end_what_is_late(now); });
}

void Connection::end_what_is_late(Clock::time_point now) {
  if (closed_ || !deadline_ || now < *deadline_) return;
  if (phase_ == Phase::receiving) {
    const int allowed_s = static_cast<int>(transport_.options.read_timeout_s);
    return reject({408, "request_timeout", "the request did not arrive within " + std::to_string(allowed_s) + " s"});
  }
  if (phase_ == Phase::answering) {
    LOG_WARN("the answer of {} ended early: its reader took less than 1 MiB in {} s", route_name(),
             transport_.options.write_timeout_s);
  }
  close();
}

}  // namespace warpweave::server
