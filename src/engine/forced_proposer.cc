#include "engine/forced_proposer.h"

#include <algorithm>

namespace warpweave {
namespace {

constexpr size_t kMaxForcedTokens = 64;   // that are looked at; a step has room for fewer
constexpr size_t kMaxForcedBytes = 1024;
constexpr int kMaxWrongGuesses = 8;

}  // namespace

void ForcedProposer::propose(const ProposalCall& call, Proposal& out) {
  const int tokens = count(call);
  if (tokens == 0) return;
  Followed& followed = followed_.at(call.request);
  out.tokens.assign(followed.forced.begin(), followed.forced.begin() + tokens);
  followed.proposed_at = followed.tokens;
  followed.first_proposed = out.tokens[0];
}

int ForcedProposer::count(const ProposalCall& call) {
  if (call.grammar == nullptr) return 0;
  return std::min(call.max_tokens, static_cast<int>(follow(call).forced.size()));
}

ForcedProposer::Followed& ForcedProposer::follow(const ProposalCall& call) {
  const auto [at, is_new] = followed_.try_emplace(call.request, call.grammar);
  Followed& followed = at->second;
  if (followed.lost || (!is_new && followed.tokens == call.output_ids.size())) return followed;
  read_output(call, followed);
  followed.forced.clear();
  if (!followed.lost) split_forced(call, followed);
  return followed;
}

void ForcedProposer::read_output(const ProposalCall& call, Followed& followed) {
  for (; followed.tokens < call.output_ids.size() && !followed.lost; ++followed.tokens) {
    const int32_t token = call.output_ids[followed.tokens];
    if (followed.first_proposed >= 0 && followed.tokens == followed.proposed_at) {
      followed.wrong_guesses = token == followed.first_proposed ? 0 : followed.wrong_guesses + 1;
      followed.first_proposed = -1;
    }
    followed.lost = followed.wrong_guesses == kMaxWrongGuesses || !followed.matcher.accept_token(token);
  }
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
