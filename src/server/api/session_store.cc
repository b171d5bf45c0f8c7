#include "server/api/session_store.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include "server/api/api_state.h"

namespace warpweave::server {
namespace {

constexpr const char* kIdField = "session_params.id";
constexpr const char* kRidField = "session_params.rid";

Status no_such_session(const std::string& id) {
  return Status::invalid_argument(
      fmt::format("The session \"{}\" is not open; open one with /open_session.", id.substr(0, 100)), kIdField);
}

size_t tokens_of(const SessionStore::Node& node) {
  return SessionStore::kTokensOfARequest + node.prompt.size() + node.output.size();
}

}  // namespace

void SessionStore::Turn::add(std::span<const int32_t> output_ids, bool is_last) {
  std::lock_guard lock(store_.mutex_);
  node_->output.insert(node_->output.end(), output_ids.begin(), output_ids.end());
  if (node_->kept) store_.tokens_ += output_ids.size();
  if (is_last) store_.set_done(*this);
}

SessionStore::Turn::~Turn() { store_.end(*this); }

void SessionStore::set_done(const Turn& turn) noexcept {
  turn.node_->done = true;
  if (turn.node_->kept) sessions_.find(turn.session_)->second.used = Clock::now();
}

void SessionStore::end(const Turn& turn) noexcept {
  std::lock_guard lock(mutex_);
  const bool never_ran = !turn.node_->done && turn.node_->output.empty();
  set_done(turn);
  if (never_ran && turn.node_->kept) drop(sessions_.find(turn.session_)->second, {&turn.node_, 1});
}

void SessionStore::drop(Session& session, std::span<const NodePtr> nodes) noexcept {
  for (const NodePtr& node : nodes) {
    tokens_ -= tokens_of(*node);
    node->kept = false;
  }
  std::erase_if(session.nodes, [](const NodePtr& node) { return !node->kept; });
}

void SessionStore::drop_idle() {
  const auto now = Clock::now();
  for (auto at = sessions_.begin(); at != sessions_.end();) {
    Session& session = at->second;
    const bool is_idle = session.idle_timeout && now - session.used >= *session.idle_timeout &&
                         std::ranges::all_of(session.nodes, [](const NodePtr& node) { return node->done; });
    if (is_idle) drop(session, session.nodes);
    at = is_idle ? sessions_.erase(at) : std::next(at);
  }
}

Result<std::string> SessionStore::open(const std::string& owner, const std::string& id, double idle_timeout_s) {
  const std::string name = id.empty() ? random_id("") : id;
  std::lock_guard lock(mutex_);
  drop_idle();
  if (sessions_.size() >= kMaxSessions) {
    return Status::resource_exhausted(
        fmt::format("{} sessions are open, and no more may be; close one with /close_session.", kMaxSessions));
  }
  const auto [at, is_new] = sessions_.try_emplace(Key(owner, name));
  if (!is_new) {
    return Status::invalid_argument(
        fmt::format("The session \"{}\" is open already; leave session_id out, or close it.", name.substr(0, 100)),
        "session_id");
  }
  if (idle_timeout_s > 0) at->second.idle_timeout = std::chrono::duration<double>(idle_timeout_s);
  at->second.used = Clock::now();
  return name;
}

bool SessionStore::close(const std::string& owner, const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto at = sessions_.find(Key(owner, id));
  if (at == sessions_.end()) return false;
  drop(at->second, at->second.nodes);
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

SessionStore::NodePtr SessionStore::request_of(const Session& session, std::string_view rid) {
  const auto at = std::ranges::find_if(session.nodes, [&](const NodePtr& node) { return node->rid == rid; });
  return at == session.nodes.end() ? nullptr : *at;
}

Result<SessionStore::NodePtr> SessionStore::parent_of(const Session& session, const SessionWish& wish) {
  if (wish.rid.empty()) return NodePtr();
  NodePtr parent = request_of(session, wish.rid);
  if (parent == nullptr) {
    return Status::invalid_argument(
        fmt::format("The session has no request \"{}\"; go on from one that it has, or leave rid out.",
                    wish.rid.substr(0, 100)),
        kRidField);
  }
  if (!parent->done && !wish.replace) {
    return Status::invalid_argument(
        fmt::format("The request \"{}\" is still running; wait for it, or send replace: true.",
                    wish.rid.substr(0, 100)),
        kRidField);
  }
  return parent;
}

// What came behind `parent`, or all where there is none.
std::vector<SessionStore::NodePtr> SessionStore::behind(const Session& session, const NodePtr& parent) {
  if (parent == nullptr) return session.nodes;
  std::vector<NodePtr> out;
  std::unordered_set<const Node*> found = {parent.get()};
  for (const NodePtr& node : session.nodes) {
    if (!found.contains(node->parent.lock().get())) continue;
    found.insert(node.get());
    out.push_back(node);
  }
  return out;
}

Result<std::vector<int32_t>> SessionStore::prefix(const std::string& owner, const SessionWish& wish) {
  std::lock_guard lock(mutex_);
  WW_ASSIGN_OR_RETURN(const Session* session, find(owner, wish.id));
  WW_ASSIGN_OR_RETURN(const NodePtr parent, parent_of(*session, wish));
  std::vector<int32_t> ids;
  if (parent == nullptr) return ids;
  ids = parent->prompt;
  if (!wish.drop_previous_output) ids.insert(ids.end(), parent->output.begin(), parent->output.end());
  const auto size = static_cast<int64_t>(ids.size());
  if (wish.offset != 0) ids.resize(std::clamp(wish.offset > 0 ? wish.offset : size + wish.offset, int64_t{0}, size));
  return ids;
}

Result<SessionStore::Begun> SessionStore::begin(const std::string& owner, const SessionWish& wish,
                                                const std::string& rid, std::vector<int32_t> prompt) {
  auto node = std::make_shared<Node>();
  node->rid = rid;
  node->prompt = std::move(prompt);
  Begun begun{.turn = std::make_unique<Turn>(*this, node, Key(owner, wish.id)), .to_abort = {}};
  std::lock_guard lock(mutex_);
  WW_ASSIGN_OR_RETURN(Session* const session, find(owner, wish.id));
  WW_ASSIGN_OR_RETURN(const NodePtr parent, parent_of(*session, wish));
  if (request_of(*session, rid) != nullptr) {
    return Status::invalid_argument(
        fmt::format("The session has a request \"{}\" already; send another rid, or none.", rid.substr(0, 100)), "rid");
  }
  const std::vector<NodePtr> gone = wish.replace ? behind(*session, parent) : std::vector<NodePtr>();
  size_t tokens = tokens_ + tokens_of(*node);
  if (wish.replace && parent != nullptr && !parent->done) begun.to_abort.push_back(parent->rid);
  for (const NodePtr& one : gone) {
    tokens -= tokens_of(*one);
    if (!one->done) begun.to_abort.push_back(one->rid);
  }
  if (session->nodes.size() - gone.size() >= kMaxRequests || tokens > kMaxTokens) {
    return Status::resource_exhausted(fmt::format(
        "A session keeps at most {} requests, and all of them {} tokens, {} counted for each request beside its own; "
        "close sessions with /close_session, or send replace: true.",
        kMaxRequests, kMaxTokens, kTokensOfARequest));
  }
  node->parent = parent;
  session->nodes.push_back(node);  // the last that may fail
  node->kept = true;
  tokens_ += tokens_of(*node);
  drop(*session, gone);
  return begun;
}

}  // namespace warpweave::server
