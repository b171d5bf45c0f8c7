// A world for the transport, made of one seed: sockets, clock, workers, clients and an engine, all in one
// thread and in random order. What goes wrong here goes wrong again with the same seed.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/connection.h"
#include "server/transport.h"

namespace warpweave::server::testing {

struct SimOptions {
  uint64_t seed = 1;
  int clients = 4;
  int steps = 400;
  bool rough = true;             // slow readers, early leavers, clock jumps, engine death
  int fail_nth_io = 0;           // this read or write breaks its socket; 0: none
  bool fail_nth_submit = false;  // every third handler finds the workers' queue full
};

// Both ends of one connection's bytes.
struct Wire {
  std::string to_server, to_client;
  size_t window_bytes = 0;       // how much to_client may hold unread
  bool client_left = false;
  bool server_closed = false;    // or shut down for sending
  std::shared_ptr<SocketEvents> read_waiter, write_waiter;
};

struct SimRequest {
  enum class Kind { ping, echo, chunked_echo, stream, hold, bad, unknown } kind = Kind::ping;
  int id = 0;
  int events = 0;
  size_t event_bytes = 0;
  std::string body;
  std::string bytes() const;
  bool asks_for_room() const { return id % 2 == 0; }  // before each event of a stream
};

struct SimClient {
  std::shared_ptr<Wire> wire;
  std::vector<SimRequest> requests;
  std::string unsent;
  std::string received;
  bool leaves_early = false;
  bool reads = true;             // false: never takes a byte
};

class TransportSim {
 public:
  explicit TransportSim(SimOptions options);
  ~TransportSim();

  // Runs to the end and checks; empty, or what is wrong.
  std::string run();
  int io_calls() const { return io_calls_; }

 private:
  friend class SimSocket;
  struct Stream {
    SimRequest request;
    std::shared_ptr<ResponseWriter> writer;
    int written = 0;
    std::shared_ptr<int> disconnects = std::make_shared<int>(0);
  };

  Router make_router();
  void add_client();
  size_t pick(size_t below) { return std::uniform_int_distribution<size_t>(0, below - 1)(random_); }
  bool chance(int percent) { return static_cast<int>(pick(100)) < percent; }
  bool io_breaks() { return ++io_calls_ == options_.fail_nth_io; }
  void step();
  bool settle_once();
  bool wake_socket(Wire& wire);
  void client_acts(SimClient& client);
  bool engine_acts(bool to_the_end);
  void fail(const std::string& what);
  void check_always();
  void check_client(const SimClient& client);
  void check_answer(const SimRequest& request, const std::string& body, bool calm);
  void check_end();

  const SimOptions options_;
  std::mt19937_64 random_;
  Clock::time_point now_{std::chrono::hours(1)};
  std::deque<std::function<void()>> posted_, jobs_;
  std::map<int, SimRequest> asked_;
  std::map<int, Stream> streams_;
  std::vector<std::shared_ptr<int>> disconnects_;
  std::vector<SimClient> clients_;
  std::unique_ptr<Transport> transport_;
  int io_calls_ = 0, submits_ = 0, next_id_ = 1;
  bool jumped_ = false;          // the clock passed a timeout
  std::string error_;
};

}  // namespace warpweave::server::testing
