#include "server/transport.h"

#include "server/connection.h"

namespace warpweave::server {
namespace {

constexpr std::chrono::seconds kIdleBeforeGivingWay{1};
constexpr std::string_view kFull =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

WebAccess web_access(const ServerOptions& options) {
  return {options.allowed_origins, options.allowed_hosts, options.host};
}

}  // namespace

Transport::Transport(ServerOptions server_options, const Router& router, TransportHooks transport_hooks)
    : options(std::move(server_options)),
      hooks(std::move(transport_hooks)),
      keys{options.api_key, options.admin_api_key},
      guard(web_access(options)),
      body_memory(std::make_shared<BodyMemory>(std::max(options.max_total_body_bytes, options.max_body_bytes))),
      output_memory(std::make_shared<OutputMemory>(options.max_total_unsent_bytes)),
      woken(std::make_shared<WakeList>(hooks.wake)) {
  set_router(router);
}

void Transport::set_router(const Router& router) { tables_.push_back(std::make_unique<RouteTable>(router)); }

void Transport::admit(std::unique_ptr<Socket> socket, bool peer_is_loopback) {
  const auto max = static_cast<size_t>(options.max_connections);
  if (connections_.size() >= max) close_longest_idle(kIdleBeforeGivingWay);
  if (connections_.size() >= max + static_cast<size_t>(options.spare_connections)) {
    socket->write(kFull);
    socket->close();
    return;
  }
  const PeerFacts peer{.is_loopback = peer_is_loopback, .is_spare = connections_.size() >= max};
  const auto connection = std::make_shared<Connection>(*this, std::move(socket), peer);
  connections_.insert(connection);
  connection->start();
}

bool Transport::close_longest_idle(Clock::duration idle_at_least) {
  if (idle.empty() || hooks.now() - idle.front()->idle_since() < idle_at_least) return false;
  idle.front()->close();
  return true;
}

std::vector<std::shared_ptr<Connection>> Transport::all() const {
  return {connections_.begin(), connections_.end()};  // a copy: closing one takes it out of the set
}

void Transport::check_deadlines() {
  const Clock::time_point now = hooks.now();
  for (const auto& connection : all()) connection->check_deadline(now);
}

void Transport::flush_woken() {
  woken->take([](const std::weak_ptr<Connection>& connection) {
    if (const auto woken = connection.lock()) woken->on_output();
  });
  limit_output_memory();
}

void Transport::limit_output_memory() {
  while (output_memory->is_over()) {
    Connection* largest = nullptr;
    size_t most_bytes = 0, holders = 0;
    for (const auto& connection : connections_) {
      const size_t bytes = connection->unsent_bytes();
      holders += bytes > 0;
      if (bytes <= most_bytes) continue;
      largest = connection.get();
      most_bytes = bytes;
    }
    if (holders < 2) return;
    largest->give_up_answer();
  }
}

void Transport::close_all() noexcept {
  while (!connections_.empty()) {
    const std::shared_ptr<Connection> connection = *connections_.begin();
    connection->close();  // forgets it
  }
}

bool Transport::take_body_memory(Connection& asking, size_t bytes) {
  while (!asking.take_body_memory(bytes)) {
    Connection* largest = &asking;
    size_t largest_bytes = asking.unfinished_body_bytes() + bytes;
    for (const auto& connection : connections_) {
      if (connection.get() != &asking && connection->unfinished_body_bytes() > largest_bytes) {
        largest = connection.get();
        largest_bytes = connection->unfinished_body_bytes();
      }
    }
    if (largest == &asking) return false;
    largest->give_way();
  }
  return true;
}

}  // namespace warpweave::server
