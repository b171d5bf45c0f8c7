// The one way a connection touches the outside: a socket that never blocks, owned by its connection.
// The real one stands in asio_server.cc; tests bring their own. I/O thread only.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace warpweave::server {

struct IoResult {
  enum class State { ok, would_block, closed };  // closed: by the other side, or broken
  State state = State::ok;
  size_t bytes = 0;
};

// Told by the loop, never from within a call of Socket.
class SocketEvents {
 public:
  virtual ~SocketEvents() = default;
  virtual void on_readable() = 0;
  virtual void on_writable() = 0;
};

class Socket {
 public:
  virtual ~Socket() = default;
  virtual IoResult read(char* into, size_t max_bytes) = 0;
  virtual IoResult write(std::string_view bytes) = 0;
  // One call of `events` later; at most one wait of each kind at a time. `events` lives until then.
  virtual void wait_readable(std::shared_ptr<SocketEvents> events) = 0;
  virtual void wait_writable(std::shared_ptr<SocketEvents> events) = 0;
  virtual void shutdown_send() = 0;
  virtual void close() = 0;  // waits end without a call
};

}  // namespace warpweave::server
