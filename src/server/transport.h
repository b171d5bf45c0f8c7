// All connections of one server and what they share. Has no socket, thread or clock of its own: those come
// in, so that a test can be all three. I/O thread only, unless said otherwise.
//
// Room for connections: up to max_connections are served. At that number one that has been idle for a
// moment makes room; where none is, a few more are let in for the open routes alone, so that /health
// answers; past those a connection gets 503 and is closed.
//
// Unsent bytes of all answers together: past max_total_unsent_bytes the connection whose reader left the most of them
// is closed, until they fit. One answer alone may be larger.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "server/body_memory.h"
#include "server/http_server.h"
#include "server/output_memory.h"
#include "server/route_table.h"
#include "server/socket.h"
#include "server/wake_list.h"
#include "server/web_guard.h"

namespace warpweave::server {

using Clock = std::chrono::steady_clock;

struct TransportHooks {
  std::function<Clock::time_point()> now;
  std::function<void()> wake;  // has flush_woken() called on the I/O thread; from any, no throw
  std::function<bool(std::function<void()>)> submit;    // to a worker; false: too many wait
};

class Connection;

class Transport {
 public:
  Transport(ServerOptions server_options, const Router& router, TransportHooks transport_hooks);

  // From now on requests find these routes. Those that run keep theirs.
  void set_router(const Router& router);
  void admit(std::unique_ptr<Socket> socket, bool peer_is_loopback);
  // Closes a connection that waits for a request; false: there is none.
  bool close_longest_idle(Clock::duration idle_at_least);
  void check_deadlines();
  // Sends what connections of `woken` have to send.
  void flush_woken();
  void close_all() noexcept;

  // For connections.
  const RouteTable& routes() const { return *tables_.back(); }
  // Room for `bytes` of the body that `asking` receives. The largest unfinished upload gives way, so that
  // uploads which do not go on keep nobody out; false: that is this one.
  bool take_body_memory(Connection& asking, size_t bytes);
  void forget(const std::shared_ptr<Connection>& connection) { connections_.erase(connection); }

  const ServerOptions options;
  const TransportHooks hooks;
  const ApiKeys keys;
  const WebGuard guard;
  const std::shared_ptr<BodyMemory> body_memory;
  const std::shared_ptr<OutputMemory> output_memory;
  const std::shared_ptr<WakeList> woken;
  std::list<Connection*> idle;              // longest first
  std::array<char, 64 << 10> read_buffer;   // one for all: filled and parsed without a pause
  std::atomic<bool> draining{false};        // any thread
  std::atomic<int> active_requests{0};      // any thread

 private:
  std::vector<std::shared_ptr<Connection>> all() const;
  void limit_output_memory();

  std::vector<std::unique_ptr<const RouteTable>> tables_;  // kept: running requests point into them
  std::unordered_set<std::shared_ptr<Connection>> connections_;
};

}  // namespace warpweave::server
