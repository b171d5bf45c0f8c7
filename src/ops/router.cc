#include "ops/router.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "ops/elementwise.h"

namespace warpweave {
namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();  // of a choice that may not be made

struct Row {
  std::array<float, kMaxExperts> scores;
  std::array<float, kMaxExperts> choice;
};

// The indices of the `chosen.size()` largest values in descending order, ties to the lower index.
void largest(std::span<const float> values, std::span<int32_t> chosen) {
  const int k = static_cast<int>(chosen.size());
  int found = 0;
  for (int e = 0; e < static_cast<int>(values.size()); ++e) {  // insertion into a sorted list of k
    const float value = values[e];
    int at = found;
    while (at > 0 && !(value <= values[chosen[at - 1]]) && !std::isnan(value)) --at;
    if (at == k) continue;
    found = std::min(found + 1, k);
    for (int j = found - 1; j > at; --j) chosen[j] = chosen[j - 1];
    chosen[at] = e;
  }
}

// The best choice of a group, or the sum of its best two.
float group_score(std::span<const float> choice, GroupScore kind) {
  float best = kOut, second = kOut;
  for (const float value : choice) {
    if (value > best) {
      second = best;
      best = value;
    } else if (value > second) {
      second = value;
    }
  }
  return kind == GroupScore::best ? best : best + second;
}

// Leaves only the experts of the kept groups to choose from.
void drop_groups(const RouterRule& rule, std::span<float> choice) {
  const int size = rule.num_experts / rule.groups;
  std::array<float, kMaxExperts> of_group;
  std::array<int32_t, kMaxExperts> kept;
  for (int g = 0; g < rule.groups; ++g) of_group[g] = group_score(choice.subspan(g * size, size), rule.group_score);
  largest({of_group.data(), static_cast<size_t>(rule.groups)}, {kept.data(), static_cast<size_t>(rule.kept_groups)});
  for (int g = 0; g < rule.groups; ++g) {
    if (std::find(kept.begin(), kept.begin() + rule.kept_groups, g) != kept.begin() + rule.kept_groups) continue;
    std::fill_n(choice.begin() + g * size, size, kOut);
  }
}

// Of one row: rule.k experts, and what each counts.
struct Choice {
  std::span<int32_t> experts;
  float* weights;
};

void choose_by_score(const RouterRule& rule, const float* logits, const float* correction, Row& row, Choice out) {
  const auto [chosen, weights] = out;
  const int n = rule.num_experts;
  const std::span<float> choice(row.choice.data(), n);
  float total = 1;
  if (rule.score == RouterScore::softmax) {
    total = static_cast<float>(exp_row(logits, n, logits[argmax(logits, n)], 1.0f, row.scores.data()));
  } else {
    for (int e = 0; e < n; ++e) row.scores[e] = 1.0f / (1.0f + std::exp(-logits[e]));
  }
  if (rule.score == RouterScore::softmax && correction == nullptr && rule.groups == 1) {
    std::copy_n(logits, n, choice.begin());
  } else {
    for (int e = 0; e < n; ++e) choice[e] = row.scores[e] / total + (correction != nullptr ? correction[e] : 0.0f);
    if (rule.groups > 1) drop_groups(rule, choice);
  }
  largest(choice, chosen);
  float sum = 0;
  for (size_t j = 0; j < chosen.size(); ++j) sum += weights[j] = row.scores[chosen[j]] / total;
  const float factor = rule.renormalise ? rule.scale / (sum + rule.sum_epsilon) : rule.scale;
  for (size_t j = 0; j < chosen.size(); ++j) weights[j] *= factor;
}

void choose_by_sparse_mixer(const RouterRule& rule, const float* logits, Row& row, Choice out) {
  const auto [chosen, weights] = out;
  const int n = rule.num_experts;
  const std::span<float> left(row.choice.data(), n);
  std::copy_n(logits, n, left.begin());
  for (size_t j = 0; j < chosen.size(); ++j) {
    largest(left, chosen.subspan(j, 1));
    const float best = left[chosen[j]];
    float sum = 0;
    for (int e = 0; e < n; ++e) {
      if (left[e] == kOut || (best - left[e]) / std::max(std::abs(left[e]), best) > 2 * rule.jitter) continue;
      sum += std::exp(left[e] - best);
    }
    weights[j] = rule.scale / sum;
    left[chosen[j]] = kOut;
  }
}

}  // namespace

Status check_router_rule(const RouterRule& rule) {
  const auto broken = [](const std::string& what) { return Status::invalid_argument("experts: " + what); };
  if (rule.num_experts < 1 || rule.num_experts > kMaxExperts) {
    return broken("their number must be from 1 to " + std::to_string(kMaxExperts) + ", got " +
                  std::to_string(rule.num_experts));
  }
  if (rule.k < 1 || rule.k > std::min(rule.num_experts, kMaxExpertsPerToken)) {
    return broken("a token must choose from 1 to " + std::to_string(std::min(rule.num_experts, kMaxExpertsPerToken)) +
                  " of them, got " + std::to_string(rule.k));
  }
  if (rule.groups < 1 || rule.num_experts % rule.groups != 0) {
    return broken("the number of groups must divide that of experts (" + std::to_string(rule.num_experts) + "), got " +
                  std::to_string(rule.groups));
  }
  const int group_size = rule.num_experts / rule.groups;
  if (rule.kept_groups < 1 || rule.kept_groups > rule.groups || rule.kept_groups * group_size < rule.k) {
    return broken("of " + std::to_string(rule.groups) + " groups of " + std::to_string(group_size) + ", " +
                  std::to_string(rule.kept_groups) + " are kept, which must hold the " + std::to_string(rule.k) +
                  " that a token chooses");
  }
  if (rule.groups > 1 && rule.group_score == GroupScore::best_two && group_size < 2) {
    return broken("groups judged by their best two must have at least two experts");
  }
  if (!std::isfinite(rule.scale) || !(rule.sum_epsilon >= 0)) return broken("scale and epsilon must be finite");
  return {};
}

void choose_experts(const ChooseExpertsCall& call) {
  const RouterRule& rule = call.rule;
  assert(check_router_rule(rule).ok());
  Row row;
  for (int64_t r = 0; r < call.rows; ++r) {
    const float* logits = call.logits + r * rule.num_experts;
    const Choice choice = {{call.experts_out + r * rule.k, static_cast<size_t>(rule.k)}, call.weights_out + r * rule.k};
    if (rule.score == RouterScore::sparse_mixer) {
      choose_by_sparse_mixer(rule, logits, row, choice);
    } else {
      choose_by_score(rule, logits, call.correction, row, choice);
    }
  }
}

}  // namespace warpweave
