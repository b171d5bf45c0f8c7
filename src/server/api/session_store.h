// Sessions of /generate, as SGLang has them: a request of a session goes on from an earlier one, of which its client
// then sends only the name. What a request read and wrote is kept as ids; the prefix cache knows their K/V by itself.
//
// The requests of a session are a tree. `replace`: what came behind the earlier request is forgotten, and it and they
// are aborted where they still run. A session belongs to the key that opened it. All is bounded, and in memory only.
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "warpweave/status.h"

namespace warpweave::server {

// session_params of a request.
struct SessionWish {
  std::string id;
  std::string rid = {};               // the request to go on from; empty: from nothing
  int64_t offset = 0;                 // keep so many tokens of it, negative: all but the last so many; 0: all
  bool replace = false;
  bool drop_previous_output = false;  // go on from its prompt alone
};

class SessionStore {
 public:
  static constexpr size_t kMaxSessions = 1024;
  static constexpr size_t kMaxRequests = 4096;          // of a session
  static constexpr size_t kMaxTokens = size_t{8} << 20; // of all sessions
  static constexpr size_t kTokensOfARequest = 256;  // counted for each beside its own: the memory it takes without them

  using Key = std::pair<std::string, std::string>;  // owner, id
  struct Node {
    std::string rid;
    std::weak_ptr<Node> parent;
    std::vector<int32_t> prompt, output;
    bool done = false;
    bool kept = false;  // by its session
  };
  using NodePtr = std::shared_ptr<Node>;

  // A request of a session while it runs. One that ends before add() was called with a token or the last time was never
  // there.
  class Turn {
   public:
    Turn(SessionStore& store, NodePtr node, Key session)
        : store_(store), node_(std::move(node)), session_(std::move(session)) {}
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    void add(std::span<const int32_t> output_ids, bool is_last);

   private:
    friend class SessionStore;
    SessionStore& store_;
    const NodePtr node_;
    const Key session_;
  };

  // `id` empty: one is made up. `idle_timeout_s`: the session is closed after so long without a request that runs; 0:
  // never. The session's id, or invalid_argument where it is open already, resource_exhausted where there are too many.
  Result<std::string> open(const std::string& owner, const std::string& id, double idle_timeout_s);
  bool close(const std::string& owner, const std::string& id);

  // The ids that stand before the request's own ones.
  Result<std::vector<int32_t>> prefix(const std::string& owner, const SessionWish& wish);

  struct Begun {
    std::unique_ptr<Turn> turn;
    std::vector<std::string> to_abort;  // requests that still run and are replaced
  };
  // Adds request `rid`, which reads `prompt`: prefix() and its own.
  Result<Begun> begin(const std::string& owner, const SessionWish& wish, const std::string& rid,
                      std::vector<int32_t> prompt);

 private:
  using Clock = std::chrono::steady_clock;
  struct Session {
    std::vector<NodePtr> nodes;  // in the order in which they began: what goes on from one stands behind it
    std::optional<std::chrono::duration<double>> idle_timeout;
    Clock::time_point used;
  };

  void drop_idle();
  void drop(Session& session, std::span<const NodePtr> nodes) noexcept;
  Result<Session*> find(const std::string& owner, const std::string& id);
  static NodePtr request_of(const Session& session, std::string_view rid);
  static Result<NodePtr> parent_of(const Session& session, const SessionWish& wish);
  static std::vector<NodePtr> behind(const Session& session, const NodePtr& parent);
  void set_done(const Turn& turn) noexcept;
  void end(const Turn& turn) noexcept;

  std::mutex mutex_;
  std::map<Key, Session> sessions_;
  size_t tokens_ = 0;
};

}  // namespace warpweave::server
