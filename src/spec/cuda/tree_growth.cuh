// A level more of trees of drafts by one block a request, as DraftTree::expand() chooses it: of the candidates behind
// the last level's nodes the likeliest, of equal ones the earlier. Writes what the next pass reads. For
// draft_kernels.cu, and for its test, which runs it on the host.
#pragma once

#include "spec/cuda/draft_kernels.h"

namespace warpweave::gpu {
namespace {

constexpr int kTreeThreads = kMostTreeBranches * kMostTreeBranches;

struct TreeShared {
  float scores[kTreeThreads];
};

// The nodes of the level, `begin` to `begin + topk` among the request's.
__device__ void choose_level(const TreeLevelCall& call, int request, TreeNode* nodes, TreeShared& shared) {
  const int topk = call.topk, c = static_cast<int>(threadIdx.x), begin = (call.level - 1) * topk;
  if (call.level == 1) {
    if (c >= topk) return;
    const DraftChoice first = call.first[request * topk + c];
    nodes[c] = {first.token, -1, first.logprob, call.first_features != nullptr ? call.first_features[request] : 0};
    return;
  }
  const int parent = begin - topk + c / topk;
  DraftChoice choice;
  if (c < topk * topk) {
    choice = call.choices[request * topk * topk + c];
    shared.scores[c] = nodes[parent].score + choice.logprob;
  }
  __syncthreads();
  if (c >= topk * topk) return;
  const float score = shared.scores[c];
  int better = 0;
  for (int other = 0; other < topk * topk; ++other) {
    better += shared.scores[other] > score || (shared.scores[other] == score && other < c);
  }
  if (better >= topk) return;
  const int32_t feature = call.kept != nullptr ? call.kept[request * topk + c / topk] : 0;
  nodes[begin + better] = {choice.token, parent, score, feature};
}

__global__ void __launch_bounds__(kTreeThreads) tree_level_kernel(TreeLevelCall call) {
  __shared__ TreeShared shared;
  const int request = static_cast<int>(blockIdx.x), rows = call.topk * call.level;
  TreeNode* const nodes = call.nodes + int64_t{request} * call.max_nodes;
  choose_level(call, request, nodes, shared);
  __syncthreads();
  const bool padding = call.kv_lens[request] == 0;
  for (int k = static_cast<int>(threadIdx.x); k < rows; k += kTreeThreads) {
    const int64_t row = int64_t{request} * rows + k;
    uint32_t* const mask = call.mask + row * call.mask_words;
    for (int word = 0; word < call.mask_words; ++word) mask[word] = 0;
    call.ids[row] = padding ? 0 : nodes[k].token;
    if (call.features != nullptr) call.features[row] = padding ? call.padding_feature : nodes[k].feature;
    if (padding) continue;
    for (int node = k; node >= 0; node = nodes[node].parent) mask[node / 32] |= 1u << (node % 32);
  }
}

}  // namespace
}  // namespace warpweave::gpu
