// The tree of drafts of one request while a draft model grows it, level by level, and what is kept of it.
//
// Of each level's candidates the `topk` likeliest (by the product of the draft model's probabilities from the root)
// are expanded, each by its `topk` likeliest tokens; in the end the likeliest candidates of all levels are kept, whose
// parents are always among them (EAGLE-2, Li et al. 2024). With topk 1 it is a chain. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "batch/proposal.h"

namespace warpweave {

// A token that may follow a row, by the draft model.
struct DraftChoice {
  int32_t token = 0;
  float logprob = 0;
};
inline constexpr float kImpossibleChoice = -1e30f;  // a log-probability; finite, so that sums of it keep an order

// The likeliest `count` of a row of logits, best first; less where the vocabulary is smaller. Logits that are no
// numbers count as impossible: an all-NaN row gives choices all the same.
void top_choices(std::span<const float> logits, int count, std::vector<DraftChoice>& out);

class DraftTree {
 public:
  struct Node {
    int parent = -1;     // among nodes(); -1: the request's last known token
    int32_t token = 0;
    float score = 0;     // log-probability from the root
    int depth = 1;
  };

  // The first level.
  void start(int topk, std::span<const DraftChoice> choices);
  int levels() const { return levels_; }
  // The nodes expanded so far, parents first, the last level's last; those of the last level wait for their choices.
  std::span<const int> expanded() const { return expanded_; }
  int num_waiting() const { return static_cast<int>(expanded_.size()) - first_waiting_; }
  const Node& node(int index) const { return nodes_[index]; }
  int size() const { return static_cast<int>(nodes_.size()); }
  // Chooses what is expanded next: the best topk of the last level.
  void expand();
  // The choices after waiting node `waiting`, 0 to num_waiting() - 1, in this order; the last ends the level.
  void add(int waiting, std::span<const DraftChoice> choices);
  // The best `count` nodes as a proposal; padded by token 0 where there are fewer.
  void take(int count, Proposal& out) const;

 private:
  int topk_ = 1;
  int levels_ = 0;
  int level_begin_ = 0;       // of the last level, among nodes_
  int first_waiting_ = 0;     // among expanded_
  std::vector<Node> nodes_;
  std::vector<int> expanded_;
};

}  // namespace warpweave
