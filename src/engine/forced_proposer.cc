#include "engine/forced_proposer.h"

#include <algorithm>
#include <cmath>

namespace warpweave {
namespace {

constexpr size_t kMaxForcedTokens = 64;   // that are looked at; a step has room for fewer
constexpr size_t kMaxForcedBytes = 1024;
constexpr double kOwnWeight = 1.0 / 16, kCommonWeight = 1.0 / 64;  // of an outcome in the running means
constexpr double kWaitShare = 0.1;  // of a step's time: the engine's own work, which no longer runs beside the device's
constexpr double kMargin =
    1.05;  // over a guess's price, for the likeliest of many uncertain ones seem likelier than they are

}  // namespace

void ForcedProposer::set_rows(int rows) { rows_ = std::max(rows, 1); }

double ForcedProposer::wait_cost_rows() const { return kWaitShare * (step_cost_rows_ + rows_); }

void ForcedProposer::propose(const ProposalCall& call, Proposal& out) {
  if (call.grammar == nullptr) return;
  const Followed& followed = follow(call);
  const int tokens = length(followed, std::min(call.max_tokens, static_cast<int>(followed.forced.size())));
  out.tokens.assign(followed.forced.begin(), followed.forced.begin() + tokens);
}

ForcedProposer::Forecast ForcedProposer::forecast(const ProposalCall& call, int in_flight) {
  if (call.grammar == nullptr) return {};
  const Followed& followed = follow(call);
  const int available = static_cast<int>(followed.forced.size()) - in_flight;
  Forecast out = {.tokens = length(followed, std::min(call.max_tokens, available))};
  double chance = std::pow(followed.right, in_flight);
  out.rows_saved = -out.tokens * chance;
  for (int i = 0; i < out.tokens; ++i) {
    chance *= followed.right;
    out.rows_saved += chance * rows_per_token();
  }
  return out;
}

int ForcedProposer::length(const Followed& followed, int available_tokens) const {
  int tokens = 0;
  for (double chance = followed.right; tokens < available_tokens && chance * rows_per_token() >= kMargin;
       chance *= followed.right)
    ++tokens;
  return tokens;
}

ForcedProposer::Followed& ForcedProposer::follow(const ProposalCall& call) {
  const auto [at, is_new] = followed_.try_emplace(call.request, call.grammar, right_);
  Followed& followed = at->second;
  if (followed.lost || (!is_new && followed.tokens == call.output_ids.size())) return followed;
  read_output(call, followed);
  // Where the output went along what was forced, the rest of it still is.
  if (!followed.lost && followed.forced.empty()) split_forced(call, followed);
  return followed;
}

void ForcedProposer::read_output(const ProposalCall& call, Followed& followed) {
  std::vector<int32_t>& forced = followed.forced;
  size_t along = 0;
  for (; followed.tokens < call.output_ids.size() && !followed.lost; ++followed.tokens) {
    const int32_t token = call.output_ids[followed.tokens];
    if (along < forced.size()) {
      const bool came_true = token == forced[along];
      learn(came_true, followed);
      along = came_true ? along + 1 : forced.size();
    }
    followed.lost = !followed.matcher.accept_token(token);
  }
  forced.erase(forced.begin(), forced.begin() + static_cast<std::ptrdiff_t>(along));
  if (followed.lost) forced.clear();
}

void ForcedProposer::learn(bool came_true, Followed& followed) {
  const double outcome = came_true ? 1 : 0;
  followed.right += kOwnWeight * (outcome - followed.right);
  right_ += kCommonWeight * (outcome - right_);
}

void ForcedProposer::split_forced(const ProposalCall& call, Followed& followed) {
  const grammar::Vocabulary& vocabulary = call.grammar->vocabulary();
  const std::string forced = followed.matcher.jump_forward(kMaxForcedBytes);
  for (std::string_view left = forced; !left.empty() && followed.forced.size() < kMaxForcedTokens;) {
    const int32_t id = vocabulary.longest_beginning(left);
    if (id < 0) return;
    followed.forced.push_back(id);
    left.remove_prefix(vocabulary.token(id).size());
  }
}

}  // namespace warpweave
