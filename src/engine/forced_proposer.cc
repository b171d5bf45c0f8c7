#include "engine/forced_proposer.h"

#include <algorithm>

namespace warpweave {
namespace {

constexpr size_t kBytesPerToken = 16;  // of forced text that is looked at: names seldom have longer tokens

}  // namespace

void ForcedProposer::propose(const ProposalCall& call, Proposal& out) {
  if (call.grammar != nullptr) propose_forced(call, out);
  if (out.size() == 0) otherwise_->propose(call, out);
}

void ForcedProposer::forget(uint64_t request) {
  followed_.erase(request);
  otherwise_->forget(request);
}

void ForcedProposer::forget_all() {
  followed_.clear();
  otherwise_->forget_all();
}

void ForcedProposer::propose_forced(const ProposalCall& call, Proposal& out) {
  Followed& followed = followed_.try_emplace(call.request, call.grammar).first->second;
  for (; followed.tokens < call.output_ids.size() && !followed.lost; ++followed.tokens) {
    followed.lost = !followed.matcher.accept_token(call.output_ids[followed.tokens]);
  }
  if (followed.lost) return;
  const std::string forced = followed.matcher.jump_forward(kBytesPerToken * static_cast<size_t>(call.max_tokens));
  if (forced.empty()) return;
  if (learned_from_ == nullptr || &learned_from_->vocabulary() != &call.grammar->vocabulary()) {
    learned_from_ = call.grammar;
    learn_tokens(call.grammar->vocabulary());
  }
  std::string_view left = forced;
  const auto longest = static_cast<size_t>(call.grammar->vocabulary().longest_token_bytes());
  while (!left.empty() && out.size() < call.max_tokens) {
    size_t bytes = std::min(left.size(), longest);
    auto found = ids_.find(left.substr(0, bytes));
    while (found == ids_.end() && bytes > 1) found = ids_.find(left.substr(0, --bytes));
    if (found == ids_.end()) return;
    out.tokens.push_back(found->second);
    left.remove_prefix(bytes);
  }
}

void ForcedProposer::learn_tokens(const grammar::Vocabulary& vocabulary) {
  ids_.clear();
  for (int32_t id = 0; id < static_cast<int32_t>(vocabulary.size()); ++id) {
    if (!vocabulary.token(id).empty()) ids_.try_emplace(vocabulary.token(id), id);
  }
}

}  // namespace warpweave
