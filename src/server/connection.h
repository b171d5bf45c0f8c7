// One HTTP connection: receives a request, has it answered, receives the next. It always waits for bytes
// (or holds as many pipelined ones as it may), so that a client that goes away is noticed while its
// request runs. I/O thread only; alive while its transport knows it or a wait of its socket is open.
//
// Bounds: 16 KiB of pipelined bytes; a request arrives within read_timeout_s of its first byte; each MiB
// of output is taken within write_timeout_s; an idle connection closes after idle_timeout_s.
//
// What fails inside, for want of memory most likely, ends this connection alone: with a 503 where its request is still
// arriving, else closed.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/exchange.h"
#include "server/http_parser.h"
#include "server/transport.h"

namespace warpweave::server {

struct PeerFacts {
  bool is_loopback = true;
  bool is_spare = false;  // let in past max_connections: for the open routes alone
};

class Connection : public SocketEvents, public std::enable_shared_from_this<Connection> {
 public:
  Connection(Transport& transport, std::unique_ptr<Socket> socket, PeerFacts peer);

  void start();
  void close() noexcept;
  void check_deadline(Clock::time_point now);
  void on_readable() override;
  void on_writable() override;
  // Sends what its answer has to send now.
  void on_output();

  Clock::time_point idle_since() const { return idle_since_; }
  bool take_body_memory(size_t bytes) { return lease_->take(bytes); }
  // 0 once the request is whole.
  size_t unfinished_body_bytes() const { return phase_ == Phase::receiving && lease_ ? lease_->bytes() : 0; }
  // Answers 503 instead of receiving on.
  void give_way();
  // What its answer holds and its reader has not taken.
  size_t unsent_bytes() const { return exchange_ ? exchange_->held_bytes() : 0; }
  // Closes, and says so in the log: all answers together hold too much.
  void give_up_answer();

 private:
  enum class Phase { idle, receiving, answering, lingering };

  template <typename F>
  void guarded(const F& work) noexcept;
  void fail(const char* what) noexcept;
  void read();
  size_t read_room() const;
  void read_on();
  void on_bytes(std::string_view bytes);
  size_t parse(std::string_view bytes);
  void begin_request();
  bool check_head();
  bool check_route(const RouteTable::Match& match);
  bool check_access(const Route& route);
  bool check_content_encoding();
  bool take_body(std::string_view piece);
  void send_continue();
  void start_exchange();
  void run_handler(std::shared_ptr<const HttpRequest> request);
  ExchangeHooks exchange_hooks();
  void open_exchange(bool keep_alive);
  void reject(const HttpError& error, const HeaderList& headers = {}, bool keep_alive = true);
  void answer_preflight(const std::string& allowed);
  void flush();
  void end_early(Exchange::Output&& output);  // tells an early end at once; closes where a stream cannot say it
  void write_on();
  void finish_exchange();
  void count_response(int status) const noexcept;
  void become_idle();
  void leave_idle();
  void linger();
  std::string_view header(std::string_view name) const;
  std::string_view route_name() const { return route_ != nullptr ? std::string_view(route_->path) : "unmatched"; }
  ParserLimits parser_limits() const;
  void end_what_is_late(Clock::time_point now);
  void set_deadline(double seconds);

  Transport& transport_;
  const std::unique_ptr<Socket> socket_;
  const PeerFacts peer_;
  Phase phase_ = Phase::idle;
  bool closed_ = false;
  std::optional<Clock::time_point> deadline_;
  Clock::time_point idle_since_;
  Clock::time_point request_begun_;      // its first byte came
  std::optional<std::list<Connection*>::iterator> idle_place_;

  bool reading_ = false;                 // a wait for bytes is open
  std::string pending_;                  // pipelined bytes behind the request being answered
  RequestParser parser_;                 // of the request being received or answered
  Target target_;
  const Route* route_ = nullptr;
  std::string allow_origin_;
  std::string body_;
  std::shared_ptr<BodyLease> lease_;     // of body_; shared with the request in its handler

  std::shared_ptr<Exchange> exchange_;   // set while answering
  Exchange::Output out_;                 // being written
  size_t out_done_bytes_ = 0;
  size_t slice_end_bytes_ = 0;           // of out_: where the deadline moves on
  bool writing_ = false;                 // a wait for room is open
};

}  // namespace warpweave::server
