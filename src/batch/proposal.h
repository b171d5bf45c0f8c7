// Tokens proposed to follow the last known token of a request: a chain, or a tree of alternatives, which one forward
// checks all at once.
//
// In the batch the request then has 1 + size() rows: the last known token, node 0, and the proposals as nodes
// 1, 2, ... in this order. Parents stand before their children.
#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <vector>

namespace warpweave {

struct Proposal {
  std::vector<int32_t> tokens;
  std::vector<int> parents;  // [tokens] the node that a token follows; empty: a chain
  bool found = false;        // in earlier text: a draft model takes it as it is

  int size() const { return static_cast<int>(tokens.size()); }
  bool is_chain() const { return parents.empty(); }
  // Of node 1 .. size().
  int parent(int node) const {
    assert(node >= 1 && node <= size());
    return is_chain() ? node - 1 : parents[node - 1];
  }
  int32_t token(int node) const { return tokens[node - 1]; }
  int depth(int node) const {
    int depth = 0;
    for (; node > 0; node = parent(node)) ++depth;
    return depth;
  }
  // The child of `node` that proposes `token`, or -1.
  int child(int node, int32_t token_id) const {
    if (is_chain()) return node < size() && token(node + 1) == token_id ? node + 1 : -1;
    for (int next = node + 1; next <= size(); ++next) {
      if (parent(next) == node && token(next) == token_id) return next;
    }
    return -1;
  }
  // The tokens that its children propose.
  void children(int node, std::vector<int32_t>& out) const {
    out.clear();
    for (int next = node + 1; next <= size(); ++next) {
      if (parent(next) == node) out.push_back(token(next));
    }
  }
  void clear() {
    tokens.clear();
    parents.clear();
    found = false;
  }
};

// Of the proposals by row of a step, where there are any.
inline const Proposal& proposal_of(std::span<const Proposal> proposals, size_t row) {
  static const Proposal none;
  return row < proposals.size() ? proposals[row] : none;
}

}  // namespace warpweave
