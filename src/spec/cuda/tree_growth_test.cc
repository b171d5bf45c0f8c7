// The GPU's growth of trees, run on the host, against DraftTree.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <vector>

#include "device/cuda/testing/host_cta.h"

#include "spec/cuda/tree_growth.cuh"

namespace warpweave::gpu {
namespace {

using host_cta::Order;

constexpr int kPasses = 4, kRequests = 3, kPaddingFeature = 999;

// What passes choose: the likeliest first, many of them equal.
std::vector<DraftChoice> made_up_choices(int rows, int topk, std::mt19937& rng) {
  std::vector<DraftChoice> out;
  for (int row = 0; row < rows; ++row) {
    float logprob = 0;
    for (int j = 0; j < topk; ++j) {
      logprob -= 0.25f * static_cast<float>(rng() % 4);
      out.push_back({static_cast<int32_t>(rng() % 1000), logprob});
    }
  }
  return out;
}

// Of a request: what the pass over its nodes up to `level` reads.
struct Wanted {
  std::vector<int32_t> ids, parents;
};
Wanted wanted_of(const DraftTree& tree) {
  Wanted out;
  const std::span<const int> expanded = tree.expanded();
  for (const int node : expanded) {
    out.ids.push_back(tree.node(node).token);
    const auto parent = std::find(expanded.begin(), expanded.end(), tree.node(node).parent);
    out.parents.push_back(parent == expanded.end() ? -1 : static_cast<int32_t>(parent - expanded.begin()));
  }
  return out;
}

class TreeGrowth : public testing::TestWithParam<int> {};

TEST_P(TreeGrowth, ExpandsWhatDraftTreeExpands) {
  const int topk = GetParam(), max_nodes = topk * kPasses;
  std::mt19937 rng(topk);
  const std::vector<DraftChoice> first = made_up_choices(kRequests, topk, rng);
  const std::vector<int32_t> first_features = {70, 71, 72}, kv_lens = {5, 6, 0};  // the last one is padding
  std::vector<DraftTree> trees(kRequests);
  for (int r = 0; r < kRequests; ++r) trees[r].start(topk, std::span(first).subspan(r * topk, topk));
  std::vector<TreeNode> nodes(kRequests * max_nodes);
  std::vector<DraftChoice> choices;
  std::vector<int32_t> kept;
  for (int level = 1; level <= kPasses; ++level) {
    const int rows = topk * level, words = (rows + 31) / 32;
    std::vector<int32_t> ids(kRequests * rows, -7), features(kRequests * rows, -7);
    std::vector<uint32_t> mask(kRequests * rows * words, ~0u);
    const TreeLevelCall call = {.requests = kRequests, .topk = topk, .level = level, .first = first.data(),
                                .first_features = first_features.data(), .choices = choices.data(), .kept = kept.data(),
                                .kv_lens = kv_lens.data(), .padding_feature = kPaddingFeature, .nodes = nodes.data(),
                                .max_nodes = max_nodes, .ids = ids.data(), .features = features.data(),
                                .mask = mask.data(), .mask_words = words};
    for (unsigned r = 0; r < kRequests; ++r) {
      const Order order = level % 2 == 0 ? Order::random : Order::descending;
      host_cta::run(kTreeThreads, order, [&] { tree_level_kernel(call); }, {r, 0});
      trees[r].expand();
    }
    for (int r = 0; r < kRequests; ++r) {
      const bool padding = kv_lens[r] == 0;
      const Wanted wanted = wanted_of(trees[r]);
      for (int k = 0; k < rows; ++k) {
        const int row = r * rows + k;
        EXPECT_EQ(ids[row], padding ? 0 : wanted.ids[k]) << "level " << level << " node " << k;
        std::vector<uint32_t> sees(words, 0);
        for (int node = k; node >= 0 && !padding; node = wanted.parents[node]) sees[node / 32] |= 1u << node % 32;
        EXPECT_EQ(std::vector<uint32_t>(mask.begin() + row * words, mask.begin() + (row + 1) * words), sees);
        const int place = wanted.parents[k];  // a pass keeps the states of its level's nodes, here 100 * level on
        const int feature = place < 0 ? 70 + r : 100 * (place / topk + 1) + r * topk + place % topk;
        EXPECT_EQ(features[row], padding ? kPaddingFeature : feature) << "level " << level << " node " << k;
      }
    }
    choices = made_up_choices(kRequests * topk, topk, rng);
    kept.clear();
    for (int i = 0; i < kRequests * topk; ++i) kept.push_back(100 * level + i);
    for (int r = 0; r < kRequests; ++r) {
      for (int w = 0; w < topk; ++w) trees[r].add(w, std::span(choices).subspan((r * topk + w) * topk, topk));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Branches, TreeGrowth, testing::Values(2, 4, 10, 16));

}  // namespace
}  // namespace warpweave::gpu
