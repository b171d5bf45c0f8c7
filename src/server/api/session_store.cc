#include "server/api/session_store.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/api/api_state.h"

namespace warpweave::server {
namespace {

constexpr const char* kIdField = "session_params.id";
constexpr const char* kRidField = "session_params.rid";

Status no_such_session(const std::string& id) {
  return Status::invalid_argument(fmt::format("The session \"{}\" is not open; open one with /open_session.", id.substr(0, 100)), kIdField);
}

size_t tokens_of(const SessionStore::Node& node) { return node.prompt.size() + node.output.size(); }

bool descends_from(const std::shared_ptr<SessionStore::Node>& node, const std::shared_ptr<SessionStore::Node>& ancestor) {
  for (auto at = node->parent.lock(); at != nullptr; at = at->parent.lock()) {
    if (at == ancestor) return true;
  }
  return false;
}

}  // namespace

void SessionStore::Turn::add(std::span<const int32_t> output_ids, bool is_last) {
  std::lock_guard lock(store_.mutex_);
  node_->output.insert(node_->output.end(), output_ids.begin(), output_ids.end());
  if (node_->kept) store_.tokens_ += output_ids.size();
  node_->done |= is_last;
}

SessionStore::Turn::~Turn() { store_.end(*this); }

void SessionStore::end(const Turn& turn) {
  std::lock_guard lock(mutex_);
  const bool refused = !turn.node_->done && turn.node_->output.empty();
  turn.node_->done = true;
  if (refused && turn.node_->kept) drop(sessions_.at(Key(turn.owner_, turn.session_)), turn.node_);
}

void SessionStore::drop(Session& session, std::shared_ptr<Node> node) {
  tokens_ -= tokens_of(*node);
  node->kept = false;
  session.nodes.erase(node->rid);
}

void SessionStore::drop_idle() {
  const auto now = Clock::now();
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    Session& session = at->second;
    if (!session.idle_timeout || now - session.used < *session.idle_timeout) {
      ++at;
      continue;
    }
    while (!session.nodes.empty()) drop(session, session.nodes.begin()->second);
    at = sessions_.erase(at);
  }
}

Result<std::string> SessionStore::open(const std::string& owner, const std::string& id, double idle_timeout_s) {
  const std::string name = id.empty() ? random_id("") : id;
  std::lock_guard lock(mutex_);
  drop_idle();
  if (sessions_.size() >= kMaxSessions) {
    return Status::resource_exhausted(fmt::format("{} sessions are open, and no more may be; close one with /close_session.", kMaxSessions));
  }
  const auto [at, is_new] = sessions_.try_emplace(Key(owner, name));
  if (!is_new) {
    return Status::invalid_argument(fmt::format("The session \"{}\" is open already; leave session_id out, or close it.",
                                                name.substr(0, 100)), "session_id");
  }
  if (idle_timeout_s > 0) at->second.idle_timeout = std::chrono::duration<double>(idle_timeout_s);
  at->second.used = Clock::now();
  return name;
}

bool SessionStore::close(const std::string& owner, const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto at = sessions_.find(Key(owner, id));
  if (at == sessions_.end()) return false;
  while (!at->second.nodes.empty()) drop(at->second, at->second.nodes.begin()->second);
  sessions_.erase(at);
  return true;
}

Result<SessionStore::Session*> SessionStore::find(const std::string& owner, const std::string& id) {
  drop_idle();
  const auto at = sessions_.find(Key(owner, id));
  if (at == sessions_.end()) return no_such_session(id);
  at->second.used = Clock::now();
  return &at->second;
}

Result<std::shared_ptr<SessionStore::Node>> SessionStore::parent_of(const Session& session, const SessionWish& wish) {
  if (wish.rid.empty()) return std::shared_ptr<Node>();
  const auto at = session.nodes.find(wish.rid);
  if (at == session.nodes.end()) {
    return Status::invalid_argument(fmt::format("The session has no request \"{}\"; go on from one that it has, or leave rid out.",
                                                wish.rid.substr(0, 100)), kRidField);
  }
  if (!at->second->done && !wish.replace) {
    return Status::invalid_argument(fmt::format("The request \"{}\" is still running; wait for it, or send replace: true.",
                                                wish.rid.substr(0, 100)), kRidField);
  }
  return at->second;
}

Result<std::vector<int32_t>> SessionStore::prefix(const std::string& owner, const SessionWish& wish) {
  std::lock_guard lock(mutex_);
  WW_ASSIGN_OR_RETURN(const Session* session, find(owner, wish.id));
  WW_ASSIGN_OR_RETURN(const std::shared_ptr<Node> parent, parent_of(*session, wish));
  std::vector<int32_t> ids;
  if (parent == nullptr) return ids;
  ids = parent->prompt;
  if (!wish.drop_previous_output) ids.insert(ids.end(), parent->output.begin(), parent->output.end());
  const auto size = static_cast<int64_t>(ids.size());
  if (wish.offset != 0) ids.resize(std::clamp(wish.offset > 0 ? wish.offset : size + wish.offset, int64_t{0}, size));
  return ids;
}

// Forgets what came behind `parent`, or all where there is none.
void SessionStore::replace(Session& session, const std::shared_ptr<Node>& parent, std::vector<std::string>& to_abort) {
  std::vector<std::shared_ptr<Node>> gone;
  for (const auto& [rid, node] : session.nodes) {
    if (parent == nullptr || descends_from(node, parent)) gone.push_back(node);
  }
  if (parent != nullptr && !parent->done) to_abort.push_back(parent->rid);
  for (const std::shared_ptr<Node>& node : gone) {
    if (!node->done) to_abort.push_back(node->rid);
    drop(session, node);
  }
}

Result<SessionStore::Begun> SessionStore::begin(const std::string& owner, const SessionWish& wish, const std::string& rid,
                                                std::vector<int32_t> prompt) {
  auto node = std::make_shared<Node>();
  node->rid = rid;
  node->prompt = std::move(prompt);
  Begun begun{.turn = std::make_unique<Turn>(*this, node, owner, wish.id), .to_abort = {}};
  std::lock_guard lock(mutex_);
  WW_ASSIGN_OR_RETURN(Session* const session, find(owner, wish.id));
  WW_ASSIGN_OR_RETURN(const std::shared_ptr<Node> parent, parent_of(*session, wish));
  if (session->nodes.contains(rid)) {
    return Status::invalid_argument(fmt::format("The session has a request \"{}\" already; send another rid, or none.", rid.substr(0, 100)), "rid");
  }
  if (session->nodes.size() >= kMaxRequests || tokens_ + node->prompt.size() > kMaxTokens) {
    return Status::resource_exhausted(fmt::format("A session keeps at most {} requests, and all of them {} tokens; close sessions with "
                                                  "/close_session, or send replace: true.", kMaxRequests, kMaxTokens));
  }
  if (wish.replace) replace(*session, parent, begun.to_abort);
  node->parent = parent;
  node->kept = true;
  tokens_ += node->prompt.size();
  session->nodes.emplace(rid, std::move(node));
  return begun;
}

}  // namespace warpweave::server
