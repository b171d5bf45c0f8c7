#include "spec/draft_tree.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/elementwise.h"

namespace warpweave {
namespace {

float number_or_impossible(float x) { return std::isfinite(x) ? std::max(x, kImpossibleChoice) : kImpossibleChoice; }

}  // namespace

void top_choices(std::span<const float> logits, int count, std::vector<DraftChoice>& out) {
  out.clear();
  const size_t wanted = std::min<size_t>(count, logits.size());
  const auto better = [](const DraftChoice& a, const DraftChoice& b) { return a.logprob > b.logprob; };
  float least = std::numeric_limits<float>::lowest();
  float best = kImpossibleChoice;
  for (size_t i = 0; i < logits.size(); ++i) {
    const float value = number_or_impossible(logits[i]);
    best = std::max(best, value);
    if (out.size() == wanted && value <= least) continue;
    const DraftChoice choice{static_cast<int32_t>(i), value};
    out.insert(std::upper_bound(out.begin(), out.end(), choice, better), choice);
    if (out.size() > wanted) out.pop_back();
    least = out.back().logprob;
  }
  float shift = log_sum_exp(logits.data(), static_cast<int64_t>(logits.size()));
  if (!std::isfinite(shift)) {  // some are no numbers: the sum is over the others
    double sum = 0;
    for (const float value : logits) sum += std::exp(static_cast<double>(number_or_impossible(value)) - best);
    shift = best + static_cast<float>(std::log(sum));
  }
  for (DraftChoice& choice : out) choice.logprob -= shift;
}

void DraftTree::start(int topk, std::span<const DraftChoice> choices) {
  topk_ = topk;
  levels_ = 1;
  level_begin_ = first_waiting_ = 0;
  nodes_.clear();
  expanded_.clear();
  for (const DraftChoice& choice : choices.first(std::min<size_t>(topk, choices.size()))) {
    nodes_.push_back({-1, choice.token, choice.logprob, 1});
  }
}

void DraftTree::expand() {
  std::vector<int> level(nodes_.size() - level_begin_);
  std::iota(level.begin(), level.end(), level_begin_);
  std::stable_sort(level.begin(), level.end(), [&](int a, int b) { return nodes_[a].score > nodes_[b].score; });
  if (static_cast<int>(level.size()) > topk_) level.resize(topk_);
  first_waiting_ = static_cast<int>(expanded_.size());
  expanded_.insert(expanded_.end(), level.begin(), level.end());
  level_begin_ = static_cast<int>(nodes_.size());
}

void DraftTree::add(int waiting, std::span<const DraftChoice> choices) {
  const int parent = expanded_[first_waiting_ + waiting];
  for (const DraftChoice& choice : choices.first(std::min<size_t>(topk_, choices.size()))) {
    nodes_.push_back({parent, choice.token, nodes_[parent].score + choice.logprob, nodes_[parent].depth + 1});
  }
  if (waiting + 1 == num_waiting()) ++levels_;
}

void DraftTree::take(int count, Proposal& out) const {
  out.clear();
  std::vector<int> best(nodes_.size());
  std::iota(best.begin(), best.end(), 0);
  // Parents are never less likely than their children, and stand before them.
  std::stable_sort(best.begin(), best.end(), [&](int a, int b) { return nodes_[a].score > nodes_[b].score; });
  if (static_cast<int>(best.size()) > count) best.resize(count);
  std::sort(best.begin(), best.end());
  std::vector<int> place(nodes_.size(), 0);
  bool chain = true;
  for (const int index : best) {
    const Node& node = nodes_[index];
    const int parent = node.parent < 0 ? 0 : place[node.parent];
    chain &= parent == out.size();
    out.tokens.push_back(node.token);
    out.parents.push_back(parent);
    place[index] = out.size();
  }
  while (out.size() < count) {
    const int parent = out.size();
    out.tokens.push_back(0);
    out.parents.push_back(parent);
  }
  if (chain) out.parents.clear();
}

}  // namespace warpweave
