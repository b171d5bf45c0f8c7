#include "spec/draft_room.h"

#include <algorithm>

namespace warpweave {
namespace {

// Guesses that are expected to come true of those found; with fewer a draft is worth its passes.
constexpr double kLeastFound = 0.7;
constexpr int64_t kTrieNodes = 1'000'000;

NgramOptions lookup_options() {
  NgramOptions out;
  out.history.capacity_nodes = kTrieNodes;
  out.max_breadth = 1;
  return out;
}

}  // namespace

DraftRoom::DraftRoom(const DraftOptions& options) : options_(options) {
  if (options.looks_up) lookup_.emplace(lookup_options());
}

void DraftRoom::propose(const ProposalCall& call, Proposal& out) {
  const int most_found = std::min(call.max_tokens, kCheapRows / std::max(call.step_requests, 1) - 1);
  if (lookup_ && most_found > 0) {
    ProposalCall all = call;
    all.max_tokens = most_found;
    lookup_->propose(all, out);
    out.found = out.size() > 0 && (call.only_found || lookup_->expected() >= kLeastFound);
    if (out.found) return;
    out.clear();
  }
  // Nodes of token 0, a star where a tree is to come.
  bool tree = false;
  const int nodes = options_.nodes_for(call.max_drafts, tree);
  out.tokens.assign(nodes, 0);
  if (tree) out.parents.assign(nodes, 0);
}

void DraftRoom::forget(uint64_t request) {
  if (lookup_) lookup_->forget(request);
}

void DraftRoom::forget_all() {
  if (lookup_) lookup_->forget_all();
}

}  // namespace warpweave
