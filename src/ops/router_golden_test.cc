// Every routing rule against transformers' own router (tests/golden/router, made by tools/make_router_goldens.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/router.h"

namespace warpweave {
namespace {

using nlohmann::json;

struct Case {
  std::string name;
  RouterRule rule;
  std::vector<float> correction;
  std::vector<std::vector<float>> logits, weights;
  std::vector<std::vector<int32_t>> chosen;
};

RouterRule read_rule(const json& from) {
  RouterRule rule;
  rule.num_experts = from.at("num_experts");
  rule.k = from.at("k");
  const std::string score = from.value("score", "softmax");
  rule.score = score == "sigmoid" ? RouterScore::sigmoid
               : score == "softmax" ? RouterScore::softmax : RouterScore::sparse_mixer;
  rule.renormalise = from.value("renormalise", true);
  rule.sum_epsilon = from.value("sum_epsilon", 0.0f);
  rule.scale = from.value("scale", 1.0f);
  rule.groups = from.value("groups", 1);
  rule.kept_groups = from.value("kept_groups", 1);
  rule.group_score = from.value("group_score", "best") == "best" ? GroupScore::best : GroupScore::best_two;
  rule.jitter = from.value("jitter", 0.01f);
  return rule;
}

std::vector<Case> read_cases() {
  std::vector<Case> out;
  for (const json& from : json::parse(std::ifstream("tests/golden/router/routers.json"))) {
    out.push_back({from.at("name"), read_rule(from.at("rule")), from.value("correction", std::vector<float>()),
                   from.at("logits"), from.at("weights"), from.at("chosen")});
  }
  return out;
}

// One chosen expert: what made it be chosen, and its weight.
struct Pick {
  float logit;
  float correction;
  float weight;
};

// Of equal experts any may be chosen, so picks are compared by their values, in one order.
std::vector<Pick> picks(const Case& c, size_t row, const int32_t* chosen, const float* weights) {
  std::vector<Pick> out;
  for (int j = 0; j < c.rule.k; ++j) {
    out.push_back({c.logits[row][chosen[j]], c.correction.empty() ? 0.0f : c.correction[chosen[j]], weights[j]});
  }
  if (c.rule.score == RouterScore::sparse_mixer) return out;  // the second weight is of what the first left over
  std::sort(out.begin(), out.end(), [](const Pick& a, const Pick& b) {
    return std::tie(a.logit, a.correction) < std::tie(b.logit, b.correction);
  });
  return out;
}

// Rows whose choice or weights are not transformers'.
int rows_that_differ(const Case& c, const RouterRule& rule) {
  int differing = 0;
  for (size_t r = 0; r < c.logits.size(); ++r) {
    std::vector<int32_t> chosen(rule.k);
    std::vector<float> weights(rule.k);
    choose_experts({.logits = c.logits[r].data(), .rows = 1, .rule = rule,
                    .correction = c.correction.empty() ? nullptr : c.correction.data(),
                    .experts_out = chosen.data(), .weights_out = weights.data()});
    const std::vector<Pick> ours = picks(c, r, chosen.data(), weights.data());
    const std::vector<Pick> theirs = picks(c, r, c.chosen[r].data(), c.weights[r].data());
    bool same = true;
    for (int j = 0; j < rule.k; ++j) {
      same &= ours[j].logit == theirs[j].logit && ours[j].correction == theirs[j].correction &&
              std::abs(ours[j].weight - theirs[j].weight) <= 4e-6f * std::max(1.0f, std::abs(theirs[j].weight));
    }
    differing += !same;
  }
  return differing;
}

TEST(RouterGolden, EveryRuleChoosesAndWeighsAsTransformersDoes) {
  const std::vector<Case> cases = read_cases();
  ASSERT_GE(cases.size(), 12u);
  for (const Case& c : cases) {
    ASSERT_TRUE(check_router_rule(c.rule).ok()) << c.name;
    EXPECT_EQ(rows_that_differ(c, c.rule), 0) << c.name;
  }
}

// Ties: nobody is chosen past an equal expert of a lower index.
TEST(RouterGolden, OfEqualExpertsTheLowerIsChosen) {
  int ties = 0;
  for (const Case& c : read_cases()) {
    const int group_size = c.rule.num_experts / c.rule.groups;
    for (const std::vector<float>& logits : c.logits) {
      std::vector<int32_t> chosen(c.rule.k);
      std::vector<float> weights(c.rule.k);
      choose_experts({.logits = logits.data(), .rows = 1, .rule = c.rule,
                      .correction = c.correction.empty() ? nullptr : c.correction.data(),
                      .experts_out = chosen.data(), .weights_out = weights.data()});
      for (const int32_t e : chosen) {
        for (int lower = e / group_size * group_size; lower < e; ++lower) {
          const bool equal =
              logits[lower] == logits[e] && (c.correction.empty() || c.correction[lower] == c.correction[e]);
          if (!equal) continue;
          ++ties;
          EXPECT_NE(std::find(chosen.begin(), chosen.end(), lower), chosen.end()) << c.name;
        }
      }
    }
  }
  EXPECT_GT(ties, 100);  // the goldens have what this is about
}

// The comparison would notice a rule that is followed wrongly.
TEST(RouterGolden, MistakesAreCaught) {
  for (const Case& c : read_cases()) {
    std::vector<std::pair<std::string, RouterRule>> mutants;
    const auto mutate = [&](const char* what, auto change) {
      change(mutants.emplace_back(what, c.rule).second);
    };
    if (c.rule.score == RouterScore::sparse_mixer) {
      mutate("mixed too widely", [](RouterRule& r) { r.jitter *= 4; });
      mutate("a plain softmax", [](RouterRule& r) { r.score = RouterScore::softmax; });
    } else {
      mutate("weights left as they are, or renormalised", [](RouterRule& r) { r.renormalise = !r.renormalise; });
      mutate("scaled twice", [](RouterRule& r) { r.scale = r.scale * r.scale * 1.01f; });
    }
    if (c.rule.groups > 1) {
      mutate("groups left out", [](RouterRule& r) { r.groups = r.kept_groups = 1; });
      mutate("one group too many", [](RouterRule& r) { ++r.kept_groups; });
      mutate("groups judged wrongly", [](RouterRule& r) {
        r.group_score = r.group_score == GroupScore::best ? GroupScore::best_two : GroupScore::best;
      });
      mutate("groups of half the size", [](RouterRule& r) { r.groups *= 2; r.kept_groups *= 2; });
    }
    for (const auto& [what, rule] : mutants) EXPECT_GT(rows_that_differ(c, rule), 0) << c.name << ": " << what;
    if (c.correction.empty() || c.rule.k == c.rule.num_experts) continue;
    Case without = c;
    without.correction.assign(c.correction.size(), 0.0f);
    EXPECT_GT(rows_that_differ(without, c.rule), 0) << c.name << ": no correction";
  }
}

}  // namespace
}  // namespace warpweave
